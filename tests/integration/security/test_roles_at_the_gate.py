"""Every call, channel command and route, by every role, of the own tenant and of another: let in, or refused."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

import grpc
import pytest
from picows import WSFrame, WSListener, WSMsgType, WSTransport, ws_connect

from strata.cluster.access import Role
from strata.cluster.access import administration as t
from strata.cluster.access.quotas import Quotas
from strata.coordinator.entry import roles
from strata.coordinator.replication.leadership import Leader
from strata.errors import NotLeaderError, QuotaExceededError
from strata.wire import convert
from strata.wire._generated import coordinator_pb2 as pb
from strata.wire.errors import ERROR_TRAILER, from_error
from tests.testbed.guarded import Guarded, guarding
from tests.testbed.pace import stretch

STREAMS = {"StreamHeartbeats", "StreamEvents", "Channel"}
SERVICE = pb.DESCRIPTOR.services_by_name["Coordinator"]
CALLS = {method.name: method.input_type.name for method in SERVICE.methods if method.name not in STREAMS}
ROUTES = {
    path: path.replace("{worker_id}", "w0").replace("{dataset_id}", "d0").replace("{step}", "1")
    for path in roles.ROUTES
}


@pytest.fixture
async def guarded(tmp_path: Path) -> AsyncIterator[Guarded]:
    async with guarding(tmp_path) as coordinator:
        for tenant in ("blue", "red"):
            await coordinator.make_tenant(tenant)
        yield coordinator


def code_of(answer: Any) -> grpc.StatusCode:
    return answer.code() if isinstance(answer, grpc.aio.AioRpcError) else grpc.StatusCode.OK


@pytest.mark.parametrize("role", Role)
async def test_a_call_is_let_in_by_its_role(guarded: Guarded, role: Role) -> None:
    token = await guarded.make_token(role, tenant="blue")
    for name, kind in CALLS.items():
        message = getattr(pb, kind)()
        if "tenant" in message.DESCRIPTOR.fields_by_name:
            message.tenant = "blue" if name.startswith("List") else "red"
        code = code_of(await guarded.call(name, message, token))
        assert (code is grpc.StatusCode.PERMISSION_DENIED) == (name not in roles.MAY_CALL[role]), (name, code)
        assert code is not grpc.StatusCode.UNAUTHENTICATED


async def test_no_call_is_let_in_without_a_token(guarded: Guarded) -> None:
    for name, kind in CALLS.items():
        # One after the other they would be answered ever more slowly, on purpose.
        guarded.coordinator.gate.attempts._addresses.clear()
        answer = await guarded.call(name, getattr(pb, kind)(), None)
        assert code_of(answer) is grpc.StatusCode.UNAUTHENTICATED, name


@pytest.mark.parametrize("role", [role for role in Role if role is not Role.ADMIN])
async def test_another_tenants_job_is_as_if_it_were_not(guarded: Guarded, role: Role) -> None:
    await guarded.call("ConfigureJob", pb.ConfigureJob(job_id="red/secret", min_workers=1), guarded.admin)
    token = await guarded.make_token(role, tenant="blue")
    for name, kind in CALLS.items():
        if "job_id" not in getattr(pb, kind).DESCRIPTOR.fields_by_name:
            continue
        answer = await guarded.call(name, getattr(pb, kind)(job_id="red/secret"), token)
        assert code_of(answer) in {grpc.StatusCode.PERMISSION_DENIED, grpc.StatusCode.INVALID_ARGUMENT}, name
    status = await guarded.call("GetStatus", pb.GetStatus(), token)
    assert not status.jobs
    assert [job.job_id for job in (await guarded.call("GetStatus", pb.GetStatus(), guarded.admin)).jobs] == [
        "red/secret"
    ]


@pytest.mark.parametrize("role", Role)
@pytest.mark.parametrize("transport", ["channel", "stream"])
async def test_a_command_in_a_channel_is_let_in_by_its_role(guarded: Guarded, role: Role, transport: str) -> None:
    token = await guarded.make_token(role, tenant="blue")
    ask = Asking(guarded, token)
    frames = [pb.ClientFrame(id=number + 1, command=_empty(kind)) for number, kind in enumerate(convert.COMMANDS)]
    replies = await (ask.by_channel if transport == "channel" else ask.by_stream)(frames)
    if role is Role.VIEWER:
        assert replies == {}, "a viewer has no channel"
        return
    assert len(replies) == len(frames)
    for number, kind in enumerate(convert.COMMANDS):
        error = replies[number + 1].error
        is_denied = error.kind == "AccessDeniedError" or "for the coordinator alone" in error.message
        assert is_denied == (kind not in roles.MAY_COMMAND[role]), (kind, error)


@pytest.mark.parametrize("role", [None, *Role])
async def test_a_route_is_let_in_by_its_role(guarded: Guarded, role: Role | None) -> None:
    token = None if role is None else await guarded.make_token(role, tenant="blue")
    for path, asked in ROUTES.items():
        guarded.coordinator.gate.attempts._addresses.clear()
        least = roles.ROUTES[path]
        status, _ = await asyncio.to_thread(guarded.get, asked, token)
        if least is None:
            assert status == 200
        elif role is None:
            assert status == 401, path
        else:
            assert status in (200, 404, 422), (path, status)


async def test_a_route_shows_no_other_tenants_jobs(guarded: Guarded) -> None:
    await guarded.call("ConfigureJob", pb.ConfigureJob(job_id="red/secret", min_workers=1), guarded.admin)
    token = await guarded.make_token(Role.OPERATOR, tenant="blue")
    for path, asked in ROUTES.items():
        for query in ("", "?job=red/secret", "?job=secret"):
            _, answer = await asyncio.to_thread(guarded.get, asked + query, token)
            if isinstance(answer, bytes):
                assert b"secret" not in answer, (path, query)


async def test_a_pattern_of_jobs_bounds_a_token(guarded: Guarded) -> None:
    token = await guarded.make_token(Role.WORKER, tenant="blue", jobs="llm-*")
    request = pb.ConfigureJob(job_id="llm-7b", min_workers=1)
    assert code_of(await guarded.call("ConfigureJob", request, token)) is grpc.StatusCode.OK
    request = pb.ConfigureJob(job_id="vision", min_workers=1)
    assert code_of(await guarded.call("ConfigureJob", request, token)) is grpc.StatusCode.PERMISSION_DENIED


async def test_a_refusal_carries_the_error_with_its_fields(guarded: Guarded) -> None:
    token = await guarded.make_token(Role.VIEWER, name="ci")
    answer = await guarded.call("RemoveJob", pb.RemoveJob(job_id="x"), token)
    error = from_error(pb.Error.FromString(dict(answer.trailing_metadata())[ERROR_TRAILER]))
    assert "token 'ci' with the role viewer may not ask for RemoveJob; it takes the role operator" in str(error)


def _empty(kind: Any) -> pb.Command:
    message = pb.Command()
    command = getattr(message, convert.COMMANDS[kind])
    command.SetInParent()
    if "tenant" in command.DESCRIPTOR.fields_by_name:
        command.tenant = "red"
    return message


class _Listener(WSListener):
    def __init__(self, take: Callable[[bytes], None]) -> None:
        self._take = take

    def on_ws_frame(self, transport: WSTransport, frame: WSFrame) -> None:
        if frame.msg_type == WSMsgType.BINARY:
            self._take(frame.get_payload_as_bytes())
        elif frame.msg_type == WSMsgType.CLOSE:
            transport.disconnect()


class Asking:
    """Sends frames in one connection, and collects their replies until all are there or it is closed."""

    def __init__(self, guarded: Guarded, token: str) -> None:
        self._guarded = guarded
        self._token = token

    async def by_channel(self, frames: list[pb.ClientFrame]) -> dict[int, pb.Reply]:
        replies: dict[int, pb.Reply] = {}
        done = asyncio.Event()

        def take(data: bytes) -> None:
            reply = pb.ServerFrame.FromString(data).reply
            replies[reply.id] = reply
            if len(replies) == len(frames):
                done.set()

        url = f"ws://127.0.0.1:{self._guarded.coordinator.channel_port}"
        headers = {"authorization": f"Bearer {self._token}"}
        transport, _ = await ws_connect(lambda: _Listener(take), url, extra_headers=headers)
        for frame in frames:
            transport.send(WSMsgType.BINARY, frame.SerializeToString())
        closed = asyncio.ensure_future(transport.wait_disconnected())
        waiting = asyncio.ensure_future(done.wait())
        await asyncio.wait({closed, waiting}, timeout=stretch(20), return_when=asyncio.FIRST_COMPLETED)
        waiting.cancel()
        transport.disconnect()
        await closed
        return replies

    async def by_stream(self, frames: list[pb.ClientFrame]) -> dict[int, pb.Reply]:
        replies: dict[int, pb.Reply] = {}
        async with self._guarded.open_grpc() as channel:
            method = channel.stream_stream(
                f"/{SERVICE.full_name}/Channel", pb.ClientFrame.SerializeToString, pb.ServerFrame.FromString
            )
            call = method(metadata=[("authorization", f"Bearer {self._token}")], timeout=stretch(20))
            with suppress(grpc.aio.AioRpcError, asyncio.InvalidStateError):
                for frame in frames:
                    await call.write(frame)
                while len(replies) < len(frames):
                    reply = (await call.read()).reply
                    replies[reply.id] = reply
            call.cancel()
        return replies


@pytest.mark.parametrize("name", ["GetStatus", "StreamEvents"])
async def test_bytes_that_are_no_message_are_refused_after_the_gate(guarded: Guarded, name: str) -> None:
    async with guarded.open_grpc() as channel:
        path = f"/{SERVICE.full_name}/{name}"
        for token, code, words in (
            (guarded.admin, grpc.StatusCode.INVALID_ARGUMENT, "the request cannot be decoded"),
            ("unknown", grpc.StatusCode.UNAUTHENTICATED, "its token is not known"),
        ):
            metadata = [("authorization", f"Bearer {token}")]
            with pytest.raises(grpc.aio.AioRpcError) as caught:
                if name == "StreamEvents":
                    await channel.unary_stream(path)(b"\x0f", metadata=metadata, timeout=stretch(20)).read()
                else:
                    await channel.unary_unary(path)(b"\x0f", metadata=metadata, timeout=stretch(20))
            assert caught.value.code() is code
            assert words in str(caught.value.details())


async def test_a_standby_tells_whoever_asks_where_the_leader_is_and_nothing_else(guarded: Guarded) -> None:
    guarded.coordinator.leadership.follow(Leader(grpc="10.0.0.7:50051", term=3))
    for token in (guarded.admin, "unknown", None):
        described = await guarded.call("Describe", pb.Describe(), token)
        assert (described.leader, described.is_leader) == ("10.0.0.7:50051", False)
        refused = await guarded.call("GetStatus", pb.GetStatus(), token)
        assert refused.code() is grpc.StatusCode.UNAVAILABLE
        error = from_error(pb.Error.FromString(dict(refused.trailing_metadata())[ERROR_TRAILER]))
        assert isinstance(error, NotLeaderError)
        assert error.leader == "10.0.0.7:50051"


async def test_a_tenant_with_all_its_channels_open_gets_no_further_stream(guarded: Guarded) -> None:
    await guarded.coordinator.dispatcher.ask(t.SetTenant(tenant="blue", quotas=Quotas(channels=1)))
    token = await guarded.make_token(Role.WORKER, tenant="blue")
    async with guarded.open_grpc() as channel:
        method = channel.stream_stream(f"/{SERVICE.full_name}/Channel")
        metadata = [("authorization", f"Bearer {token}")]
        first = method(metadata=metadata, timeout=stretch(20))
        await first.initial_metadata()
        with pytest.raises(grpc.aio.AioRpcError) as caught:
            await method(metadata=metadata, timeout=stretch(20)).read()
        assert caught.value.code() is grpc.StatusCode.RESOURCE_EXHAUSTED
        error = from_error(pb.Error.FromString(dict(caught.value.trailing_metadata())[ERROR_TRAILER]))
        assert isinstance(error, QuotaExceededError)
        assert "channels" in str(error)
        first.cancel()
