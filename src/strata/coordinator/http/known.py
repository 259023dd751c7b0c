"""Known: what an answer is made from, all of one moment."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import NamedTuple

from strata.cluster.access import Principal
from strata.cluster.access.names import owns, shown
from strata.coordinator.http.snapshot import JobCopy, Snapshot
from strata.coordinator.replication.leadership import Leadership
from strata.coordinator.telemetry.history import History
from strata.coordinator.telemetry.reckoning import Straggler, find_stragglers
from strata.errors import UnknownJobError
from strata.sharding import Assignment


@dataclass(frozen=True, slots=True, kw_only=True)
class Facts:
    """What never changes while a coordinator runs."""

    version: str
    started_s: float
    journal: str
    grpc_port: int
    channel_port: int


@dataclass(frozen=True, slots=True)
class Known:
    """A snapshot of the cluster, the histories of its jobs, and what shards moved."""

    snapshot: Snapshot
    history: History
    facts: Facts
    moves: Moves
    rows: WorkerRows
    leadership: Leadership
    is_whole: bool = True
    """Whether whoever looks is shown what all tenants together do: how many requests, and how long they took."""

    def as_seen_by(self, principal: Principal) -> Known:
        """Return the same with only what a caller is shown: its tenant's jobs, by its names of them, and connections.

        What is counted for all tenants in one is for administrators, and for a tenant that is the only one.
        """
        if principal.sees_all:
            return self
        own = [job for key, job in self.snapshot.jobs.items() if owns(principal, key)]
        renamed = (replace(job, job_id=shown(principal, job.key)) for job in own)
        channels = self.snapshot.channels_by_tenant
        snapshot = replace(
            self.snapshot,
            jobs={job.job_id: job for job in renamed},
            channels=channels.get(principal.tenant, 0),
            channels_by_tenant={},
        )
        is_whole = channels.keys() == {principal.tenant} and principal.jobs == "*"
        return replace(self, snapshot=snapshot, is_whole=is_whole)

    @property
    def requests_per_s(self) -> float | None:
        """How many requests came each second, lately."""
        return self.history.requests_per_s if self.is_whole else None

    def stragglers(self, job: JobCopy) -> list[Straggler]:
        """Return the ranks of a job that are slower than the others."""
        return self.rows.stragglers(self.history, job)

    def job(self, job_id: str | None) -> JobCopy:
        """Return a job; without a name the busiest one, or raise UnknownJobError if there is none."""
        jobs = self.snapshot.jobs
        if job_id is None:
            found = self.find_job()
            if found is None:
                raise UnknownJobError("default", known=jobs)
            return found
        if job_id not in jobs:
            raise UnknownJobError(job_id, known=jobs)
        return jobs[job_id]

    def find_job(self) -> JobCopy | None:
        """Return the job with most workers, and of those without any the one that was heard of last."""

        def rank(job: JobCopy) -> tuple[int, float, str]:
            return len(job.present), self.history.find(job.key).until_s or 0.0, job.job_id

        return max(self.snapshot.jobs.values(), key=rank, default=None)


class Moves:
    """How many shards of each dataset changed hands when its workers last changed, as far as anyone looked."""

    def __init__(self) -> None:
        self._last: dict[tuple[str, str], tuple[Assignment | None, int | None]] = {}

    def count(self, job: JobCopy, place: int) -> int | None:
        """Return how many moved at the last change; None if no change was seen."""
        dataset = job.datasets[place]
        key, assignment = (job.key, dataset.params.dataset_id), dataset.assignment
        before, moved = self._last.get(key, (None, None))
        if assignment is None or assignment is before:
            return moved
        if before is not None and before.num_shards == assignment.num_shards:
            moved = len(assignment.moved_from(before))
        self._last[key] = assignment, moved
        return moved

    def forget(self, snapshot: Snapshot) -> None:
        """Forget jobs that are gone; another one of the same name has moved nothing yet."""
        # A list first: a heavy answer counts in another thread meanwhile.
        for key in list(self._last):
            if key[0] not in snapshot.jobs:
                self._last.pop(key, None)


class Encoded(NamedTuple):
    """An answer that is JSON already."""

    body: bytes


class WorkerRows:
    """Workers as JSON, kept: of a thousand, a few have changed since the last look.

    To encode all of them at once would hold the interpreter for milliseconds, and heartbeats would wait for it.
    """

    def __init__(self) -> None:
        self._rows: dict[str, dict[str, tuple[tuple[object, ...], bytes]]] = {}
        self._slow: dict[str, tuple[int, int, list[Straggler]]] = {}

    def of(self, job_id: str) -> dict[str, tuple[tuple[object, ...], bytes]]:
        """Return the rows of a job by worker, each with what it was made from."""
        return self._rows.setdefault(job_id, {})

    def forget(self, snapshot: Snapshot) -> None:
        """Forget jobs and workers that are gone."""
        for job_id in (self._rows.keys() | self._slow.keys()) - snapshot.jobs.keys():
            self._rows.pop(job_id, None)
            self._slow.pop(job_id, None)
        for job_id, rows in self._rows.items():
            if len(rows) > len(snapshot.jobs[job_id].workers):
                known = {worker.worker_id for worker in snapshot.jobs[job_id].workers}
                for worker_id in rows.keys() - known:
                    del rows[worker_id]

    def stragglers(self, history: History, job: JobCopy) -> list[Straggler]:
        """Return the ranks that are slower than the others, worked out once for each change."""
        version, generation, found = self._slow.get(job.key, (-1, -1, []))
        if (version, generation) != (history.version, job.generation):
            present = [worker.worker_id for worker in job.present]
            found = find_stragglers(history.find(job.key).workers, present)
            self._slow[job.key] = history.version, job.generation, found
        return found
