"""Blocks of a global batch: the same numbers, samples and memory layout for any number of workers."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import strata
from strata.demo.samples import make_dataset
from strata.run.data.blocks import cut_batch
from strata.run.team.global_batches import cut_blocks


def join(folder: Path) -> strata.Run:
    return strata.join(local=True, checkpoints=folder / "checkpoints", save_every="1000 steps")


@given(
    start=st.integers(0, 100),
    samples=st.integers(1, 40),
    block_size=st.integers(1, 9),
    workers=st.integers(1, 7),
)
def test_all_workers_together_have_the_blocks_that_one_alone_has(
    start: int, samples: int, block_size: int, workers: int
) -> None:
    def blocks_of(begin: int, end: int) -> list[tuple[int, list[int]]]:
        batch = {"id": np.arange(begin, end)}
        return [(each.number, each.batch["id"].tolist()) for each in cut_batch(batch, begin, block_size=block_size)]

    together = []
    for rank in range(workers):
        ((_, begin, end),) = cut_blocks(
            start, start + samples, batch_size=40, block_size=block_size, rank=rank, world_size=workers
        )
        together += blocks_of(int(begin), int(end))
    if start % block_size == 0:
        assert together == blocks_of(start, start + samples)
    assert [number for number, _ in together] == [start // block_size + each for each in range(len(together))]
    assert [sample for _, samples in together for sample in samples] == list(range(start, start + samples))


def test_each_block_has_memory_of_its_own_that_is_aligned() -> None:
    batch = {"x": np.arange(21, dtype=np.float32).reshape(7, 3), "scale": np.float32(2), "text": ["a"] * 7}
    blocks = cut_batch(batch, 14, block_size=2)
    assert [each.number for each in blocks] == [7, 8, 9, 10]
    assert [len(each.batch["x"]) for each in blocks] == [2, 2, 2, 1]
    assert [len(each.batch["text"]) for each in blocks] == [2, 2, 2, 1]
    assert all(each.batch["scale"] == 2 for each in blocks)
    assert all(each.batch["x"].ctypes.data % 64 == 0 for each in blocks)
    assert not any(np.shares_memory(each.batch["x"], batch["x"]) for each in blocks)
    assert np.concatenate([each.batch["x"] for each in blocks]).tolist() == batch["x"].tolist()


def test_a_loop_gets_the_blocks_of_each_step_and_the_last_may_be_short(tmp_path: Path) -> None:
    make_dataset(tmp_path / "data", 25)
    seen: dict[int, list[tuple[int, int]]] = {}
    with join(tmp_path) as run:
        data = run.dataset(tmp_path / "data", order="global", global_batch_size=10, block_size=4, shuffle=False)
        for step in run.steps({"x": np.zeros(1)}, data, epochs=1):
            with step:
                seen[step.number] = [(each.number, len(each.batch["id"])) for each in step.blocks()]
    # A global batch need not be a multiple of the block size: numbers differ within a step.
    assert seen == {1: [(0, 4), (1, 4), (2, 2)], 2: [(2, 4), (3, 4), (4, 2)], 3: [(5, 4), (6, 1)]}


def test_a_loop_by_hand_seeds_blocks_too(tmp_path: Path) -> None:
    make_dataset(tmp_path / "data", 20)
    drawn: list[list[float]] = []
    for folder in (tmp_path / "a", tmp_path / "b"):
        np.random.seed(len(drawn))
        drawn.append([])
        with join(folder) as run:
            data = run.dataset(tmp_path / "data", order="global", global_batch_size=10, block_size=5)
            run.restore({"x": np.zeros(1)})
            for batch in data:
                for block in data.blocks(batch):
                    with run.seeded(block):
                        drawn[-1].append(np.random.random())
                run.step()
    assert drawn[0] == drawn[1]
    assert len(set(drawn[0])) == 4


def keep_all(batch: dict[str, Any]) -> Any:
    return np.ones(len(batch["id"]), bool)


def halve(batch: dict[str, Any]) -> dict[str, Any]:
    return {"id": batch["id"][::2]}


@pytest.mark.parametrize(
    ("options", "problem"),
    [
        ({"order": "sticky", "batch_size": 10}, "no fixed blocks with order='sticky'"),
        ({"order": "global", "global_batch_size": 10, "filter": keep_all}, "no fixed blocks with a filter"),
        ({"order": "global", "global_batch_size": 10, "on_error": "skip"}, "no fixed blocks with on_error='skip'"),
        ({"order": "global", "global_batch_size": 10, "transform": halve}, "the batch has 5 rows for 10 samples"),
    ],
)
def test_batches_without_fixed_blocks_are_refused(tmp_path: Path, options: dict[str, Any], problem: str) -> None:
    make_dataset(tmp_path / "data", 20)
    with join(tmp_path) as run:
        data = run.dataset(tmp_path / "data", **options)
        batch = next(iter(data))
        with pytest.raises(ValueError, match=problem):
            data.blocks(batch)


def test_columns_that_do_not_agree_are_refused() -> None:
    with pytest.raises(ValueError, match=r"the columns of the batch have \[2, 3\] rows"):
        cut_batch({"a": np.zeros(2), "b": np.zeros(3)}, 0, block_size=1)
