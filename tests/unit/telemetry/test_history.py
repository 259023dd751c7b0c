"""What becomes of commands and events: what is marked on the time axis, what is counted, and what is forgotten."""

from __future__ import annotations

import math

import pytest

from strata.cluster import Cluster, Limits
from strata.cluster import commands as c
from strata.cluster.events import BarrierReleased, Cause, Event
from strata.cluster.replies import Done
from strata.cluster.values import CommitRecord, Divergence, PartReport, WorkerAccount
from strata.coordinator.telemetry import history as module
from strata.coordinator.telemetry.event_store import EventStore
from strata.coordinator.telemetry.feed import Feed, Latencies
from strata.coordinator.telemetry.history import History
from strata.coordinator.telemetry.job_history import MarkNote
from strata.coordinator.telemetry.reckoning import reckon_job
from strata.errors import StrataError


class Told:
    """A cluster whose feed fills a history, as the dispatcher's does."""

    def __init__(self) -> None:
        self.cluster = Cluster(Limits())
        self._feed = Feed()
        self.history = History(self._feed, EventStore("life"))
        self._now_s = 1_000.0

    def apply(self, command: c.JobCommand) -> None:
        self._now_s += 1.0
        before = self.cluster.events.following
        reply, effects = self.cluster.apply(command, self._now_s)
        assert not isinstance(reply, StrataError)
        said = self.cluster.events.since(before)[1]
        self._feed.note(command, at_s=self._now_s, took_s=0.0, reply=reply, effects=effects, events=said)
        self.history.drain(self._now_s)

    def marks(self) -> list[str]:
        return [mark.kind for mark in self.history.job("job").marks]


def train(told: Told, *, step: int, diverged: Divergence | None = None) -> None:
    """Two workers join, restore, and commit a step."""
    for worker in ("a", "b"):
        told.apply(c.RegisterWorker(job_id="job", worker_id=worker, incarnation="1-x"))
    own = {"job_id": "job", "incarnation": "1-x", "generation": 2}
    told.apply(c.AskRestorePoint(worker_id="a", **own))
    commit(told, step=step, diverged=diverged)


def commit(told: Told, *, step: int, diverged: Divergence | None = None) -> None:
    own = {"job_id": "job", "incarnation": "1-x", "generation": 2}
    for worker in ("a", "b"):
        report = PartReport(f"{worker}-{step}", 10, "d")
        told.apply(c.ReportPart(worker_id=worker, step=step, epoch=0, report=report, progress=0, **own))
    record = CommitRecord(step, 0, "m", "[]", diverged)
    told.apply(c.ConfirmCommit(worker_id="a", **own, **record._asdict()))


def test_a_rewind_is_marked_as_one_and_counts_once() -> None:
    told = Told()
    train(told, step=5)
    told.apply(c.RewindJob(job_id="job", number=1, to_step=0, reason="to step 0: loss spike"))
    assert told.marks() == ["joined", "joined", "rollback", "committed", "rewind"]
    assert told.history.job("job").causes["rewound"] == 1
    assert told.history.observations.changes["rewound"] == 1


def test_ranks_that_differ_are_marked() -> None:
    told = Told()
    train(told, step=5, diverged=Divergence((1,), "head.weight", 1))
    (mark,) = (mark for mark in told.history.job("job").marks if mark.kind == "diverged")
    assert "rank 1 held other values of head.weight" in mark.label


def test_a_checkpoint_that_cannot_be_restored_is_marked_with_its_step_and_why() -> None:
    told = Told()
    train(told, step=5)
    commit(told, step=6)
    own = {"job_id": "job", "worker_id": "a", "incarnation": "1-x"}
    told.apply(c.Goodbye(job_id="job", worker_id="b", incarnation="1-x"))
    told.apply(c.AskRestorePoint(generation=3, **own))
    told.apply(c.RejectCheckpoint(generation=3, step=6, reason="a part is gone", **own))
    (mark,) = (mark for mark in told.history.job("job").marks if mark.kind == "rejected")
    assert (mark.label, mark.step) == ("step 6 cannot be restored: a part is gone", 6)


def test_a_checkpoint_that_is_given_up_is_marked_and_counted() -> None:
    told = Told()
    train(told, step=5)
    report = PartReport("a-8", 10, "d")
    own = {"job_id": "job", "worker_id": "a", "incarnation": "1-x", "generation": 2}
    told.apply(c.ReportPart(step=8, epoch=0, report=report, progress=0, **own))
    told.apply(c.AbortCheckpoint(job_id="job", step=8, reason="it takes too long"))
    job = told.history.job("job")
    assert job.marks[-1][1:] == ("aborted", "step 8: it takes too long", 8)
    assert (job.checkpoints[8].aborted, told.history.observations.aborted) == ("it takes too long", 1)


