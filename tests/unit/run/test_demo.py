"""The demonstration's model does not depend on the number of workers, and its proofs can fail."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from strata.checkpoint import CheckpointManager
from strata.demo import samples
from strata.demo.model import BATCH_SIZE, BLOCK_SIZE, INPUTS, apply_gradients, block_gradients, make_state
from strata.demo.proofs import prove, read_seen
from strata.demo.samples import make_dataset
from strata.run.team.global_batches import cut_blocks

JOB = "demo"


def train(world_sizes: list[int]) -> bytes:
    """Train a step for each number of workers, and return the weights."""
    chance = np.random.default_rng(3)
    state = make_state()
    for world_size in world_sizes:
        x = chance.normal(size=(BATCH_SIZE, INPUTS)).astype(np.float32)
        y = chance.integers(0, 10, BATCH_SIZE)
        payloads = []
        for rank in range(world_size):
            ((_, start, stop),) = cut_blocks(
                0, BATCH_SIZE, batch_size=BATCH_SIZE, block_size=BLOCK_SIZE, rank=rank, world_size=world_size
            ).tolist()
            payloads.append(block_gradients(state, x[start:stop], y[start:stop])[0].tobytes())
        apply_gradients(state, payloads)
    weights: bytes = state["weights"].tobytes()
    return weights


@given(world_sizes=st.lists(st.integers(1, 9), min_size=4, max_size=4))
def test_the_weights_are_the_same_to_the_bit_for_any_number_of_workers(world_sizes: list[int]) -> None:
    assert train(world_sizes) == train([1] * 4)


def write_seen(folder: Path, name: str, *records: tuple[int, int, int, list[int]]) -> None:
    (folder / "seen").mkdir(exist_ok=True)
    words = [np.array([generation, step, epoch, len(ids), *ids], "<i8") for generation, step, epoch, ids in records]
    (folder / "seen" / name).write_bytes(b"".join(each.tobytes() for each in words))


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A run of two workers and one epoch of four samples, in which step 2 was void once."""
    write_seen(tmp_path, "a", (1, 1, 0, [0]), (1, 2, 0, [2]), (2, 2, 0, [2, 3]))
    write_seen(tmp_path, "b", (1, 1, 0, [1]), (1, 2, 0, [3]))
    ledger = [{"position": 4}]
    for name in ("checkpoints", "reference"):
        with CheckpointManager(tmp_path / name, job_id=JOB) as manager:
            manager.save({"w": np.arange(3.0)}, 2, cursors={"ledger": ledger})
    return tmp_path


def holds(folder: Path, audits: list[tuple[int, int]] | None = None) -> list[bool]:
    return [proof.holds for proof in prove(folder, job_id=JOB, epochs=1, num_rows=4, audits=audits or [(0, 0)])]


def test_a_run_that_lost_nothing_is_proved(folder: Path) -> None:
    assert holds(folder) == [True] * 4
    assert [[ids.tolist() for _, ids in rows] for rows in read_seen(folder).values()] == [[[0], [1]], [[2, 3]]]


def test_a_sample_that_is_missing_or_repeated_fails_the_proof(folder: Path) -> None:
    write_seen(folder, "c", (2, 2, 0, [3]))
    assert holds(folder)[0] is False
    write_seen(folder, "c", (3, 2, 0, [2]))
    assert holds(folder)[0] is False


def test_a_ledger_that_says_otherwise_fails_the_proof(folder: Path) -> None:
    assert holds(folder, [(0, 1)]) == [True, False, True, True]


def test_weights_that_differ_in_one_bit_fail_the_proof(folder: Path) -> None:
    with CheckpointManager(folder / "reference", job_id=JOB) as manager:
        weights = np.arange(3.0)
        weights.view(np.int64)[1] ^= 1
        manager.delete(2)
        manager.save({"w": weights}, 2)
    assert holds(folder)[-1] is False


def test_the_dataset_has_every_sample_once(tmp_path: Path) -> None:
    from strata.data.rows.row_sequence import open_rows

    make_dataset(tmp_path / "data", 103)
    rows = open_rows(tmp_path / "data")
    assert rows.read(0, rows.num_rows)["id"].tolist() == list(range(103))


def test_a_dataset_that_is_there_is_kept_as_it_is(tmp_path: Path) -> None:
    make_dataset(tmp_path / "data", 103)
    before = {path: path.stat().st_mtime_ns for path in (tmp_path / "data").iterdir()}
    make_dataset(tmp_path / "data", 50)
    assert {path: path.stat().st_mtime_ns for path in (tmp_path / "data").iterdir()} == before


def test_of_two_workers_that_make_the_dataset_the_second_takes_what_the_first_made(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The first is faster by all: it begins and ends while the second writes its first file."""
    write, others = samples.pq.write_table, ["the first"]

    def write_late(table: Any, path: Path) -> None:
        if others:
            others.pop()
            make_dataset(tmp_path / "data", 103)
            (tmp_path / "data" / "first").touch()
        write(table, path)

    monkeypatch.setattr(samples.pq, "write_table", write_late)
    make_dataset(tmp_path / "data", 103)
    assert (tmp_path / "data" / "first").exists()
    assert [path.name for path in tmp_path.iterdir()] == ["data"], "what the second wrote is gone"


def test_a_dataset_that_cannot_be_put_in_its_place_is_an_error(tmp_path: Path) -> None:
    (tmp_path / "data").symlink_to(tmp_path / "nowhere")
    with pytest.raises(NotADirectoryError):
        make_dataset(tmp_path / "data", 103)
