"""One worker's side of a joint commit: other workers may be faster, clean up, or have saved something else."""

from __future__ import annotations

import asyncio
from concurrent.futures import Future
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest

from strata.checkpoint import CheckpointManager
from strata.checkpoint.commit import joint
from strata.cluster.events import ManifestWanted
from strata.cluster.values import CommitRecord, PartReport, RankInfo
from strata.errors import (
    CheckpointBusyError,
    CheckpointExistsError,
    DamagedCheckpointError,
    IncompleteCheckpointError,
    ObjectExistsError,
    OutboxFullError,
)
from strata.storage import MemoryStorage
from tests.testbed.pace import stretch
from tests.testbed.waiting import wait_until

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Iterator, Sequence

    from strata.checkpoint.commit.protocol import ManifestWriter

MANIFEST = "default/checkpoints/step_1/metadata.json"
AWAY = OutboxFullError(limit=3)


def done(value: Any = None, *, error: Exception | None = None) -> Future[Any]:
    future: Future[Any] = Future()
    if error is None:
        future.set_result(value)
    else:
        future.set_exception(error)
    return future


class Coordinator:
    """Knows one worker. It keeps the reports of its parts, and commits nothing before the test says so."""

    def __init__(self) -> None:
        self.writer: ManifestWriter | None = None
        self.wanted: dict[int, ManifestWanted] = {}
        self.waiting: list[Future[None]] = []
        self.adopted: list[int] = []
        self.known: list[int] = []
        self.forgotten: list[int] = []
        self.before_listing: Callable[[], object] | None = None
        self.refusals: list[Exception] = []
        self._steps: list[int] = []

    def get_rank_info(self) -> RankInfo:
        return RankInfo(rank=0, world_size=1, generation=1)

    def begin_part(self, step: int, _generation: int) -> int:
        self._steps.append(step)
        return len(self._steps) - 1

    def drop_part(self, _number: int, _reason: str) -> None:
        """Nobody else waits for it."""

    def commit_part(self, number: int, *, epoch: int, report: PartReport, **_: Any) -> Future[None]:
        step = self._steps[number]
        self.wanted[step] = ManifestWanted(
            job_id="default", to=("a",), step=step, epoch=epoch, generation=1, reports=(report,), cursors="[]"
        )
        self.waiting.append(Future())
        return self.waiting[-1]

    def serve_manifests(self, writer: ManifestWriter | None) -> None:
        self.writer = writer

    def adopt_checkpoints(self, records: Sequence[CommitRecord]) -> Future[None]:
        if self.refusals:
            return done(error=self.refusals.pop())
        self.adopted = [record.step for record in records]
        return done()

    def find_restore_point(self, *, timeout_s: float, allow_suspect: bool) -> Future[int | None]:
        return done(max(self.adopted, default=None))

    def forget_checkpoints(self, steps: Sequence[int]) -> Future[None]:
        self.forgotten += steps
        return done(error=AWAY)

    def list_checkpoints(self) -> Future[tuple[int, ...]]:
        if self.before_listing is not None:
            self.before_listing()
        return done(tuple(self.known or self.adopted))

    def write(self, wanted: ManifestWanted) -> CommitRecord:
        assert self.writer is not None
        return self.writer.write_manifest(wanted).result(stretch(30))


class Interrupted(MemoryStorage):
    """Lets the test do something right before an object is read or written for the first time."""

    def __init__(self) -> None:
        super().__init__()
        self.before: dict[str, Callable[[], Awaitable[None]]] = {}

    async def read(self, path: str, **options: Any) -> bytes:
        await self._interrupt(path)
        return await super().read(path, **options)

    async def write_new(self, path: str, data: Any) -> None:
        await self._interrupt(path)
        await super().write_new(path, data)

    async def _interrupt(self, path: str) -> None:
        if (act := self.before.pop(path, None)) is not None:
            await act()


