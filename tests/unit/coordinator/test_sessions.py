"""What the coordinator sends to one worker leaves in an order in which the worker can understand it."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from functools import partial

import pytest

from strata.clock import SystemClock
from strata.cluster import Limits
from strata.cluster import commands as c
from strata.cluster.values import PartReport
from strata.coordinator import sessions as module
from strata.coordinator.dispatcher import Dispatcher
from strata.coordinator.journal import MemoryJournal
from strata.coordinator.sessions import Session, Sessions
from strata.errors import BarrierCancelledError, JournalUnavailableError, NotLeaderError
from strata.wire import convert
from strata.wire._generated import coordinator_pb2 as pb
from tests.testbed.pace import stretch
from tests.testbed.slow_journal import SlowJournal


class Connections:
    """A coordinator without sockets: what each worker was sent, in its order, as words."""

    def __init__(self) -> None:
        self.sessions = Sessions()
        self._dispatcher = Dispatcher(
            MemoryJournal(), limits=Limits(), clock=SystemClock(), deliver=self.sessions.deliver
        )
        self._open: dict[str, Session] = {}
        self._has_sent = asyncio.Event()
        self.sent: dict[str, list[str]] = {}

    def say(self, command: c.WorkerCommand) -> None:
        """Let a worker send a command on its connection, which is opened with the first one."""
        name = command.worker_id
        if name not in self._open:
            self.sent[name] = []
            self._open[name] = Session(self.sessions, self._dispatcher, partial(self._note, name), lambda _: None)
        frame = pb.ClientFrame(id=1, command=convert.command_to_message(command))
        self._open[name].receive(frame.SerializeToString())

    def _note(self, name: str, frame: bytes) -> None:
        self.sent[name].append(describe(frame))
        self._has_sent.set()

    async def wait_until_sent(self, name: str, last: str) -> None:
        async with asyncio.timeout(stretch(40)):
            while last not in self.sent[name]:
                self._has_sent.clear()
                await self._has_sent.wait()


def describe(frame: bytes) -> str:
    message = pb.ServerFrame.FromString(frame)
    if message.HasField("effect"):
        return f"generation {message.effect.generation_changed.generation}"
    return str(message.reply.WhichOneof("kind"))


@pytest.fixture
async def connections() -> Connections:
    made = Connections()
    made.say(register("a"))
    await made.wait_until_sent("a", "generation 1")
    made.sent["a"].clear()
    return made


def register(worker: str) -> c.RegisterWorker:
    return c.RegisterWorker(worker_id=worker, incarnation="1")


async def test_a_worker_learns_of_a_new_generation_before_it_is_refused_for_it(connections: Connections) -> None:
    report = PartReport("part", 1, "00")
    connections.say(register("b"))
    connections.say(c.ReportPart(worker_id="a", incarnation="1", generation=1, step=0, epoch=0, report=report))
    await connections.wait_until_sent("a", "error")
    assert connections.sent["a"] == ["generation 2", "error"]
    await connections.wait_until_sent("b", "generation 2")
    assert connections.sent == {"a": ["generation 2", "error"], "b": ["registered", "generation 2"]}


async def test_of_generations_that_begin_at_once_a_worker_learns_only_of_the_last(connections: Connections) -> None:
    for name in "bcdefg":
        connections.say(register(name))
    await connections.wait_until_sent("g", "generation 7")
    assert connections.sent["a"] == ["generation 7"]


async def test_of_generations_that_follow_each_other_closely_a_worker_learns_only_of_the_last(
    connections: Connections, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each is durable by a write of its own; to tell all workers of each is a million messages for a thousand."""
    monkeypatch.setattr(module, "GATHER_S", stretch(0.1))
    monkeypatch.setattr(module, "MAX_GATHERS", 400)
    for name in "bcdefg":
        connections.say(register(name))
        await connections.wait_until_sent(name, "registered")
    await connections.wait_until_sent("g", "generation 7")
    assert connections.sent["a"] == ["generation 7"]


async def test_a_worker_learns_of_a_new_generation_in_time_though_others_follow_without_end(
    connections: Connections, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "MAX_GATHERS", 0)
    for number in range(10_000):
        connections.say(register(f"b{number}"))
        await connections.wait_until_sent(f"b{number}", "registered")
        if connections.sent["a"]:
            break
    assert connections.sent["a"]


