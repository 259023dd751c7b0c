"""What a job is doing is shown with what it waits for, and events are sent once across a replay of the journal."""

from __future__ import annotations

from strata.clock import SystemClock
from strata.cluster import Limits
from strata.cluster import commands as c
from strata.cluster.access import LOCAL
from strata.cluster.values import CommitRecord, PartReport
from strata.coordinator.dispatcher import Dispatcher
from strata.coordinator.journal import MemoryJournal
from strata.coordinator.status import FollowedEvents, describe


def start(journal: MemoryJournal) -> Dispatcher:
    return Dispatcher(journal, limits=Limits(), clock=SystemClock(), deliver=lambda _: None)


async def register(dispatcher: Dispatcher, worker: str) -> None:
    await dispatcher.ask(c.RegisterWorker(worker_id=worker, incarnation="1"))


async def test_a_job_shows_which_workers_its_barriers_and_checkpoints_wait_for_and_what_was_rejected() -> None:
    dispatcher = start(MemoryJournal())
    for worker in "ab":
        await register(dispatcher, worker)
    records = tuple(CommitRecord(step, 0, f"step_{step}/metadata.json", "[]") for step in (1, 2))
    await dispatcher.ask(c.AdoptCheckpoints(checkpoints=records))
    sender = {"worker_id": "a", "incarnation": "1"}
    await dispatcher.ask(c.AskRestorePoint(**sender, generation=2))
    await dispatcher.ask(c.RejectCheckpoint(**sender, generation=2, step=2, reason="a part is gone"))
    await dispatcher.ask(c.AskRestorePoint(**sender, generation=3))
    await dispatcher.ask(c.ArriveAtBarrier(**sender, generation=3, name="epoch"))
    report = PartReport("step_5/a", 1, "")
    await dispatcher.ask(c.ReportPart(**sender, generation=3, step=5, epoch=0, report=report))
    await dispatcher.ask(c.RegisterDataset(dataset_id="d", total_samples=95, shard_size=10))
    (job,) = describe(dispatcher.cluster, LOCAL, now_s=dispatcher.now_s()).jobs
    assert [(each.name, each.arrived, each.expected, list(each.missing)) for each in job.barriers] == [
        ("epoch", 1, 2, ["b"])
    ]
    assert [(each.step, each.writing, list(each.missing)) for each in job.pending] == [(5, False, ["b"])]
    assert [(each.step, each.reason) for each in job.rejected] == [(2, "a part is gone")]
    assert [each.step for each in job.checkpoints] == [1]
    assert [(each.dataset_id, each.total_samples, each.total_shards) for each in job.datasets] == [("d", 95, 10)]


async def test_whoever_follows_events_goes_on_after_the_last_one_when_the_journal_was_replayed() -> None:
    journal = MemoryJournal()
    before = start(journal)
    await register(before, "a")
    followed, events = FollowedEvents("").look(before.cluster, once=True)
    assert [event.reason for event in events] == ["1: a joined"]
    after = start(journal)
    await register(after, "b")
    followed, events = followed.look(after.cluster, once=True)
    assert [event.reason for event in events] == ["2: b joined"]
    assert followed.look(after.cluster, once=True)[1] == []
