"""A whole repair in one process: what a minority of the ranks wrote is written again from the copies of others."""

from __future__ import annotations

from collections.abc import Iterator
from concurrent.futures import Future
from contextlib import ExitStack
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest

from strata.checkpoint import CheckpointManager
from strata.cluster.events import ManifestWanted, RepairWanted
from strata.cluster.values import CommitRecord, PartReport, RankInfo
from strata.storage import MemoryStorage
from tests.testbed.pace import stretch
from tests.testbed.waiting import wait_until

if TYPE_CHECKING:
    from strata.checkpoint.commit.protocol import ManifestWriter

SIZE = 300_000
NOTHING = PartReport("", 0, "")


@dataclass
class Rank:
    """The coordinator as one of several ranks sees it; the test asks for repairs and the manifest."""

    rank: int
    world_size: int
    writer: ManifestWriter | None = None
    report: PartReport | None = None
    committed: Future[None] = field(default_factory=Future)

    def get_rank_info(self) -> RankInfo:
        return RankInfo(rank=self.rank, world_size=self.world_size, generation=1)

    def begin_part(self, _step: int, _generation: int) -> int:
        return 0

    def drop_part(self, _number: int, reason: str) -> None:
        raise AssertionError(reason)

    def commit_part(self, _number: int, *, report: PartReport, **_: Any) -> Future[None]:
        self.report = report
        return self.committed

    def serve_manifests(self, writer: ManifestWriter | None) -> None:
        self.writer = writer

    def adopt_checkpoints(self, _records: object) -> Future[None]:
        return _done()

    def forget_checkpoints(self, _steps: object) -> Future[None]:
        return _done()

    def list_checkpoints(self) -> Future[Any]:
        return _done(())


def _done(value: Any = None) -> Future[Any]:
    future: Future[Any] = Future()
    future.set_result(value)
    return future


class Ranks:
    """A manager for each rank, on one storage."""

    def __init__(self, stack: ExitStack, count: int) -> None:
        self.storage = MemoryStorage()
        self.ranks = [Rank(rank, count) for rank in range(count)]
        self.managers = [
            stack.enter_context(CheckpointManager(storage=self.storage, coordinator=rank)) for rank in self.ranks
        ]

    def save(self, corrupt: dict[int, float]) -> dict[str, Any]:
        """Save step 1; ranks that are corrupt hold other values in every chunk. Return the right state."""
        right = {"w": np.arange(SIZE, dtype=np.float64), "b": np.full(7, 3.0)}
        for rank, manager in enumerate(self.managers):
            state = {name: tensor.copy() for name, tensor in right.items()}
            for tensor in state.values():
                tensor[:: max(1, len(tensor) // 500)] += corrupt.get(rank, 0.0)
            manager.save_background(state, 1, replicated="*")
        wait_until(lambda: all(rank.report is not None for rank in self.ranks), "all parts")
        return right

    def repair(self, lost: tuple[int, ...] = ()) -> list[PartReport]:
        """Have all ranks repair the step but those that are lost."""
        wanted = RepairWanted(job_id="default", to=(), step=1, generation=1, reports=self.reports)
        repairs = []
        for rank in self.ranks:
            assert rank.writer is not None
            found = None if rank.rank in lost else rank.writer.write_repair(wanted).result(stretch(30))
            repairs.append(found or NOTHING)
        return repairs

    def commit(self, repairs: list[PartReport]) -> CommitRecord:
        """Have the manifest written, and announce it."""
        wanted = ManifestWanted(
            job_id="default",
            to=(),
            step=1,
            epoch=0,
            generation=1,
            reports=self.reports,
            cursors="[]",
            repairs=tuple(repairs),
        )
        assert self.ranks[0].writer is not None
        record = self.ranks[0].writer.write_manifest(wanted).result(stretch(30))
        for rank in self.ranks:
            rank.committed.set_result(None)
        return record

    @property
    def reports(self) -> tuple[PartReport, ...]:
        return tuple(rank.report for rank in self.ranks if rank.report is not None)


@pytest.fixture
def stack() -> Iterator[ExitStack]:
    with ExitStack() as stack:
        yield stack


@pytest.mark.filterwarnings("ignore::strata.errors.DivergedReplicasWarning")
@pytest.mark.parametrize(("count", "corrupt"), [(3, {0: 1.0}), (3, {2: 1.0}), (5, {1: 1.0, 3: 2.0})])
def test_what_a_minority_wrote_is_replaced_by_what_most_ranks_hold(
    stack: ExitStack, count: int, corrupt: dict[int, float]
) -> None:
    ranks = Ranks(stack, count)
    right = ranks.save(corrupt)
    assert len({report.replicas for report in ranks.reports}) > 1, "the coordinator sees that they differ"
    repairs = ranks.repair()
    assert any(repair.path for repair in repairs)
    record = ranks.commit(repairs)
    assert record.diverged is not None
    assert set(record.diverged.ranks) == set(corrupt)
    assert not record.is_suspect
    with CheckpointManager(storage=ranks.storage) as reader:
        restored = reader.load(1)
    for name, tensor in right.items():
        np.testing.assert_array_equal(restored.data[name], tensor, strict=True)


@pytest.mark.filterwarnings("ignore::strata.errors.DivergedReplicasWarning")
def test_a_step_whose_repair_was_lost_with_its_holder_is_suspect(stack: ExitStack) -> None:
    ranks = Ranks(stack, 3)
    ranks.save({1: 1.0})
    assert ranks.commit(ranks.repair(lost=(0, 1, 2))).is_suspect


def test_ranks_that_agree_have_nothing_to_repair(stack: ExitStack) -> None:
    ranks = Ranks(stack, 3)
    right = ranks.save({})
    assert len({report.replicas for report in ranks.reports}) == 1
    repairs = ranks.repair()
    assert repairs == [NOTHING] * 3
    assert ranks.commit(repairs).diverged is None
    with CheckpointManager(storage=ranks.storage) as reader:
        np.testing.assert_array_equal(reader.load(1).data["w"], right["w"])
