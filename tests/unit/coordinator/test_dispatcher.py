"""Nothing is told before it is durable, one fsync serves many, and a full disk loses nothing."""

from __future__ import annotations

import asyncio
import errno
import io
import json
import logging
import threading
from collections.abc import Callable, Sequence
from functools import partial

import pytest
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter

from strata.clock import ManualClock, SystemClock
from strata.cluster import Cluster, Limits
from strata.cluster import commands as c
from strata.cluster.events import Cause, Effect, GenerationChanged
from strata.cluster.replies import HeartbeatReply, Registered, ShardLease
from strata.coordinator import dispatcher as module
from strata.coordinator.dispatcher import Dispatcher
from strata.coordinator.failing.fail_stop import FailStop
from strata.coordinator.journal import Entry, MemoryJournal, compaction
from strata.coordinator.logs import JsonFormatter, TextFormatter
from strata.coordinator.replication.leadership import Leader, Leadership
from strata.coordinator.sharing.turns import Turns
from strata.coordinator.status import FollowedEvents
from strata.coordinator.telemetry.feed import Feed
from strata.coordinator.telemetry.job_traces import JobsTraces
from strata.errors import (
    BadCommandError,
    CoordinatorLostError,
    JournalBrokenError,
    JournalDamagedError,
    JournalUnavailableError,
    NotLeaderError,
    StaleGenerationError,
    StaleIncarnationError,
    StrataError,
)
from strata.sharding import DataOrder
from strata.tracing.open_telemetry import OpenTelemetryTracing
from strata.tracing.trace_names import TRACES_KEY, derive_ids, recovery_trace
from tests.testbed.pace import stretch
from tests.testbed.slow_journal import SlowJournal


def start(journal: MemoryJournal) -> tuple[Dispatcher, list[Effect]]:
    effects: list[Effect] = []
    return Dispatcher(journal, limits=Limits(), clock=SystemClock(), deliver=effects.append), effects


def register(worker: str) -> c.RegisterWorker:
    return c.RegisterWorker(worker_id=worker, incarnation="1")


def beat(worker: str) -> c.Heartbeat:
    return c.Heartbeat(worker_id=worker, incarnation="1")


async def test_a_reply_and_its_effects_wait_for_the_disk() -> None:
    journal = SlowJournal()
    dispatcher, effects = start(journal)
    journal.gate.clear()
    asked = asyncio.create_task(dispatcher.ask(register("a")))
    await asyncio.sleep(0)
    await asyncio.sleep(0)
    assert not asked.done()
    assert effects == []
    journal.gate.set()
    assert isinstance(await asked, Registered)
    assert [type(effect) for effect in effects] == [GenerationChanged]


async def test_a_heartbeat_is_answered_at_once_unless_something_it_could_tell_is_not_durable() -> None:
    journal = SlowJournal()
    dispatcher, _ = start(journal)
    await dispatcher.ask(register("a"))
    answers: list[object] = []
    dispatcher.dispatch(beat("a"), answers.append)
    assert len(answers) == 1
    journal.gate.clear()
    joining = asyncio.create_task(dispatcher.ask(register("b")))
    await asyncio.sleep(0)
    dispatcher.dispatch(beat("a"), answers.append)
    assert len(answers) == 1
    journal.gate.set()
    await joining
    await dispatcher.ask(beat("a"))
    told = answers[1]
    assert isinstance(told, HeartbeatReply)
    assert told.generation == 2


async def test_commands_that_come_while_the_disk_is_busy_share_one_write() -> None:
    journal = SlowJournal()
    dispatcher, _ = start(journal)
    journal.gate.clear()
    asked = [asyncio.create_task(dispatcher.ask(register(f"w{number}"))) for number in range(100)]
    await asyncio.sleep(0.01)
    journal.gate.set()
    replies = await asyncio.gather(*asked)
    assert {reply.rank for reply in replies if isinstance(reply, Registered)} == set(range(100))
    assert sum(journal.batches) == 100
    assert len(journal.batches) <= 3


async def test_after_a_restart_everything_that_was_told_is_still_so() -> None:
    journal = MemoryJournal()
    dispatcher, _ = start(journal)
    for worker in "abc":
        await dispatcher.ask(register(worker))
    again, _ = start(journal)
    assert again.cluster.snapshot() == dispatcher.cluster.snapshot()
    assert isinstance(await again.ask(beat("b")), HeartbeatReply)


