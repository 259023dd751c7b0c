"""History: all that the feed told, by job; read and written by one thread."""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Sequence

from strata.cluster import commands as c
from strata.cluster import events as e
from strata.coordinator.telemetry.buckets import Tiers
from strata.coordinator.telemetry.event_store import EventStore
from strata.coordinator.telemetry.feed import Feed, Item, Replayed, Rewound
from strata.coordinator.telemetry.job_history import JobHistory, MarkNote
from strata.coordinator.telemetry.observations import Observations

# Of so many jobs is a history kept; the one that was silent for longest is forgotten first.
MAX_JOBS = 200
# Releases are told again to workers that missed them; so many are remembered, to count each once.
MAX_RELEASES = 4_096
RATE_S = 10.0
# What is marked on the time axis beside changes of the generation, and as what.
_MARKED = {"rolled back": "rollback", "rewound": "rewind", "replicas diverged": "diverged"}


class History:
    """The histories of all jobs, the events, and what Prometheus counts. ``version`` grows when something is new."""

    def __init__(self, feed: Feed, events: EventStore) -> None:
        self._feed = feed
        self.events = events
        self.jobs: dict[str, JobHistory] = {}
        self.requests = Tiers()
        self.observations = Observations()
        self.version = 0
        self.requests_per_s: float | None = None
        self._rates: deque[tuple[float, int]] = deque()
        self._releases: dict[tuple[str, int, str, int], None] = {}

    def job(self, job_id: str) -> JobHistory:
        """Return the history of a job, to add to it."""
        history = self.jobs.pop(job_id, None) or JobHistory(job_id)
        # The last one that was heard of is the last one of the dict, and the first one is the longest silent.
        self.jobs[job_id] = history
        if len(self.jobs) > MAX_JOBS:
            del self.jobs[next(iter(self.jobs))]
        return history

    def find(self, job_id: str) -> JobHistory:
        """Return the history of a job, to look at; an empty one if nothing was heard."""
        return self.jobs.get(job_id) or JobHistory(job_id)

    @property
    def failures(self) -> int:
        """How many failures of the jobs that it knows were counted."""
        return sum(job.failures for job in self.jobs.values())

    def recover(self, replayed: Sequence[e.Event]) -> None:
        """Count the failures that the journal knows and this history does not: its coordinator was killed meanwhile."""
        unknown: dict[str, list[e.Event]] = {}
        for event in replayed:
            if event.kind == "job removed":
                unknown.pop(event.job_id, None)
            elif event.kind == "generation changed" and event.cause is not None and event.cause.is_failure:
                unknown.setdefault(event.job_id, []).append(event)
        for job_id, events in unknown.items():
            last_s = self.find(job_id).last_failure_s
            for event in events:
                if last_s is None or event.at_s > last_s:
                    self._note_change(event)

    def note_start(self, now_s: float) -> None:
        """Mark that the coordinator was started again, in every job that it knows."""
        for job in self.jobs.values():
            job.note_mark(MarkNote(now_s, "coordinator", "the coordinator was started"))

    def drain(self, now_s: float, *, most: int | None = None) -> bool:
        """Take over what the feed holds, at most so many items of it; return whether that was all."""
        items = self._feed.take(most)
        self._count_requests(now_s)
        for item in items:
            self._take(item)
        self.version += bool(items)
        return most is None or len(items) < most

    def _count_requests(self, now_s: float) -> None:
        total = self._feed.requests
        if self._rates and total > self._rates[-1][1]:
            self._lay_requests(total - self._rates[-1][1], since_s=self._rates[-1][0], until_s=now_s)
        self._rates.append((now_s, total))
        while len(self._rates) > 2 and self._rates[1][0] <= now_s - RATE_S:
            self._rates.popleft()
        first_s, first = self._rates[0]
        if now_s - first_s >= 1.0:
            before, self.requests_per_s = self.requests_per_s, round((total - first) / (now_s - first_s), 1)
            # Also when nobody asks any more: then it falls to nothing, and is to be seen doing so.
            self.version += before != self.requests_per_s

    def _lay_requests(self, count: int, *, since_s: float, until_s: float) -> None:
        """Lay requests evenly onto the time in which they came: that they are counted now and then is no news."""
        at_s, laid = since_s, 0
        while laid < count:
            bucket = self.requests.at(at_s)
            stop_s = min(until_s, bucket.start_s + bucket.width_s)
            stop_s = stop_s if stop_s > at_s else until_s
            due = count if stop_s >= until_s else round(count * (stop_s - since_s) / (until_s - since_s))
            bucket.requests += due - laid
            at_s, laid = stop_s, due

    def _take(self, item: Item) -> None:
        at_s, content = item
        match content:
            case c.Heartbeat(account=account) if account is not None:
                heard = self.job(content.job_id).hear(
                    content.worker_id,
                    content.incarnation,
                    account,
                    step=content.step,
                    metrics=content.resources,
                    at_s=at_s,
                )
                if heard is not None:
                    self.observations.note_account(heard.before, heard.after)
                    for save in heard.saves:
                        self.observations.note_save(save)
            case c.RegisterWorker():
                self.job(content.job_id).join(content.worker_id, content.incarnation, at_s=at_s)
            case c.Goodbye(cause=cause):
                job = self.job(content.job_id)
                # The step that a worker was in is lost too if it starts again because of another one.
                is_lost = cause.is_failure or cause is e.Cause.REGROUPED
                (job.fail if is_lost else job.leave)([content.worker_id])
            case c.FailWorkers():
                self.job(content.job_id).fail(worker_id for worker_id, _ in content.workers)
            case c.ReportPart():
                self.job(content.job_id).begin_checkpoint(content.step, at_s=at_s)
            case c.RejectCheckpoint():
                label = f"step {content.step} cannot be restored: {content.reason}"
                self.job(content.job_id).note_mark(MarkNote(at_s, "rejected", label, content.step))
            case Rewound():
                self.job(content.job_id).rewind(content.step, generation=content.generation)
            case Replayed():
                self.events.resume(content.events)
            case e.Event():
                self._take_event(content)
            case e.BarrierReleased():
                self._take_release(content, at_s)
            case e.ManifestWanted():
                track = self.job(content.job_id).checkpoint(content.step)
                track.size_bytes = sum(report.size_bytes for report in content.reports)
                track.parts = len(content.reports)
            case e.CheckpointCommitted():
                job = self.job(content.job_id)
                job.note_commit(content.step, at_s=at_s)
                self.observations.note_commit(job.checkpoint(content.step))
            case e.CheckpointAborted():
                job = self.job(content.job_id)
                job.checkpoint(content.step).aborted = content.reason
                job.note_mark(MarkNote(at_s, "aborted", f"step {content.step}: {content.reason}", content.step))
                self.observations.aborted += 1
            case _:
                pass

    def _take_event(self, event: e.Event) -> None:
        self.events.extend([event])
        if event.kind == "job removed":
            self.jobs.pop(event.job_id, None)
            return
        if event.kind == "generation changed" and event.cause is not None:
            self._note_change(event)
            self.observations.changes[event.cause] += 1
        elif (kind := _MARKED.get(event.kind)) is not None:
            self.job(event.job_id).note_mark(MarkNote(event.at_s, kind, event.reason))

    def _note_change(self, event: e.Event) -> None:
        assert event.cause is not None
        self.job(event.job_id).note_change(
            event.cause, is_failure=event.cause.is_failure, at_s=event.at_s, label=event.reason
        )

    def _take_release(self, released: e.BarrierReleased, at_s: float) -> None:
        key = released.job_id, released.generation, released.name, released.round
        if key in self._releases or not math.isfinite(released.waited_s):
            return
        self._releases[key] = None
        if len(self._releases) > MAX_RELEASES:
            del self._releases[next(iter(self._releases))]
        job = self.job(released.job_id)
        job.releases += 1
        job.tiers.at(at_s).note_wait(released.waited_s)
        self.observations.barrier_waits.observe(released.waited_s)
