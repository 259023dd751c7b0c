"""A gRPC call that lasts ends with its client, with its reason, and holds no more for it than it may."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator, Callable
from typing import Any

import grpc
import pytest

from strata.clock import SystemClock
from strata.cluster import Limits
from strata.cluster import commands as c
from strata.cluster.access import LOCAL
from strata.coordinator import stream as module
from strata.coordinator.dispatcher import Dispatcher
from strata.coordinator.entry.gate import Caller
from strata.coordinator.flow import UnsentBudget
from strata.coordinator.journal import MemoryJournal
from strata.coordinator.sessions import Sessions
from strata.coordinator.sharing import turns
from strata.coordinator.stream import FrameStream, UnaryAnswers, lasting_call
from strata.wire import convert
from strata.wire._generated import coordinator_pb2 as pb
from tests.testbed.pace import stretch


class AbortedError(Exception):
    """What gRPC raises when a call is aborted."""


class Context:
    """The context of a call: what is written to it, and with what it is aborted."""

    def __init__(self) -> None:
        self.is_gone = False
        self.written: list[bytes] = []
        self.has_written = asyncio.Event()
        self.may_write = asyncio.Event()
        self.may_write.set()
        self.done: list[Callable[[object], None]] = []

    async def send_initial_metadata(self, _: object) -> None:
        pass

    def peer(self) -> str:
        return "ipv4:127.0.0.1:1"

    def add_done_callback(self, callback: Callable[[object], None]) -> None:
        self.done.append(callback)

    async def write(self, data: bytes) -> None:
        if self.is_gone:
            raise grpc.aio.InternalError("Failed execute_batch")
        await self.may_write.wait()
        self.written.append(data)
        self.has_written.set()

    async def abort(self, code: grpc.StatusCode, details: str) -> None:
        raise AbortedError(code, details)


class Client:
    """A stream and the frames that its client sends."""

    def __init__(self, context: Any, end: Callable[[str], None] = lambda _: None) -> None:
        self._frames: asyncio.Queue[bytes | None] = asyncio.Queue()
        self.sessions = Sessions()
        self.budget = UnsentBudget(1 << 30)
        journal = MemoryJournal()
        self.dispatcher = Dispatcher(journal, limits=Limits(), clock=SystemClock(), deliver=self.sessions.deliver)
        self.stream = FrameStream(self.sessions, self.dispatcher, self.budget, context, Caller(LOCAL, "here"), end)

    def register(self) -> None:
        self.say(1, c.RegisterWorker(worker_id="a", incarnation="1"))

    def say(self, number: int, command: c.Command) -> None:
        frame = pb.ClientFrame(id=number, command=convert.command_to_message(command))
        self._frames.put_nowait(frame.SerializeToString())

    def leave(self) -> None:
        self._frames.put_nowait(None)

    async def frames(self) -> AsyncIterator[bytes]:
        while (frame := await self._frames.get()) is not None:
            yield frame


async def test_a_client_that_is_gone_when_it_is_answered_ends_its_stream_without_an_error() -> None:
    context = Context()
    context.is_gone = True
    client = Client(context)
    client.register()
    async with asyncio.timeout(stretch(20)):
        await client.stream.serve(client.frames())
    assert client.sessions.open == set()


async def test_a_stream_ends_with_its_client_after_the_answers() -> None:
    context = Context()
    client = Client(context)
    client.register()
    async with asyncio.timeout(stretch(20)):
        serving = asyncio.create_task(client.stream.serve(client.frames()))
        await context.has_written.wait()
        client.leave()
        await serving
    assert pb.ServerFrame.FromString(context.written[0]).reply.registered.generation == 1
    assert client.sessions.open == set()


async def test_a_stream_that_does_not_read_is_hung_up_on_once(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(module, "MAX_UNSENT_BYTES", 10)
    reasons: list[str] = []
    client = Client(Context(), reasons.append)
    with caplog.at_level(logging.WARNING):
        for _ in range(3):
            client.stream._send(b"12345678")
    client.stream.hang_up("again")
    assert reasons == ["it does not read what it is sent"]
    assert caplog.text.count("a stream is closed") == 1


async def test_a_stream_that_holds_most_of_what_waits_for_all_clients_is_hung_up_on() -> None:
    reasons: list[str] = []
    client = Client(Context(), reasons.append)
    client.budget.limit_bytes = 10
    client.stream._send(b"12345678")
    assert reasons == []
    client.stream._send(b"12345678")
    assert reasons == ["10 bytes wait for clients, and most of them for this one"]


STRANGER = c.Heartbeat(worker_id="stranger", incarnation="1")


async def test_a_stream_whose_client_does_not_read_its_answers_is_not_read_from_until_it_does(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(module, "MAX_UNREAD_BYTES", 0)
    context = Context()
    context.may_write.clear()
    client = Client(context)
    client.say(1, STRANGER)
    client.register()
    async with asyncio.timeout(stretch(20)):
        serving = asyncio.create_task(client.stream.serve(client.frames()))
        for _ in range(50):
            await asyncio.sleep(0)
        assert client.dispatcher.cluster.jobs() == [], "the registration was read before the answer was"
        context.may_write.set()
        while len(context.written) < 2:
            context.has_written.clear()
            await context.has_written.wait()
        client.leave()
        await serving
    replies = [pb.ServerFrame.FromString(data).reply for data in context.written[:2]]
    assert [reply.WhichOneof("kind") for reply in replies] == ["error", "registered"]


async def test_where_tenants_share_a_stream_is_read_from_only_as_its_tenant_has_its_turn(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(turns, "MAX_WAITING", 1)
    context = Context()
    client = Client(context)
    client.sessions.turns.enter("another")
    waiting: list[int] = []
    add = client.sessions.turns.add

    def note(tenant: str, request: Callable[[], None]) -> None:
        add(tenant, request)
        waiting.append(len(client.sessions.turns._waiting[tenant].requests))

    monkeypatch.setattr(client.sessions.turns, "add", note)
    for number in range(1, 6):
        client.say(number, STRANGER)
    async with asyncio.timeout(stretch(20)):
        serving = asyncio.create_task(client.stream.serve(client.frames()))
        while len(context.written) < 5:
            context.has_written.clear()
            await context.has_written.wait()
        client.leave()
        await serving
    assert [pb.ServerFrame.FromString(data).reply.id for data in context.written] == [1, 2, 3, 4, 5]
    assert waiting == [1] * 5


async def test_a_lasting_call_that_is_ended_is_aborted_with_the_reason() -> None:
    async def last() -> None:
        async with lasting_call(Context()) as end:
            end("the token was revoked")
            end("and again")
            await asyncio.Event().wait()

    with pytest.raises(AbortedError) as caught:
        await last()
    assert caught.value.args == (grpc.StatusCode.UNAVAILABLE, "the token was revoked")


async def test_a_lasting_call_that_ends_as_it_is_ended_is_aborted_too() -> None:
    async def last() -> None:
        async with lasting_call(Context()) as end:
            end("the token was revoked")

    with pytest.raises(AbortedError):
        await last()


async def test_a_lasting_call_that_is_cancelled_from_outside_is_cancelled() -> None:
    begun = asyncio.Event()

    async def last() -> None:
        async with lasting_call(Context()):
            begun.set()
            await asyncio.Event().wait()

    lasting = asyncio.create_task(last())
    await begun.wait()
    lasting.cancel()
    with pytest.raises(asyncio.CancelledError):
        await lasting


async def test_a_lasting_call_whose_client_is_gone_ends_without_an_error() -> None:
    context = Context()
    context.is_gone = True
    async with lasting_call(context) as end:
        await context.write(b"event")
    end("too late")
    await asyncio.sleep(0)


async def test_large_answers_are_bounded_for_one_client_and_in_total(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "MAX_UNSENT_BYTES", 200 << 10)
    answers, context = UnaryAnswers(300 << 10), Context()
    await answers.keep(context, 10)
    assert context.done == []
    await answers.keep(context, 150 << 10)
    with pytest.raises(AbortedError, match="wait for this client; let it read those first"):
        await answers.keep(context, 100 << 10)
    other = Context()
    monkeypatch.setattr(other, "peer", lambda: "ipv4:127.0.0.1:2")
    with pytest.raises(AbortedError, match="clients that do not read them; ask again later"):
        await answers.keep(other, 160 << 10)
    for done in context.done:
        done(None)
    await answers.keep(other, 160 << 10)