async def test_snapshots_keep_the_journal_short(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(compaction, "SNAPSHOT_ENTRIES", 10)
    monkeypatch.setattr(compaction, "SHARE", 0)
    journal = MemoryJournal()
    dispatcher, _ = start(journal)
    for number in range(25):
        await dispatcher.ask(register(f"w{number}"))
    state, entries = journal.load()
    assert state is not None
    assert len(entries) < 10
    again, _ = start(journal)
    assert again.cluster.snapshot() == dispatcher.cluster.snapshot()


async def test_a_journal_that_is_always_written_to_is_compacted_too(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(compaction, "SNAPSHOT_ENTRIES", 10)
    journal = SlowJournal()
    dispatcher, _ = start(journal)

    async def register_one_after_the_other(name: str) -> None:
        for number in range(20):
            await dispatcher.ask(register(f"{name}{number}"))

    # While one waits for the disk, the others have more for the next batch.
    await asyncio.gather(*(register_one_after_the_other(name) for name in "abc"))
    state, entries = journal.load()
    assert state is not None
    assert len(entries) < 60
    again, _ = start(journal)
    assert again.cluster.snapshot() == dispatcher.cluster.snapshot()


async def test_an_error_of_the_cluster_is_raised_as_it_is() -> None:
    dispatcher, _ = start(MemoryJournal())
    await dispatcher.ask(register("a"))
    with pytest.raises(StaleIncarnationError):
        await dispatcher.ask(c.Heartbeat(worker_id="a", incarnation="old"))


async def test_a_full_disk_refuses_durable_work_keeps_answering_and_recovers(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "PROBE_S", 0.01)
    journal = SlowJournal()
    dispatcher, effects = start(journal)
    await dispatcher.ask(register("a"))
    before = dispatcher.cluster.snapshot()
    told = len(effects)
    journal.full = True
    journal.gate.clear()
    refused = [asyncio.create_task(dispatcher.ask(register(worker))) for worker in "bc"]
    await asyncio.sleep(0.01)
    journal.gate.set()
    for task in refused:
        with pytest.raises(JournalUnavailableError, match="disk is full; nothing was changed"):
            await task
    # Nobody learned of a generation that is not durable, and the cluster has forgotten it.
    assert len(effects) == told
    assert dispatcher.cluster.snapshot() == before
    assert isinstance(await dispatcher.ask(beat("a")), HeartbeatReply)
    with pytest.raises(JournalUnavailableError):
        await dispatcher.ask(register("d"))
    journal.full = False
    while True:
        try:
            reply = await dispatcher.ask(register("b"))
        except JournalUnavailableError:
            await asyncio.sleep(0.01)
        else:
            break
    assert isinstance(reply, Registered)
    assert reply.generation == 2


async def test_what_time_demands_is_done_and_journaled() -> None:
    journal = MemoryJournal()
    failed = asyncio.Event()
    limits = Limits(lease_s=0.05, grace_s=0.05)
    dispatcher = Dispatcher(journal, limits=limits, clock=SystemClock(), deliver=lambda _: failed.set())
    await dispatcher.ask(register("a"))
    failed.clear()
    running = asyncio.create_task(dispatcher.run())
    await failed.wait()
    running.cancel()
    await asyncio.gather(running, return_exceptions=True)
    assert isinstance(journal.load()[1][-1][0], c.FailWorkers)


def workers_of(cluster: Cluster) -> tuple[str, ...]:
    return cluster.job("default").membership.ids()


async def test_a_question_is_answered_when_what_it_rests_on_is_durable_and_with_nothing_newer() -> None:
    journal = SlowJournal()
    dispatcher, _ = start(journal)
    await dispatcher.ask(register("a"))
    journal.gate.clear()
    joining = asyncio.create_task(dispatcher.ask(register("b")))
    await asyncio.sleep(0)
    asked = asyncio.create_task(dispatcher.ask_state(workers_of))
    await asyncio.sleep(0.01)
    later = asyncio.create_task(dispatcher.ask(register("c")))
    await asyncio.sleep(0.01)
    assert not asked.done()
    journal.gate.set()
    # The answer is of its moment: c may not be durable when it is told.
    assert await asked == ("a", "b")
    await asyncio.gather(joining, later)


async def test_after_a_failed_write_a_question_is_asked_again_of_what_is_durable() -> None:
    journal = SlowJournal()
    dispatcher, _ = start(journal)
    await dispatcher.ask(register("a"))
    journal.gate.clear()
    joining = asyncio.create_task(dispatcher.ask(register("b")))
    await asyncio.sleep(0)
    asked = [asyncio.create_task(dispatcher.ask_state(workers_of)) for _ in range(2)]
    await asyncio.sleep(0.01)
    asked.append(asyncio.create_task(dispatcher.ask_state(workers_of)))
    await asyncio.sleep(0.01)
    journal.full = True
    journal.gate.set()
    assert await asyncio.gather(*asked) == [("a",)] * 3
    with pytest.raises(JournalUnavailableError):
        await joining


async def test_events_are_told_once_when_they_are_durable_also_across_a_failed_write() -> None:
    journal = SlowJournal()
    dispatcher, _ = start(journal)
    followed = FollowedEvents("")

    async def told() -> list[str]:
        nonlocal followed
        followed, events = await dispatcher.ask_state(partial(followed.look, once=True))
        return [event.reason for event in events]

    await dispatcher.ask(register("a"))
    assert await told() == ["1: a joined"]
    journal.gate.clear()
    joining = asyncio.create_task(dispatcher.ask(register("b")))
    await asyncio.sleep(0)
    asked = asyncio.create_task(told())
    await asyncio.sleep(0.01)
    assert not asked.done()
    journal.full = True
    journal.gate.set()
    assert await asked == []
    with pytest.raises(JournalUnavailableError):
        await joining
    journal.full = False
    while True:
        try:
            await dispatcher.ask(register("c"))
        except JournalUnavailableError:
            await asyncio.sleep(0.05)
        else:
            break
    assert await told() == ["2: c joined"]


async def test_events_have_the_time_of_day_also_after_a_restart() -> None:
    clock = ManualClock()
    journal = MemoryJournal()
    dispatcher = Dispatcher(journal, limits=Limits(), clock=clock, deliver=lambda _: None)
    clock.advance(5.0)
    await dispatcher.ask(register("a"))
    later = ManualClock(wall_s=1_800_000_000.0)
    again = Dispatcher(journal, limits=Limits(), clock=later, deliver=lambda _: None)
    for each in (dispatcher, again):
        (event,) = each.cluster.events.since(0)[1]
        assert event.at_s == 1_700_000_005.0


async def test_joins_and_losses_are_logged_when_they_are_durable(caplog: pytest.LogCaptureFixture) -> None:
    journal = SlowJournal()
    dispatcher, _ = start(journal)
    with caplog.at_level("INFO"):
        journal.gate.clear()
        joining = asyncio.create_task(dispatcher.ask(register("a")))
        await asyncio.sleep(0.01)
        assert "joined" not in caplog.text
        journal.gate.set()
        await joining
        await dispatcher.ask(c.FailWorkers(workers=(("a", "1"),), reason="silent", cause=Cause.HUNG))
    joined, failed = [record for record in caplog.records if record.name == "strata.events"]
    assert (joined.levelname, joined.getMessage()) == ("INFO", "default: generation changed: 1: a joined")
    assert (failed.levelname, failed.fields["cause"]) == ("WARNING", "hung")
    line = json.loads(JsonFormatter().format(failed))
    assert (line["job"], line["event"], line["cause"]) == ("default", "generation changed", "hung")


def test_a_line_of_the_log_cannot_write_on_the_terminal_as_it_likes() -> None:
    record = logging.LogRecord("x", logging.INFO, "", 0, "\x1b[2J%s", ("two\nlines",), None)
    assert TextFormatter().format(record).endswith("INFO x: \\x1b[2Jtwo\\nlines")


async def test_an_answer_at_once_does_not_overtake_those_that_became_durable_before_it() -> None:
    due: asyncio.Queue[Callable[[], None]] = asyncio.Queue()
    turns = Turns(due.put_nowait, lambda: 0.0)
    dispatcher = Dispatcher(MemoryJournal(), limits=Limits(), clock=SystemClock(), deliver=lambda _: None, turns=turns)
    told: list[str] = []
    dispatcher.dispatch(register("a"), lambda _: told.append("registered"))
    async with asyncio.timeout(stretch(10)):
        work = await due.get()
        # By a unary call, say, which takes no turn: the registration is durable, and nobody was told of it yet.
        dispatcher.dispatch(beat("a"), lambda _: told.append("beat"))
        assert told == []
        while "beat" not in told:
            work()
            if "beat" not in told:
                work = await due.get()
    assert told == ["registered", "beat"]


async def test_a_value_that_the_cluster_refuses_is_a_bad_command() -> None:
    dispatcher, _ = start(MemoryJournal())
    await dispatcher.ask(register("a"))
    with pytest.raises(BadCommandError, match="sequence is 0; use 1 or more"):
        await dispatcher.ask(lease("a", sequence=0))

    def refuse(_: Cluster) -> None:
        raise ValueError("epoch -1 of a dataset")

    with pytest.raises(BadCommandError, match="epoch -1 of a dataset"):
        await dispatcher.ask_state(refuse)


def lease(worker: str, *, generation: int = 1, sequence: int = 1) -> c.LeaseShards:
    sender = {"worker_id": worker, "incarnation": "1", "generation": generation}
    return c.LeaseShards(**sender, dataset_id="d", epoch=0, sequence=sequence)


DATASET = c.RegisterDataset(dataset_id="d", total_samples=95, shard_size=10, data_order=DataOrder.STICKY)


async def start_with_dataset(*workers: str) -> Dispatcher:
    dispatcher, _ = start(MemoryJournal())
    for worker in workers:
        await dispatcher.ask(register(worker))
    await dispatcher.ask(DATASET)
    return dispatcher


async def test_a_large_dataset_is_dealt_in_a_thread_once_and_in_the_same_way(monkeypatch: pytest.MonkeyPatch) -> None:
    small = await start_with_dataset("a", "b")
    expected = [await small.ask(lease(worker, generation=2)) for worker in "ab"]
    monkeypatch.setattr("strata.cluster.ledger.ledger.LARGE_SHARDS", 1)
    large = await start_with_dataset("a", "b")
    runs: list[object] = []
    run = large.heavy.run
    monkeypatch.setattr(large.heavy, "run", lambda work: runs.append(work) or run(work))
    got = await asyncio.gather(*(large.ask(lease(worker, generation=2)) for worker in "ab"))
    for left, right in zip(got, expected, strict=True):
        assert isinstance(left, ShardLease)
        assert isinstance(right, ShardLease)
        assert left.spans.tolist() == right.spans.tolist()
    assert len(runs) == 1
    assert large.cluster.snapshot() == small.cluster.snapshot()


async def test_a_deal_of_a_generation_that_ended_meanwhile_is_not_used(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("strata.cluster.ledger.ledger.LARGE_SHARDS", 1)
    journal = MemoryJournal()
    dispatcher, _ = start(journal)
    await dispatcher.ask(register("a"))
    await dispatcher.ask(DATASET)
    asked = asyncio.create_task(dispatcher.ask(lease("a")))
    await asyncio.sleep(0)
    dispatcher.dispatch(register("b"), lambda _: None)
    with pytest.raises(StaleGenerationError):
        await asked
    assert dispatcher.cluster.job("default").ledger.assignment("d") is None
    await dispatcher.ask(lease("a", generation=2))
    assignment = dispatcher.cluster.job("default").ledger.assignment("d")
    assert assignment is not None
    assert assignment.workers == ("a", "b")
    # A replay of the journal deals without a thread, and must come to the same.
    again, _ = start(journal)
    assert again.cluster.snapshot() == dispatcher.cluster.snapshot()
    await dispatcher.heavy.close()


class RefusingJournal(MemoryJournal):
    """A journal that refuses to be written, and to be read, with the errors that it is given."""

    def __init__(self) -> None:
        super().__init__()
        self.on_write: Exception | None = None
        self.on_load: Exception | None = None

    def append(self, entries: Sequence[Entry]) -> None:
        if self.on_write is not None:
            raise self.on_write
        super().append(entries)

    def snapshot(self, state: bytes) -> None:
        self.append([])
        super().snapshot(state)

    def load(self) -> tuple[bytes | None, list[Entry]]:
        if self.on_load is not None:
            raise self.on_load
        return super().load()


class Leading:
    """A dispatcher that leads its replicas, and a journal that can refuse."""

    def __init__(self) -> None:
        self.clock = ManualClock()
        self.leadership = Leadership(self.clock)
        self.leadership.lead(Leader("a:1", term=5), until_s=1e9)
        self.deposed = asyncio.Event()
        self.leadership.on_step_down = self.deposed.set
        self.journal = RefusingJournal()
        self.feed = Feed()
        self.ended = asyncio.Event()
        self.fail_stop = FailStop(self.ended.set)
        self.dispatcher = Dispatcher(
            self.journal,
            limits=Limits(lease_s=5.0),
            clock=self.clock,
            deliver=lambda _: None,
            feed=self.feed,
            leadership=self.leadership,
            fail_stop=self.fail_stop,
        )


def is_probing() -> bool:
    return any(task.get_name() == "journal probe" and not task.done() for task in asyncio.all_tasks())


@pytest.mark.parametrize(
    "refusal",
    [
        NotLeaderError("", term=5),
        CoordinatorLostError("etcd://a", waited_s=1.0),
    ],
    ids=["deposed", "lost"],
)
async def test_a_write_that_the_journal_is_not_there_for_ends_the_leadership_and_forgets_what_was_applied(
    refusal: StrataError, caplog: pytest.LogCaptureFixture
) -> None:
    leading = Leading()
    await leading.dispatcher.ask(register("a"))
    leading.journal.on_write = refusal
    asked = asyncio.create_task(leading.dispatcher.ask(register("b")))
    await asyncio.sleep(0)
    looked = asyncio.create_task(leading.dispatcher.ask_state(workers_of))
    with pytest.raises(type(refusal)) as caught:
        await asked
    assert caught.value is refusal
    # A question that rested on it is not answered with it either.
    with pytest.raises(NotLeaderError, match="no leader is known"):
        await looked
    assert f"this coordinator is no longer the leader: {refusal}" in caplog.text
    assert leading.deposed.is_set()
    assert leading.dispatcher.cluster.jobs() == Cluster().jobs()
    with pytest.raises(NotLeaderError):
        await leading.dispatcher.ask(beat("a"))
    assert not is_probing()


async def test_a_leader_whose_journal_was_closed_as_it_refused_answers_and_steps_down() -> None:
    """Another one leads: the journal cannot be read, and waiting clients are answered all the same."""
    leading = Leading()
    await leading.dispatcher.ask(register("a"))
    leading.journal.on_write = JournalUnavailableError("/state", "disk is full")
    leading.journal.on_load = JournalUnavailableError("/state", "it was closed")
    with pytest.raises(JournalUnavailableError, match="disk is full"):
        await leading.dispatcher.ask(register("b"))
    assert leading.deposed.is_set()
    assert leading.dispatcher.cluster.jobs() == Cluster().jobs()
    with pytest.raises(NotLeaderError):
        await leading.dispatcher.ask(register("b"))
    assert not is_probing()


async def test_durable_work_is_refused_with_what_the_journal_said_last(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "PROBE_S", 0.0)
    leading = Leading()
    leading.journal.on_write = JournalUnavailableError("/state", "disk is full")
    with pytest.raises(JournalUnavailableError, match="disk is full"):
        await leading.dispatcher.ask(register("a"))
    leading.journal.on_write = again = JournalUnavailableError("/state", "it is read-only")
    async with asyncio.timeout(stretch(20)):
        while leading.dispatcher.refusal is not again:
            await asyncio.to_thread(lambda: None)
    with pytest.raises(JournalUnavailableError, match="it is read-only"):
        await leading.dispatcher.ask(register("a"))
    await leading.dispatcher.stand_by()


async def test_a_journal_that_is_another_leaders_when_it_is_probed_ends_the_leadership(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(module, "PROBE_S", 0.0)
    leading = Leading()
    leading.journal.on_write = JournalUnavailableError("/state", "disk is full")
    with pytest.raises(JournalUnavailableError):
        await leading.dispatcher.ask(register("a"))
    leading.journal.on_write = NotLeaderError("", term=5)
    async with asyncio.timeout(stretch(20)):
        await leading.deposed.wait()
    with pytest.raises(NotLeaderError):
        await leading.dispatcher.ask(register("a"))
    await asyncio.sleep(0)
    assert not is_probing()


UNEXPECTED = [
    JournalBrokenError("/state", "disk I/O error (SQLITE_IOERR_FSYNC)"),
    JournalDamagedError("/state", "database disk image is malformed"),
    OSError(errno.EIO, "Input/output error"),
    MemoryError(),
    RuntimeError("a bug"),
]


@pytest.mark.parametrize("error", UNEXPECTED, ids=lambda error: type(error).__name__)
@pytest.mark.parametrize("at", ["append", "snapshot", "replay", "probe"])
async def test_an_error_of_the_journal_that_is_not_known_to_pass_ends_the_coordinator_and_tells_nobody(
    at: str, error: Exception, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(module, "PROBE_S", 0.0)
    leading, full = Leading(), JournalUnavailableError("/state", "disk is full")
    dispatcher, journal = leading.dispatcher, leading.journal
    await dispatcher.ask(register("a"))
    if at == "append":
        journal.on_write = error
    elif at == "snapshot":
        monkeypatch.setattr(compaction, "SNAPSHOT_ENTRIES", 2)
        monkeypatch.setattr(journal, "snapshot", lambda _: raise_it(error))
    elif at == "replay":
        journal.on_write, journal.on_load = full, error
    else:
        journal.on_write = full
        monkeypatch.setattr(journal, "snapshot", lambda _: raise_it(error))
    answers: list[object] = []
    dispatcher.dispatch(register("b"), answers.append)
    async with asyncio.timeout(stretch(20)):
        await leading.ended.wait()
    assert leading.fail_stop.failure is error
    # What was written is acknowledged, and what was not is neither acknowledged nor refused.
    told = {"snapshot": [Registered], "probe": [JournalUnavailableError]}
    assert [type(answer) for answer in answers] == told.get(at, [])
    assert [record.levelname for record in caplog.records].count("CRITICAL") == 1


async def test_a_coordinator_without_replicas_ends_if_it_cannot_read_what_its_journal_holds() -> None:
    """With replicas another one leads; alone it would refuse everyone for ever."""
    leading, full = Leading(), JournalUnavailableError("/state", "disk is full")
    leading.leadership.lead(Leader("a:1", term=5), until_s=float("inf"))
    leading.journal.on_write = leading.journal.on_load = full
    leading.dispatcher.dispatch(register("a"), lambda _: None)
    async with asyncio.timeout(stretch(20)):
        await leading.ended.wait()
    assert leading.fail_stop.failure is full


async def test_a_command_that_breaks_half_way_ends_the_coordinator(monkeypatch: pytest.MonkeyPatch) -> None:
    leading = Leading()
    monkeypatch.setattr(leading.dispatcher.cluster, "apply", lambda *_: raise_it(KeyError("rank")))
    with pytest.raises(KeyError):
        leading.dispatcher.dispatch(register("a"), lambda _: None)
    assert isinstance(leading.fail_stop.failure, KeyError)


async def test_a_question_that_breaks_is_the_trouble_of_who_asks() -> None:
    leading = Leading()
    with pytest.raises(ZeroDivisionError):
        await leading.dispatcher.ask_state(lambda _: 1 // 0)
    assert leading.fail_stop.failure is None


def raise_it(error: Exception) -> None:
    raise error


async def test_a_coordinator_that_stands_by_forgets_everything_and_asks_its_old_journal_no_more() -> None:
    leading = Leading()
    await leading.dispatcher.ask(register("a"))
    leading.journal.on_write = JournalUnavailableError("/state", "disk is full")
    with pytest.raises(JournalUnavailableError):
        await leading.dispatcher.ask(register("b"))
    assert is_probing()
    changes = leading.feed.changes
    leading.leadership.follow(Leader("b:1", term=6))
    await leading.dispatcher.stand_by()
    await asyncio.sleep(0)
    assert not is_probing()
    assert leading.dispatcher.refusal is None
    assert leading.dispatcher.cluster.jobs() == Cluster().jobs()
    assert leading.feed.changes == changes + 1, "whoever shows the cluster sees that it has changed"


async def test_a_coordinator_that_ends_answers_what_waits_for_the_disk_however_often_it_is_told_to_end() -> None:
    journal = SlowJournal()
    dispatcher, _ = start(journal)
    running = asyncio.create_task(dispatcher.run())
    journal.gate.clear()
    asked = asyncio.create_task(dispatcher.ask(register("a")))
    for _ in range(3):
        for _ in range(5):
            await asyncio.sleep(0)
        running.cancel()
    assert not asked.done()
    journal.gate.set()
    await asyncio.gather(running, return_exceptions=True)
    assert isinstance(asked.result(), Registered)
    assert len(journal.load()[1]) == 1


async def test_a_coordinator_that_ends_drops_heavy_work_and_does_not_wait_for_it() -> None:
    dispatcher, _ = start(MemoryJournal())
    running = asyncio.create_task(dispatcher.run())
    begun, go_on = threading.Event(), threading.Event()
    told: list[object] = []

    def work() -> bool:
        begun.set()
        return go_on.wait(stretch(20))

    try:
        for _ in range(2):
            dispatcher.heavy.start(work, told.append)
        assert await asyncio.to_thread(begun.wait, stretch(20))
        running.cancel()
        async with asyncio.timeout(stretch(10)):
            await asyncio.gather(running, return_exceptions=True)
        assert not go_on.is_set()
    finally:
        go_on.set()
    assert told == []


async def test_a_coordinator_that_ends_probes_its_journal_no_more() -> None:
    leading = Leading()
    running = asyncio.create_task(leading.dispatcher.run())
    leading.journal.on_write = JournalUnavailableError("/state", "disk is full")
    with pytest.raises(JournalUnavailableError):
        await leading.dispatcher.ask(register("a"))
    assert is_probing()
    running.cancel()
    await asyncio.gather(running, return_exceptions=True)
    await asyncio.sleep(0)
    assert not is_probing()


@pytest.mark.parametrize("leads", [True, False])
async def test_timeouts_that_cannot_be_applied_are_logged_by_a_leader_and_no_matter_of_a_standby(
    leads: bool, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(module, "TICK_S", 0.0)
    leading = Leading()
    await leading.dispatcher.ask(register("a"))
    leading.journal.on_write = JournalUnavailableError("/state", "disk is full")
    with pytest.raises(JournalUnavailableError):
        await leading.dispatcher.ask(register("b"))
    if not leads:
        leading.leadership.follow(Leader("b:1", term=6))
    running = asyncio.create_task(leading.dispatcher.run())
    for _ in range(20):
        leading.clock.advance(1.0)
        await asyncio.sleep(0)
        await asyncio.sleep(0)
    running.cancel()
    await asyncio.gather(running, return_exceptions=True)
    is_logged = "timeouts that are due cannot be applied: the journal /state cannot be written" in caplog.text
    assert is_logged == leads, caplog.text


async def test_what_happens_in_a_job_that_traces_is_recorded_and_logged_within_its_trace() -> None:
    exporter = InMemorySpanExporter()
    tracing = OpenTelemetryTracing([exporter], {})
    lines = io.StringIO()
    handler = logging.StreamHandler(lines)
    handler.setFormatter(JsonFormatter())
    logger = logging.getLogger("strata.events")
    logger.addHandler(handler)
    try:
        dispatcher = Dispatcher(
            MemoryJournal(),
            limits=Limits(),
            clock=SystemClock(),
            deliver=lambda _: None,
            traces=JobsTraces(tracing),
        )
        await dispatcher.ask(register("a"))
        await dispatcher.ask(c.SetKey(key=TRACES_KEY, value=b"seed", token=0, writer="a"))
        await dispatcher.ask(c.FailWorkers(workers=(("a", "1"),), reason="silent", cause=Cause.HUNG))
    finally:
        logger.removeHandler(handler)
        tracing.close()
    trace_id = f"{derive_ids('seed', recovery_trace(2)).trace_id:032x}"
    (span,) = exporter.get_finished_spans()
    assert (span.name, f"{span.get_span_context().trace_id:032x}") == ("detect", trace_id)
    failed = json.loads(lines.getvalue().splitlines()[-1])
    assert (failed["event"], failed["cause"], failed["trace_id"]) == ("generation changed", "hung", trace_id)


def test_a_json_line_of_the_log_holds_the_exception() -> None:
    error = OSError("disk is full")
    record = logging.LogRecord("x", logging.ERROR, "", 0, "it cannot be written", (), (OSError, error, None))
    line = json.loads(JsonFormatter().format(record))
    assert (line["level"], line["message"]) == ("ERROR", "it cannot be written")
    assert line["exception"] == "OSError: disk is full"
    assert "trace_id" not in line