class Worker:
    """A manager and its coordinator; ``wanted`` is the manifest of a part that it has saved."""

    def __init__(self, storage: MemoryStorage) -> None:
        self.coordinator = Coordinator()
        self.manager = CheckpointManager(storage=storage, coordinator=self.coordinator)

    def save(self, step: int = 1, value: float = 1.0) -> ManifestWanted:
        handle = self.manager.save_background({"w": np.full(3, value)}, step)
        wait_until(lambda: handle.done() or step in self.coordinator.wanted)
        return self.coordinator.wanted[step]

    def close(self) -> None:
        for waiting in self.coordinator.waiting:
            waiting.set_result(None)
        self.manager.close()


@pytest.fixture
def storage() -> Interrupted:
    return Interrupted()


@pytest.fixture
def worker(storage: Interrupted) -> Iterator[Worker]:
    worker = Worker(storage)
    yield worker
    worker.close()


@pytest.fixture
def other(storage: Interrupted) -> Iterator[Worker]:
    other = Worker(storage)
    yield other
    other.close()


def report_path(wanted: ManifestWanted) -> str:
    return f"default/checkpoints/{wanted.reports[0].path}"


def test_nobody_commits_by_hand_what_all_workers_commit_together(worker: Worker) -> None:
    with pytest.raises(ValueError, match="with a coordinator, a checkpoint is committed by itself when all parts are"):
        worker.manager.commit(1)


def test_a_worker_that_was_overtaken_and_finds_the_reports_gone_returns_the_same_commit(
    storage: Interrupted, worker: Worker, other: Worker
) -> None:
    wanted = worker.save()

    async def overtake() -> None:
        assert other.coordinator.writer is not None
        await asyncio.wrap_future(other.coordinator.writer.write_manifest(wanted))
        await storage.delete(report_path(wanted))

    storage.before[report_path(wanted)] = overtake
    record = worker.coordinator.write(wanted)
    assert record == CommitRecord(1, 0, MANIFEST, "[]", None)
    assert worker.manager.list_checkpoints() == [1]


def test_a_report_that_is_nowhere_is_no_commit_but_an_incomplete_checkpoint(
    storage: Interrupted, worker: Worker
) -> None:
    wanted = worker.save()
    asyncio.run(storage.delete(report_path(wanted)))
    with pytest.raises(IncompleteCheckpointError, match=r"a report is not in this worker's storage: .*no such object"):
        worker.coordinator.write(wanted)
    assert worker.manager.list_checkpoints() == []


def test_a_worker_that_is_overtaken_while_it_publishes_returns_the_same_commit(
    storage: Interrupted, worker: Worker, other: Worker
) -> None:
    wanted = worker.save()

    async def overtake() -> None:
        assert other.coordinator.writer is not None
        await asyncio.wrap_future(other.coordinator.writer.write_manifest(wanted))

    storage.before[MANIFEST] = overtake
    # The first look for a manifest does not read it, so this interrupts the write.
    assert worker.coordinator.write(wanted) == CommitRecord(1, 0, MANIFEST, "[]", None)
    assert storage.before == {}


def test_a_checkpoint_that_appears_and_is_deleted_while_another_is_published_is_an_error(
    storage: Interrupted, worker: Worker
) -> None:
    wanted = worker.save()

    async def appear_and_go() -> None:
        raise ObjectExistsError(MANIFEST, backend="memory")

    storage.before[MANIFEST] = appear_and_go
    with pytest.raises(CheckpointExistsError, match="step 1 is already committed"):
        worker.coordinator.write(wanted)
    assert worker.manager.list_checkpoints() == []


def test_a_step_that_is_committed_with_another_part_is_not_taken_for_this_one(worker: Worker, other: Worker) -> None:
    ours, theirs = worker.save(value=1.0), other.save(value=2.0)
    first = other.coordinator.write(theirs)
    with pytest.raises(CheckpointExistsError, match="step 1 is already committed"):
        worker.coordinator.write(ours)
    with pytest.raises(CheckpointExistsError, match="step 1 is already committed"):
        worker.coordinator.write(replace(theirs, generation=2))
    assert worker.coordinator.write(theirs) == first
    assert worker.manager.load(1).data["w"].tolist() == [2.0] * 3


