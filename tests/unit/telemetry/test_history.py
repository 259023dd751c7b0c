"""What becomes of events: which are marked on the time axis, and which count as a change of the generation."""

from __future__ import annotations

from strata.cluster import Cluster, Limits
from strata.cluster import commands as c
from strata.cluster.values import CommitRecord, Divergence, PartReport
from strata.coordinator.telemetry.event_store import EventStore
from strata.coordinator.telemetry.feed import Feed, Latencies
from strata.coordinator.telemetry.history import History
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
