"""A channel takes whole binary frames from those who may send them, and holds no more for a client than it may."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import jwt
import pytest
from cryptography.hazmat.primitives.asymmetric import ec

from strata.cluster import commands as c
from strata.cluster.access import Role
from strata.config import OidcRule, OidcSettings
from strata.coordinator import channel as module
from strata.coordinator.entry.attempts import Failure
from strata.coordinator.server import Coordinator, CoordinatorConfig
from strata.coordinator.sessions import Session
from strata.wire import convert
from strata.wire._generated import coordinator_pb2 as pb
from tests.testbed.guarded import guarding
from tests.testbed.network.raw_channel import HANDSHAKE, RawChannel, frame
from tests.testbed.waiting import wait_until

REGISTER = c.RegisterWorker(worker_id="w", incarnation="1")
OK, UNSUPPORTED, PROTOCOL_ERROR, POLICY = 1000, 1003, 1002, 1008
LARGE = bytes(1 << 20)


def command(number: int, said: c.Command) -> bytes:
    return pb.ClientFrame(id=number, command=convert.command_to_message(said)).SerializeToString()


def closing(code: int, reason: str) -> bytes:
    """Return the frame with which a server closes."""
    payload = code.to_bytes(2, "big") + reason.encode()
    return bytes((0x88, len(payload))) + payload


@asynccontextmanager
async def serving(**options: Any) -> AsyncIterator[Coordinator]:
    config = CoordinatorConfig(grpc_address="127.0.0.1:0", channel_address="127.0.0.1:0", **options)
    async with Coordinator(config) as coordinator:
        yield coordinator


async def connect(coordinator: Coordinator, **options: Any) -> RawChannel:
    return await asyncio.to_thread(RawChannel, coordinator.channel_port, **options)


async def until(holds: Any, what: str) -> None:
    await asyncio.to_thread(wait_until, holds, what)


@pytest.mark.parametrize(
    ("sent", "answer"),
    [
        (frame(b"text", first=0x81), closing(UNSUPPORTED, "frames are whole binary messages")),
        (frame(b"first of several", first=0x02), closing(UNSUPPORTED, "frames are whole binary messages")),
        (frame(b"\x0f"), closing(PROTOCOL_ERROR, "not a ClientFrame")),
        (frame(OK.to_bytes(2, "big"), first=0x88), closing(OK, "")),
    ],
    ids=["text", "a piece", "no message", "goodbye"],
)
async def test_a_frame_that_ends_a_channel_is_answered_with_why_and_nothing_after_it_is_carried_out(
    sent: bytes, answer: bytes
) -> None:
    async with serving() as coordinator:
        with await connect(coordinator) as raw:
            # In one piece, so that all of it is read before anything is answered.
            raw.socket.sendall(sent + frame(command(1, REGISTER)) + sent)
            assert await asyncio.to_thread(raw.wait_closed) == answer
        await until(lambda: not coordinator.sessions.open, "the end of the session")
        assert coordinator.dispatcher.cluster.jobs() == []


async def test_a_tenant_that_waits_for_its_turn_is_told_once_why_its_channel_is_closed(tmp_path: Path) -> None:
    async with guarding(tmp_path) as guarded:
        coordinator = guarded.coordinator
        for tenant in ("blue", "red"):
            await guarded.make_tenant(tenant)
        tokens = [await guarded.make_token(Role.WORKER, tenant=tenant) for tenant in ("blue", "red")]
        with await connect(coordinator, token=tokens[0]), await connect(coordinator, token=tokens[1]) as raw:
            await until(lambda: coordinator.sessions.turns.is_shared, "both tenants")
            raw.socket.sendall(frame(b"\x0f") * 3)
            assert await asyncio.to_thread(raw.wait_closed) == closing(PROTOCOL_ERROR, "not a ClientFrame")


async def test_one_channel_too_many_is_refused_with_what_to_do_and_the_others_are_served() -> None:
    async with serving(max_channels=1) as coordinator:
        with await connect(coordinator) as served:
            with await connect(coordinator) as refused:
                said = refused.answer + await asyncio.to_thread(refused.wait_closed)
            assert b" 503 " in said
            assert b"this coordinator serves its 1 channels; close some, or raise its limit" in said
            served.send(command(1, REGISTER))
            answer = pb.ServerFrame.FromString(await asyncio.to_thread(served.receive) or b"")
            assert answer.reply.registered.world_size == 1


# It does not answer, so none of its keys is known.
ISSUER = OidcSettings("http://127.0.0.1:1", "strata", (OidcRule(matches="*", role="worker", tenant="default"),))


@pytest.mark.parametrize("who", ["nobody", "viewer", "issued"])
async def test_who_may_not_open_a_channel_is_told_why_and_nothing_of_it_is_read(tmp_path: Path, who: str) -> None:
    async with guarding(tmp_path, oidc=ISSUER) as guarded:
        if who == "viewer":
            token = await guarded.make_token(Role.VIEWER, name="eyes")
            reason = "'eyes' with the role viewer may not ask for Channel; it takes the role worker"
        elif who == "issued":
            key = ec.generate_private_key(ec.SECP256R1())
            token = jwt.encode({"sub": "w"}, key, algorithm="ES256", headers={"kid": "new"})
            reason = "the key of its token is not known yet"
        else:
            token, reason = "a-token-that-nobody-knows", "its token is not known"
        with await connect(guarded.coordinator, handshake=False) as raw:
            header = f"Authorization: Bearer {token}\r\n\r\n".encode()
            # The frame comes with the handshake: it is there before anyone is refused.
            raw.socket.sendall(HANDSHAKE[:-2] + header + frame(command(1, REGISTER)))
            said = await asyncio.to_thread(raw.wait_closed)
        *_, closed = said.partition(b"\r\n\r\n")
        assert closed[2:4] == POLICY.to_bytes(2, "big")
        assert reason in closed[4:].decode()
        assert guarded.coordinator.dispatcher.cluster.jobs() == []


async def test_when_too_many_that_were_refused_wait_for_their_answer_the_next_is_closed_at_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with guarding(tmp_path) as guarded:
        hour = Failure(delay_s=3600.0, to_tell=0)
        monkeypatch.setattr(guarded.coordinator.gate, "refuse", lambda *_: hour)
        monkeypatch.setattr(module, "MAX_REFUSED", 1)
        monkeypatch.setattr(module._Refused, "waiting", 0)
        with await connect(guarded.coordinator) as first, await connect(guarded.coordinator) as second:
            assert await asyncio.to_thread(second.wait_closed) == closing(POLICY, "it brought no token")
            first.socket.setblocking(False)
            with pytest.raises(BlockingIOError):
                first.socket.recv(1)


class Unread:
    """A client that does not read, and what the coordinator holds for it."""

    def __init__(self, raw: RawChannel, session: Session) -> None:
        self.raw = raw
        self.listener: Any = session.send.__self__
        self._session = session

    @property
    def is_read_from(self) -> bool:
        return bool(self.listener._socket.is_reading())

    def send(self) -> None:
        self._session.send(LARGE)

    def fill(self) -> None:
        """Send until the socket takes no more."""
        for _ in range(64):
            self.send()
            if self.listener.unsent_bytes():
                return
        raise AssertionError("64 MiB were taken from a client that does not read")


@asynccontextmanager
async def unread(coordinator: Coordinator) -> AsyncIterator[Unread]:
    known = set(coordinator.sessions.open)
    with await connect(coordinator, receive_buffer_bytes=4096) as raw:
        await until(lambda: len(coordinator.sessions.open) > len(known), "the session")
        (session,) = coordinator.sessions.open - known
        yield Unread(raw, session)


@pytest.mark.parametrize("is_shared", [False, True], ids=["alone", "with other tenants"])
async def test_a_client_that_does_not_read_is_not_read_from_until_it_does(is_shared: bool) -> None:
    async with serving() as coordinator, unread(coordinator) as client:
        if is_shared:
            client.listener.bound_reads()
        client.fill()
        assert not client.is_read_from
        client.raw.send(command(1, REGISTER))

        def read_to_the_answer() -> pb.Reply:
            while (data := client.raw.receive()) == LARGE:
                pass
            return pb.ServerFrame.FromString(data or b"").reply

        reply = await asyncio.to_thread(read_to_the_answer)
        assert reply.registered.world_size == 1
        assert client.is_read_from


async def test_a_client_for_which_too_much_waits_is_disconnected(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(module, "MAX_UNSENT_BYTES", 2 * len(LARGE))
    async with serving() as coordinator, unread(coordinator) as client:
        client.fill()
        assert caplog.text == ""
        for _ in range(3):
            client.send()
        assert caplog.text.count("a channel is closed: it does not read what it is sent") == 1
        assert client.listener.unsent_bytes() == 0
        await until(lambda: not coordinator.sessions.open, "the end of the session")


async def test_when_too_much_waits_for_all_clients_the_one_with_most_is_disconnected(
    caplog: pytest.LogCaptureFixture,
) -> None:
    async with (
        serving(max_unsent_bytes=4 * len(LARGE)) as coordinator,
        unread(coordinator) as less,
        unread(coordinator) as most,
    ):
        less.fill()
        most.fill()
        most.send()
        for _ in range(4):
            most.send()
        reason = f"{4 * len(LARGE)} bytes wait for clients, and most of them for this one"
        assert caplog.text.count(f"a channel is closed: {reason}") == 1
        assert most.listener.unsent_bytes() == 0
        assert less.listener.unsent_bytes() > 0
        await until(lambda: len(coordinator.sessions.open) == 1, "the end of its session")