def test_a_report_that_is_not_of_the_part_that_was_acknowledged_is_never_committed(worker: Worker) -> None:
    wanted = worker.save()
    (report,) = wanted.reports
    other_bytes = replace(wanted, reports=(report._replace(digest="00" * 16),))
    with pytest.raises(DamagedCheckpointError, match="it is not the report that the worker sent"):
        worker.coordinator.write(other_bytes)
    for other_save in (replace(wanted, step=2), replace(wanted, generation=2)):
        with pytest.raises(DamagedCheckpointError, match="it is the report of another save"):
            worker.coordinator.write(other_save)
    assert worker.manager.list_checkpoints() == []
    assert worker.coordinator.write(wanted).step == 1


def test_a_part_too_many_that_waits_for_others_is_given_up_and_names_what_waits(
    worker: Worker, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(joint, "MAX_UNCOMMITTED", 2)
    for step in (1, 2):
        worker.save(step, float(step))
    handle = worker.manager.save_background({"w": np.zeros(3)}, 3)
    with pytest.raises(CheckpointBusyError, match="the commit of step 1, the commit of step 2"):
        handle.result(stretch(30))
    worker.coordinator.waiting.pop(0).set_result(None)
    wait_until(lambda: worker.manager.counters.saved == 1)
    worker.save(4)


def test_what_storage_holds_is_reported_again_before_a_restore_if_it_could_not_be_before(
    storage: Interrupted, caplog: pytest.LogCaptureFixture
) -> None:
    with CheckpointManager(storage=storage) as alone:
        alone.save({"w": np.ones(3)}, 7)
    coordinator = Coordinator()
    coordinator.refusals = [AWAY]
    with CheckpointManager(storage=storage, coordinator=coordinator) as manager:
        assert manager.load().step == 7
    assert coordinator.adopted == [7]
    assert f"the existing checkpoints could not be reported to the coordinator: {AWAY}" in caplog.text


def test_a_checkpoint_is_deleted_though_the_coordinator_cannot_be_notified(
    storage: Interrupted, caplog: pytest.LogCaptureFixture
) -> None:
    with CheckpointManager(storage=storage) as alone:
        for step in (1, 2):
            alone.save({"w": np.full(3, step)}, step)
    with CheckpointManager(storage=storage, coordinator=Coordinator()) as manager:
        manager.delete(1)
        assert manager.list_checkpoints() == [2]
    assert f"the coordinator could not be notified that steps [1] were deleted: {AWAY}" in caplog.text


def test_what_anyone_deleted_from_storage_is_dropped_from_the_index_and_what_is_committed_meanwhile_is_not(
    storage: Interrupted, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(joint, "SEE_LOOKS", 1)
    with CheckpointManager(storage=storage) as alone:
        for step in (2, 3):
            alone.save({"w": np.full(3, step)}, step)
        coordinator = Coordinator()
        coordinator.known = [1, 2, 3, 4]
        # After storage was listed, and before the coordinator is asked.
        coordinator.before_listing = lambda: alone.save({"w": np.full(3, 4)}, 4)
        with CheckpointManager(storage=storage, coordinator=coordinator) as manager:
            manager.load()
    assert coordinator.adopted == [2, 3]
    assert coordinator.forgotten == [1]


def test_a_storage_that_has_nothing_of_what_the_coordinator_lists_may_be_another_one(
    storage: Interrupted, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(joint, "SEE_LOOKS", 1)
    with CheckpointManager(storage=storage) as alone:
        alone.save({"w": np.ones(3)}, 7)
    coordinator = Coordinator()
    coordinator.known = [1, 2]
    with CheckpointManager(storage=storage, coordinator=coordinator) as manager:
        manager.load()
    assert coordinator.forgotten == []
