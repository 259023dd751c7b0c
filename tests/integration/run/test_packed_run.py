"""Packed datasets in runs of real processes: every token counts exactly once, whatever dies, joins or leaves."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import strata
from strata.client.unary import ask_audit
from strata.data import open_dataset
from strata.data.text.assembled import pack_dataset
from strata.demo.samples import make_dataset
from strata.errors import DatasetOptionsError, PositionMismatchError
from tests.testbed.coordinator import CoordinatorProcess
from tests.testbed.job import Job
from tests.testbed.programs.run_worker import make_documents, open_packed, take_ids

pytestmark = [pytest.mark.full, pytest.mark.timeout(300), pytest.mark.xdist_group("whole runs")]


@pytest.fixture
def served(tmp_path: Path) -> Iterator[CoordinatorProcess]:
    coordinator = CoordinatorProcess(tmp_path, "--lease", "4", "--grace", "1")
    with coordinator.serving():
        yield coordinator


@pytest.mark.parametrize(
    ("order", "strategy"),
    [
        ("global", "best_fit"),
        *(
            pytest.param(order, strategy, marks=pytest.mark.slow)
            for order, strategy in (
                ("sticky", "greedy"),
                ("sticky", "best_fit"),
                ("dynamic", "greedy"),
                ("global", "buckets"),
            )
        ),
    ],
)
def test_no_token_is_lost_or_seen_twice_when_workers_die_and_come_back(
    served: CoordinatorProcess, tmp_path: Path, order: str, strategy: str
) -> None:
    num_rows, epochs = 1_003, 2
    with Job(tmp_path, served.url, order=order, epochs=epochs, options=(f"--packed={strategy}",)) as job:
        lengths = [1 + number % 7 for number in range(num_rows)]
        job.expected = {
            "total": epochs * sum(number * number * length for number, length in enumerate(lengths)),
            "count": epochs * sum(lengths),
        }
        job.start("a", "b", "c", WORLD_SIZE="3")
        job.wait_for_step(12)
        job.kill("b")
        job.wait_until(lambda: job.world_size() == 2, "the others go on alone")
        job.start("b")
        job.wait_until(lambda: job.world_size() == 3 or job.workers["a"].process.poll() is not None, "it is back")
        job.check_finished()
    for epoch in range(epochs):
        audit = ask_audit(served.url, "default", "d", epoch=epoch)
        assert (audit.missing.samples, audit.repeated.samples) == (0, 0)


def go(folder: Path, packed: Any, until: int | None, **where: Any) -> list[list[int]]:
    """Train until a step, from wherever the job is; return the tokens of each batch."""
    seen = []
    with strata.join(checkpoints=folder / "checkpoints", save_every="1000 steps", **where) as run:
        dataset = run.dataset(packed, name="d")
        state = {"x": np.zeros(1)}
        for step in run.steps(state, dataset, epochs=2, until=until):
            state["x"] += 1
            seen.append(take_ids(step.batch).tolist())
    return seen


@pytest.mark.parametrize("is_local", [False, True])
@pytest.mark.parametrize(
    ("order", "strategy"), [("sticky", "greedy"), ("sticky", "best_fit"), ("global", "greedy"), ("global", "buckets")]
)
def test_a_packed_run_that_is_resumed_has_the_batches_of_one_that_was_never_stopped(
    served: CoordinatorProcess, tmp_path: Path, order: str, strategy: str, is_local: bool
) -> None:
    make_dataset(tmp_path / "data", 203)
    with open_packed(tmp_path / "data", strategy, order) as whole:
        expected = [take_ids(batch).tolist() for _ in range(2) for batch in whole]
        per_epoch = len(expected) // 2
    where = {"local": True} if is_local else {"coordinator_url": served.url, "worker_id": "w"}
    seen = []
    # The end of the first epoch and the batches around it: what is carried over there is all that is left of it.
    for until in (3, per_epoch - 1, per_epoch, per_epoch + 1, None):
        seen += go(tmp_path, open_packed(tmp_path / "data", strategy, order), until, **where)
    assert seen == expected


def test_workers_that_pack_differently_are_refused_and_so_is_a_checkpoint_of_another_packing(
    served: CoordinatorProcess, tmp_path: Path
) -> None:
    make_dataset(tmp_path / "data", 50)

    def packed(length: int = 16, **options: Any) -> Any:
        documents = open_dataset(tmp_path / "data", batch_size=8, transform=make_documents, **options)
        return pack_dataset(documents, sequence_length=length, batch_size=2)

    fields = {"coordinator_url": served.url, "checkpoints": tmp_path / "c"}
    with strata.join(worker_id="anna", **fields) as first, strata.join(worker_id="bert", **fields) as second:
        first.dataset(packed(), name="d")
        with pytest.raises(DatasetOptionsError, match=r"'bert'.*assembled.sequence_length=32.*'anna'"):
            second.dataset(packed(32), name="d")
        with pytest.raises(TypeError, match="'batch_size' is an option for opening"):
            second.dataset(packed(), name="e", batch_size=3)
        for order in ("sticky", "global"):
            with pytest.raises(ValueError, match="without rank and world_size"):
                second.dataset(packed(rank=1, world_size=2, order=order), name="e")
        with pytest.raises(ValueError, match="opened with epochs=1"):
            second.dataset(packed(epochs=3), name="e")
    go(tmp_path, packed(), 2, local=True)
    with pytest.raises(PositionMismatchError, match="sequence_length"):
        go(tmp_path, packed(32), 4, local=True)