async def test_whoever_waits_at_a_barrier_by_a_single_call_is_released_though_the_journal_refused_a_write(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The coordinator goes back to what its journal holds, and arrivals are not in it."""
    monkeypatch.setattr(module, "ARRIVE_AGAIN_S", 0.01)
    journal, sessions = SlowJournal(), Sessions()
    dispatcher = Dispatcher(journal, limits=Limits(), clock=SystemClock(), deliver=sessions.deliver)
    for worker in "ab":
        await dispatcher.ask(c.RegisterWorker(worker_id=worker, incarnation="1"))
    arrivals = [c.ArriveAtBarrier(worker_id=worker, incarnation="1", generation=2, name="step") for worker in "ab"]
    waiting = asyncio.create_task(sessions.wait_for_barrier(dispatcher, arrivals[0], ("", "")))
    await asyncio.sleep(0)
    journal.full = True
    with pytest.raises(JournalUnavailableError):
        await dispatcher.ask(c.RegisterWorker(worker_id="c", incarnation="1"))
    async with asyncio.timeout(stretch(20)):
        last = await sessions.wait_for_barrier(dispatcher, arrivals[1], ("", ""))
        assert await waiting == last


async def test_whoever_arrives_by_a_single_call_during_a_write_that_the_journal_refuses_waits_on(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(module, "ARRIVE_AGAIN_S", 0.01)
    journal, sessions = SlowJournal(), Sessions()
    dispatcher = Dispatcher(journal, limits=Limits(), clock=SystemClock(), deliver=sessions.deliver)
    for worker in "ab":
        await dispatcher.ask(c.RegisterWorker(worker_id=worker, incarnation="1"))
    arrivals = [c.ArriveAtBarrier(worker_id=worker, incarnation="1", generation=2, name="step") for worker in "ab"]
    journal.full = True
    journal.gate.clear()
    refused = asyncio.create_task(dispatcher.ask(c.RegisterWorker(worker_id="c", incarnation="1")))
    await asyncio.sleep(0)
    waiting = asyncio.create_task(sessions.wait_for_barrier(dispatcher, arrivals[0], ("", "")))
    await asyncio.sleep(0)
    journal.gate.set()
    with pytest.raises(JournalUnavailableError):
        await refused
    async with asyncio.timeout(stretch(20)):
        last = await sessions.wait_for_barrier(dispatcher, arrivals[1], ("", ""))
        assert await waiting == last


async def test_a_call_that_waits_at_a_barrier_is_no_sign_of_life_of_its_worker(
    shared: tuple[Sessions, Dispatcher], monkeypatch: pytest.MonkeyPatch
) -> None:
    """A frozen client keeps its call open; the coordinator repeats the arrival by itself."""
    monkeypatch.setattr(module, "ARRIVE_AGAIN_S", 0.0)
    sessions, dispatcher = shared
    waiting = await wait_alone(sessions, dispatcher)
    (member, _) = dispatcher.cluster.job("default").membership.present()
    lease_until_s, repeated, apply = member.lease_until_s, asyncio.Event(), dispatcher.cluster.apply

    def note(command: c.Command, now_s: float) -> object:
        if isinstance(command, c.ArriveAtBarrier):
            repeated.set()
        return apply(command, now_s)

    monkeypatch.setattr(dispatcher.cluster, "apply", note)
    async with asyncio.timeout(stretch(20)):
        await repeated.wait()
    assert member.lease_until_s == lease_until_s
    await dispatcher.ask(c.Heartbeat(worker_id="a", incarnation="1"))
    assert member.lease_until_s > lease_until_s
    waiting.cancel()
    await asyncio.gather(waiting, return_exceptions=True)


async def wait_alone(sessions: Sessions, dispatcher: Dispatcher) -> asyncio.Task[object]:
    """Let one of two workers arrive at a barrier by a single call."""
    for worker in "ab":
        await dispatcher.ask(c.RegisterWorker(worker_id=worker, incarnation="1"))
    arrival = c.ArriveAtBarrier(worker_id="a", incarnation="1", generation=2, name="step")
    waiting = asyncio.create_task(sessions.wait_for_barrier(dispatcher, arrival, ("", "")))
    await asyncio.sleep(0)
    assert dispatcher.cluster.job("default").barriers.open()
    return waiting


@pytest.fixture
def shared() -> tuple[Sessions, Dispatcher]:
    sessions = Sessions()
    journal = MemoryJournal()
    return sessions, Dispatcher(journal, limits=Limits(), clock=SystemClock(), deliver=sessions.deliver)


async def test_whoever_waits_at_a_barrier_by_a_single_call_is_told_that_it_will_not_be_released(
    shared: tuple[Sessions, Dispatcher],
) -> None:
    waiting = await wait_alone(*shared)
    await shared[1].ask(c.CancelBarrier(name="step", reason="an operator said so"))
    with pytest.raises(BarrierCancelledError, match="an operator said so"):
        async with asyncio.timeout(stretch(20)):
            await waiting


async def test_whoever_waits_by_a_single_call_is_sent_to_the_next_leader(shared: tuple[Sessions, Dispatcher]) -> None:
    sessions, dispatcher = shared
    waiting = await wait_alone(sessions, dispatcher)
    error = NotLeaderError("b:50051", term=2)
    sessions.hang_up(error)
    sessions.hang_up(error)
    with pytest.raises(NotLeaderError) as caught:
        async with asyncio.timeout(stretch(20)):
            await waiting
    assert caught.value is error


async def test_a_coordinator_that_leads_no_more_announces_no_generation(
    connections: Connections, monkeypatch: pytest.MonkeyPatch
) -> None:
    due: asyncio.Queue[Callable[[], None]] = asyncio.Queue()
    sessions = connections.sessions
    monkeypatch.setattr(sessions.turns, "add_rest", lambda _, announce: due.put_nowait(announce))
    connections.say(register("b"))
    async with asyncio.timeout(stretch(20)):
        announce = await due.get()
    sessions.hang_up(NotLeaderError("b:50051", term=2))
    announce()
    assert connections.sent["a"] == []


async def test_where_many_are_to_be_told_of_a_generation_all_of_them_are_told_some_at_a_time(
    connections: Connections, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "ANNOUNCED_AT_ONCE", 2)
    for name in "bcdefg":
        connections.say(register(name))
    for name in "abcdefg":
        await connections.wait_until_sent(name, "generation 7")
    assert {name: sent.count("generation 7") for name, sent in connections.sent.items()} == dict.fromkeys("abcdefg", 1)
