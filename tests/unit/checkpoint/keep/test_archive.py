"""Exports are whole or not there, and a comparison names what differs."""

from __future__ import annotations

import asyncio
import json
import os
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest

from strata.checkpoint import CheckpointManager, Slice
from strata.checkpoint.keep.archive import Archive
from strata.errors import DamagedRecordError
from strata.storage import MemoryStorage

if TYPE_CHECKING:
    from pathlib import Path


def ignore(count: int) -> None:
    pass


async def test_an_export_of_many_parts_is_one_file_with_whole_tensors(tmp_path: Path) -> None:
    storage = MemoryStorage()
    with CheckpointManager(storage=storage) as manager:
        whole = np.arange(12.0).reshape(4, 3)
        for part in range(2):
            piece = Slice(whole[part * 2 : part * 2 + 2], whole.shape, (part * 2, 0))
            await asyncio.to_thread(manager.save, {"w": piece, "b": np.ones(2)}, 1, part=part, parts=2)
        await asyncio.to_thread(manager.commit, 1)
    archive = Archive(storage, "default")
    target = tmp_path / "model.safetensors"
    await archive.export(await archive.read(1), target, ignore)
    data = target.read_bytes()
    length = int.from_bytes(data[:8], "little")
    header = json.loads(data[8 : 8 + length])
    start, end = header["w"]["data_offsets"]
    exported = np.frombuffer(data[8 + length + start : 8 + length + end], "<f8").reshape(header["w"]["shape"])
    assert np.array_equal(exported, whole)


async def test_an_export_that_is_interrupted_leaves_nothing(tmp_path: Path) -> None:
    reached = asyncio.Event()

    class StuckStorage(MemoryStorage):
        async def read_into(self, path: str, buffer: Any, *, start: int = 0) -> None:
            reached.set()
            await asyncio.Event().wait()

    storage = StuckStorage()
    with CheckpointManager(storage=storage) as manager:
        await manager.save_async({"w": np.ones(3)}, 1)
    archive = Archive(storage, "default")
    export = asyncio.create_task(archive.export(await archive.read(1), tmp_path / "x", ignore))
    await reached.wait()
    export.cancel()
    with pytest.raises(asyncio.CancelledError):
        await export
    assert os.listdir(tmp_path) == []  # noqa: PTH208 - nothing else runs here


async def test_a_comparison_names_every_difference() -> None:
    storage = MemoryStorage()
    with CheckpointManager(storage=storage) as manager:
        one = {"same": np.ones(5), "w": np.zeros(5), "t": np.ones(2), "s": np.ones(2), "gone": np.ones(1), "lr": 0.1}
        two: dict[str, Any] = {
            **one,
            "w": np.array([0, 0, 1, 0, 2.0]),
            "t": np.ones(2, int),
            "s": np.ones(3),
            "lr": 0.2,
        }
        del two["gone"]
        two["new"] = np.ones(1)
        await manager.save_async(one, 1)
        await manager.save_async(two, 2)
    archive = Archive(storage, "default")
    found = await archive.diff(await archive.read(1), await archive.read(2), ignore)
    assert [(each.name, each.change, each.detail) for each in found] == [
        ("gone", "removed", "tensor"),
        ("lr", "values", "0.1 -> 0.2"),
        ("new", "added", "tensor"),
        ("s", "shape", "[2] -> [3]"),
        ("t", "type", "float64 -> int64"),
        ("w", "values", "2 of 5 elements"),
    ]


@pytest.mark.parametrize("record", [b"[" * 100_000, b"\xff", b"{}", b'{"at_s": 1' + b"0" * 400 + b"}"])
async def test_a_record_of_a_rewind_that_cannot_be_read_is_named(record: bytes) -> None:
    storage = MemoryStorage()
    await storage.write("default/checkpoints/rewinds/00001.json", record)
    with (
        CheckpointManager(storage=storage) as manager,
        pytest.raises(DamagedRecordError, match=r"default/checkpoints/rewinds/00001\.json"),
    ):
        await manager.load_async()