def test_the_step_that_a_worker_was_in_when_it_was_declared_dead_is_lost_time() -> None:
    told = Told()
    told.apply(c.RegisterWorker(job_id="job", worker_id="a", incarnation="1-x"))
    account = WorkerAccount(0.5, 0.5, 0.0, 0.0, 0.0, 0.0, 0.0, 0.0, 1, 0, 0, 1, 0)
    for _ in range(9):  # after the first it has nothing new to say, and lives
        told.apply(c.Heartbeat(job_id="job", worker_id="a", incarnation="1-x", step=1, account=account))
    told.apply(c.FailWorkers(job_id="job", workers=(("a", "1-x"),), reason="silent", cause=Cause.HUNG))
    parts = reckon_job(told.history.job("job")).parts
    assert (parts["compute"], parts["repeated"]) == pytest.approx((0.5, 8.0))


def failure(job_id: str, at_s: float, *, cause: Cause = Cause.CRASHED) -> Event:
    return Event(at_s, job_id, None, "generation changed", "2: a crashed", cause)


def test_failures_that_only_the_journal_knows_are_counted_after_a_restart() -> None:
    history = History(Feed(), EventStore("life"))
    history.job("known").note_change("crashed", is_failure=True, at_s=50.0, label="a crashed")
    history.recover(
        [
            failure("known", 50.0),
            failure("known", 60.0),
            failure("known", 70.0, cause=Cause.LEFT),
            failure("new", 40.0),
            failure("removed", 45.0),
            Event(46.0, "removed", None, "job removed", "removed by an operator"),
        ]
    )
    assert {job_id: (job.failures, job.last_failure_s) for job_id, job in history.jobs.items()} == {
        "known": (2, 60.0),
        "new": (1, 40.0),
    }
    assert list(history.job("new").marks) == [MarkNote(40.0, "failure", "2: a crashed")]


def test_a_coordinator_that_takes_over_shows_each_event_once() -> None:
    feed = Feed()
    history = History(feed, EventStore("life"))
    events = [failure("job", float(number)) for number in range(4)]
    for event in events[:2]:
        feed.tell(event)
    feed.replay(events)  # what it had followed as a standby, and what came since
    history.drain(10.0)
    found = history.events.find(after=None, job_id=None, kind=None, limit=10)
    assert [event.at_s for _, event in found.events] == [0.0, 1.0, 2.0, 3.0]


def test_of_very_many_jobs_the_longest_silent_is_forgotten(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "MAX_JOBS", 3)
    history = History(Feed(), EventStore("life"))
    for job_id in ("a", "b", "c", "a", "d"):
        history.job(job_id)
    assert list(history.jobs) == ["c", "a", "d"]


def release(feed: Feed, history: History, number: int, waited_s: float = 2.0) -> None:
    released = BarrierReleased(job_id="job", to=("a",), name=f"b{number}", generation=1, payloads=(), waited_s=waited_s)
    said = c.ArriveAtBarrier(job_id="job", worker_id="a", incarnation="1-x", generation=1, name=released.name)
    feed.note(said, 100.0, 0.0, Done(), [released], [])
    history.drain(100.0)


def test_a_release_that_is_told_again_is_counted_once_and_the_memory_of_them_is_bounded(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(module, "MAX_RELEASES", 2)
    feed = Feed()
    history = History(feed, EventStore("life"))
    for number in (1, 1, 2, 1):
        release(feed, history, number)
    assert (history.job("job").releases, history.observations.barrier_waits.sum_s) == (2, 4.0)
    release(feed, history, 3)  # the first one is forgotten
    release(feed, history, 1)
    assert history.job("job").releases == 4
    release(feed, history, 4, waited_s=math.inf)  # as a worker may have brought it after a restart
    assert history.job("job").releases == 4


def test_requests_at_a_steady_rate_are_shown_as_one_however_unevenly_they_are_counted() -> None:
    feed = Feed()
    history = History(feed, EventStore("x"))
    latencies = feed.latencies[c.Heartbeat] = Latencies()
    for now_s in (100.0, 100.9, 103.1, 103.2, 106.0, 109.9, 110.0):
        latencies.counts[0] = round(400 * (now_s - 100.0))
        history.drain(now_s)
    assert [bucket.requests for bucket in history.requests] == [800] * 5
    history.drain(90.0)  # a clock that goes back counts nothing twice
    assert sum(bucket.requests for bucket in history.requests) == 4_000
