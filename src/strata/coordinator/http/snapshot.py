"""Snapshots: immutable copies of what the cluster knows, taken in slices so that no heartbeat waits for one.

They are taken when someone asks, and told when all that they rest on is durable.
"""

from __future__ import annotations

import asyncio
from collections.abc import Generator, Mapping
from dataclasses import dataclass
from typing import NamedTuple

from strata.cluster import Cluster
from strata.cluster.barriers import Release
from strata.cluster.job import Job
from strata.cluster.ledger.epoch_ledger import EpochView
from strata.cluster.lifecycle.job_state import Verdict
from strata.cluster.membership import GONE, Member
from strata.cluster.values import CommitRecord
from strata.coordinator.dispatcher import Dispatcher
from strata.coordinator.sessions import Sessions
from strata.coordinator.telemetry.feed import Feed
from strata.errors import JournalUnavailableError, NotLeaderError
from strata.sharding import Assignment, DatasetParams, RangeSet

# So many workers are copied before others have their turn on the coordinator's loop: some tenths of a millisecond.
SLICE = 200
ATTEMPTS = 3
MAX_BARRIERS = 100
MAX_EPOCHS = 20


class WorkerCopy(NamedTuple):
    """A member of a job."""

    worker_id: str
    incarnation: str
    rank: int
    state: str
    is_present: bool
    address: str
    gpu_count: int
    memory_bytes: int
    step: int
    epoch: int
    resources: Mapping[str, float]
    last_seen_s: float
    lease_until_s: float
    is_connected: bool


class DatasetCopy(NamedTuple):
    """A dataset, the views of its newest epochs, and who owns its shards if that was worked out."""

    params: DatasetParams
    epochs: tuple[EpochView, ...]
    assignment: Assignment | None
    skipped: RangeSet


class BarrierCopy(NamedTuple):
    """An open barrier."""

    name: str
    round: int
    expected: int
    began_s: float
    deadline_s: float
    arrived: tuple[str, ...]


class PendingCopy(NamedTuple):
    """A checkpoint under way."""

    step: int
    epoch: int
    began_s: float
    is_collecting: bool
    expected: int
    missing: tuple[str, ...]
    size_bytes: int


@dataclass(frozen=True, slots=True)
class JobCopy:
    """A job as it was at one moment. ``key`` is its full name, and ``job_id`` the one that whoever looks has for it."""

    key: str
    job_id: str
    generation: int
    waits_for: int
    min_workers: int
    max_workers: int | None
    workers: tuple[WorkerCopy, ...]
    """Those present by rank, then those that are gone by name."""
    datasets: tuple[DatasetCopy, ...]
    barriers: tuple[BarrierCopy, ...]
    ending: Verdict
    """How it ended; it is in this state while no worker is present."""
    releases: tuple[Release, ...]
    committed: tuple[CommitRecord, ...]
    pending: tuple[PendingCopy, ...]
    rejected: tuple[tuple[int, str], ...]

    @property
    def present(self) -> tuple[WorkerCopy, ...]:
        """The workers that are neither failed nor gone, by rank."""
        return tuple(worker for worker in self.workers if worker.is_present)


@dataclass(frozen=True, slots=True)
class Snapshot:
    """All jobs, and how the coordinator is. ``version`` grows with what the coordinator does."""

    version: int
    jobs: Mapping[str, JobCopy]
    refusal: str
    channels: int
    channels_by_tenant: Mapping[str, int]
    """Of every tenant that there is, also of those without any."""


def copy_jobs(cluster: Cluster) -> Generator[None, None, dict[str, JobCopy]]:
    """Copy all jobs; it yields after each slice of work, and returns the copies."""
    jobs: dict[str, JobCopy] = {}
    for job_id in cluster.jobs():
        if job_id in cluster:
            jobs[job_id] = yield from _copy_job(cluster.job(job_id))
            yield
    return jobs


