"""A rank reads the chunks that its blocks are in, and no others."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from strata.checkpoint import CheckpointManager, Slice
from strata.checkpoint.format.digest import CHUNK_BYTES
from strata.checkpoint.load.part_reader import Reader

CHUNK_FLOATS = CHUNK_BYTES // 4


@pytest.fixture
def read(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """How many bytes were read and checked."""
    counts: list[int] = []
    check = Reader._check_and_deliver

    def count(reader: Reader, run: Any, start: int, view: memoryview) -> None:
        counts.append(len(view))
        check(reader, run, start, view)

    monkeypatch.setattr(Reader, "_check_and_deliver", count)
    return counts


def test_half_the_rows_take_half_the_bytes(tmp_path: Path, read: list[int]) -> None:
    whole = np.arange(8 * CHUNK_FLOATS, dtype=np.float32).reshape(8, CHUNK_FLOATS)
    with CheckpointManager(tmp_path) as manager:
        manager.save({"w": whole}, 1)
        mine = Slice(np.empty((4, CHUNK_FLOATS), np.float32), whole.shape, (4, 0))
        assert np.array_equal(manager.load(like={"w": mine}).data["w"], whole[4:])
    assert sum(read) <= 5 * CHUNK_BYTES


@pytest.mark.parametrize("depth", [1, 2])
def test_a_few_columns_of_wide_rows_take_only_their_chunks(tmp_path: Path, read: list[int], depth: int) -> None:
    shape = (*(2,) * depth, 4 * CHUNK_FLOATS)
    whole = np.arange(np.prod(shape), dtype=np.float32).reshape(shape)
    start = (*(0,) * depth, 2 * CHUNK_FLOATS)
    with CheckpointManager(tmp_path) as manager:
        manager.save({"w": whole}, 1)
        mine = Slice(np.empty((*shape[:-1], 1000), np.float32), shape, start)
        found = manager.load(like={"w": mine}).data["w"]
    assert np.array_equal(found, whole[..., 2 * CHUNK_FLOATS : 2 * CHUNK_FLOATS + 1000])
    assert sum(read) <= 2**depth * 2 * CHUNK_BYTES
