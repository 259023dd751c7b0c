"""Nothing is told before it is durable, one fsync serves many, and a full disk loses nothing."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Sequence

import pytest

from strata.clock import SystemClock
from strata.cluster import Limits
from strata.cluster import commands as c
from strata.cluster.events import Effect, GenerationChanged
from strata.cluster.replies import Heard, Registered
from strata.coordinator import dispatcher as module
from strata.coordinator.dispatcher import Dispatcher
from strata.coordinator.journal import Entry, MemoryJournal
from strata.errors import JournalUnavailableError, StaleIncarnationError


class SlowJournal(MemoryJournal):
    """A journal that waits to be told, and can refuse."""

    def __init__(self) -> None:
        super().__init__()
        self.gate = threading.Event()
        self.gate.set()
        self.full = False
        self.batches: list[int] = []

    def append(self, entries: Sequence[Entry]) -> None:
        assert self.gate.wait(10)
        if self.full:
            raise JournalUnavailableError("/state", "disk is full")
        self.batches.append(len(entries))
        super().append(entries)

    def snapshot(self, state: bytes) -> None:
        if self.full:
            raise JournalUnavailableError("/state", "disk is full")
        super().snapshot(state)


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
    assert isinstance(told, Heard)
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
    assert isinstance(await again.ask(beat("b")), Heard)


async def test_snapshots_keep_the_journal_short(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "SNAPSHOT_ENTRIES", 10)
    journal = MemoryJournal()
    dispatcher, _ = start(journal)
    for number in range(25):
        await dispatcher.ask(register(f"w{number}"))
    state, entries = journal.load()
    assert state is not None
    assert len(entries) < 10
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
    assert isinstance(await dispatcher.ask(beat("a")), Heard)
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