def _copy_job(job: Job) -> Generator[None, None, JobCopy]:
    for attempt in range(1, ATTEMPTS + 1):
        generation, workers = job.membership.generation, []
        for count, member in enumerate(job.membership.everyone(), start=1):
            workers.append(_copy_member(member))
            if count % SLICE == 0:
                yield
        # While a thousand workers join, every slice sees another generation: then a mixture has to do.
        if job.membership.generation == generation or attempt == ATTEMPTS:
            break
    workers.sort(key=lambda worker: (not worker.is_present, worker.rank if worker.is_present else 0, worker.worker_id))
    yield
    pending = tuple(
        PendingCopy(
            each.step,
            each.epoch,
            each.begun_s,
            each.is_collecting,
            len(each.expected),
            tuple(each.missing()) if each.is_collecting else (),
            sum(report.size_bytes for report in each.reports.values()),
        )
        for each in job.commits.pending.values()
    )
    yield
    return JobCopy(
        key=job.job_id,
        job_id=job.job_id,
        generation=generation,
        waits_for=job.membership.waits_for(),
        min_workers=job.membership.min_workers,
        max_workers=job.membership.max_workers,
        workers=tuple(workers),
        datasets=tuple(DatasetCopy(*each) for each in job.ledger.copy(newest_epochs=MAX_EPOCHS)),
        barriers=tuple(
            BarrierCopy(
                barrier.name,
                barrier.meeting.round,
                barrier.expected,
                next(iter(barrier.arrivals.values()))[0],
                barrier.deadline_s,
                tuple(barrier.arrivals),
            )
            for barrier in job.barriers.open()[:MAX_BARRIERS]
        ),
        ending=job.ending.verdict,
        releases=tuple(job.barriers.history),
        committed=tuple(job.commits.committed.values()),
        pending=pending,
        rejected=tuple((step, rejected.reason) for step, rejected in job.commits.rejected.items()),
    )


def _copy_member(member: Member) -> WorkerCopy:
    # A heartbeat replaces the resources and never changes them, so they can be shared.
    return WorkerCopy(
        member.worker_id,
        member.incarnation,
        member.rank,
        str(member.state),
        member.state not in GONE,
        member.address,
        member.gpu_count,
        member.memory_bytes,
        member.step,
        member.epoch,
        member.resources,
        member.last_seen_s,
        member.lease_until_s,
        not member.channel_lost,
    )


class Snapshots:
    """Belongs to the coordinator's loop; other threads ask for :meth:`take` through it."""

    def __init__(self, dispatcher: Dispatcher, sessions: Sessions, feed: Feed) -> None:
        self._dispatcher = dispatcher
        self._sessions = sessions
        self._feed = feed

    async def take(self) -> Snapshot:
        """Return a copy of what is known now, when all that it rests on is durable.

        If the journal refuses meanwhile, what was copied may be undone, and it is copied again.
        """
        while True:
            if self._dispatcher.refuse() is not None:
                # A standby says nothing of jobs: it may be behind.
                return Snapshot(self._feed.changes, {}, "", len(self._sessions.open), {})
            version, cluster = self._feed.changes, self._dispatcher.cluster
            copying = copy_jobs(cluster)
            jobs: dict[str, JobCopy] | None = None
            while jobs is None:
                try:
                    next(copying)
                except StopIteration as done:
                    jobs = done.value
                else:
                    await asyncio.sleep(0)
            # Told when everything that was applied until now is written; from another cluster if it was not.
            try:
                is_same = await self._dispatcher.ask_state(lambda current: current) is cluster
            except NotLeaderError:
                continue
            if is_same:
                refusal: JournalUnavailableError | None = self._dispatcher.refusal
                why, bounds = "" if refusal is None else str(refusal), self._dispatcher.bounds
                channels = {each.name: bounds.use(each.name)["channels"] for each in cluster.access.tenants()}
                return Snapshot(version, jobs, why, len(self._sessions.open), channels)
