"""Tokens on real sockets: revoked under a worker, hostile, and where their secrets must not be."""

from __future__ import annotations

import asyncio
import json
import logging
import time
from collections.abc import AsyncIterator
from pathlib import Path

import grpc
import pytest

from strata.client.driver import Driver
from strata.cluster import commands as c
from strata.cluster.access import Role
from strata.cluster.access import administration as t
from strata.coordinator.entry.gate import REFUSED
from strata.errors import UnauthenticatedError
from strata.wire._generated import coordinator_pb2 as pb
from strata.wire._generated import coordinator_pb2_grpc as stubs
from tests.testbed.guarded import Guarded, guarding
from tests.testbed.pace import stretch


@pytest.fixture
async def guarded(tmp_path: Path) -> AsyncIterator[Guarded]:
    async with guarding(tmp_path) as coordinator:
        yield coordinator


async def code_of(guarded: Guarded, token: str | None) -> grpc.StatusCode:
    answer = await guarded.call("Describe", pb.Describe(), token)
    return answer.code() if isinstance(answer, grpc.aio.AioRpcError) else grpc.StatusCode.OK


@pytest.mark.parametrize("end", ["revoked", "expired", "another administrator's", "removed and made again"])
async def test_a_call_is_refused_as_soon_as_its_token_ends(
    guarded: Guarded, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, end: str
) -> None:
    dispatcher = guarded.coordinator.dispatcher
    await guarded.make_tenant("blue")
    token = await guarded.make_token(Role.VIEWER, tenant="blue", expires_s=dispatcher.now_s() + 1_000)
    if end.startswith("another"):
        token = guarded.admin
    for _ in range(3):
        assert await code_of(guarded, token) is grpc.StatusCode.OK
        # What was let in before is asked for its role each time.
        if token != guarded.admin:
            refused = await guarded.call("SetKey", pb.SetKey(key="k", value=b"v"), token)
            assert refused.code() is grpc.StatusCode.PERMISSION_DENIED
    if end == "revoked":
        await guarded.revoke(token, tenant="blue")
    elif end == "expired":
        now_s = dispatcher.now_s()
        monkeypatch.setattr(dispatcher, "now_s", lambda: now_s + 2_000)
    elif end.startswith("another"):
        monkeypatch.setattr("strata.coordinator.entry.admin_token.LOOK_S", 0.0)
        (tmp_path / "admin-token").write_text("x" * 40)
    else:
        await dispatcher.ask(t.RemoveTenant(tenant="blue"))
        await guarded.make_tenant("blue")
        token_id = guarded.token_ids[token]
        await dispatcher.ask(t.CreateToken(tenant="blue", token_id=token_id, sha256="0" * 64, role=Role.VIEWER))
    assert await code_of(guarded, token) is grpc.StatusCode.UNAUTHENTICATED


async def test_the_gate_keeps_no_secret_of_a_call(guarded: Guarded) -> None:
    token = await guarded.make_token(Role.VIEWER)
    assert await code_of(guarded, token) is grpc.StatusCode.OK
    gate = guarded.coordinator.gate
    assert gate.recall(f"Bearer {token}") is not None
    assert token.rpartition("_")[2] not in repr(vars(gate))


@pytest.mark.parametrize("transport", ["channel", "stream"])
async def test_a_token_that_is_revoked_ends_its_connections_and_its_worker(
    guarded: Guarded, monkeypatch: pytest.MonkeyPatch, transport: str
) -> None:
    token = await guarded.make_token(Role.WORKER)
    monkeypatch.setenv("STRATA_TOKEN", token)
    worker = Driver(guarded.url, c.RegisterWorker(worker_id="w0", incarnation="1"), use_channel=transport == "channel")
    running = asyncio.create_task(worker.run())
    await worker.heartbeat(timeout_s=stretch(20))
    assert worker.kind == transport
    await guarded.revoke(token)
    async with asyncio.timeout(stretch(20)):
        await running
    assert isinstance(worker.protocol.refusal, UnauthenticatedError)
    assert not guarded.coordinator.sessions.open


@pytest.mark.parametrize("name", ["StreamEvents", "StreamHeartbeats", "Channel"])
async def test_every_call_that_lasts_ends_with_its_token_and_says_so(guarded: Guarded, name: str) -> None:
    # Twice, because whoever looks for revoked tokens must outlive the first one.
    for _ in range(2):
        token = await guarded.make_token(Role.WORKER)
        async with guarded.open_grpc() as channel, asyncio.timeout(stretch(20)):
            method = getattr(stubs.CoordinatorStub(channel), name)
            metadata = [("authorization", f"Bearer {token}")]
            call = method(pb.StreamEvents(), metadata=metadata) if name == "StreamEvents" else method(metadata=metadata)
            while not guarded.coordinator.gate._held:
                await asyncio.to_thread(time.sleep, 0.01)
            await guarded.revoke(token)
            with pytest.raises(grpc.aio.AioRpcError, match="was revoked or has expired") as ended:
                async for _ in call:
                    pass
            assert ended.value.code() is grpc.StatusCode.UNAVAILABLE
        assert not guarded.coordinator.gate._held
    assert not guarded.coordinator.sessions.open


async def test_two_tokens_count_while_they_are_rotated(
    guarded: Guarded, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    first, second = await guarded.make_token(Role.WORKER), await guarded.make_token(Role.WORKER)
    file = tmp_path / "token"
    file.write_text(first)
    monkeypatch.setenv("STRATA_TOKEN_FILE", str(file))
    worker = Driver(guarded.url, c.RegisterWorker(worker_id="w0", incarnation="1"))
    running = asyncio.create_task(worker.run())
    await worker.heartbeat(timeout_s=stretch(20))
    file.write_text(second)
    await guarded.revoke(first)
    # It is hung up on, reads the file again, and comes back before its grace is over.
    async with asyncio.timeout(stretch(20)):
        while guarded.coordinator.gate._held and await code_of(guarded, first) is grpc.StatusCode.OK:
            await asyncio.to_thread(time.sleep, 0.05)
    reply = await worker.heartbeat(timeout_s=stretch(20))
    assert reply.world_size == 1
    assert not running.done()
    running.cancel()
    await asyncio.gather(running, return_exceptions=True)


@pytest.mark.parametrize("token", ["x", "strata__", "strata_a_b", "strata_" * 500, "a.b.c", "=" * 4_000, ".."])
async def test_a_hostile_token_is_refused_and_nothing_breaks(guarded: Guarded, token: str) -> None:
    assert await code_of(guarded, token) is not grpc.StatusCode.OK
    status, _ = await asyncio.to_thread(guarded.get, "/api/jobs", token)
    assert status == 401
    assert await code_of(guarded, guarded.admin) is grpc.StatusCode.OK


async def test_a_token_of_a_megabyte_is_refused_by_grpc(guarded: Guarded) -> None:
    assert await code_of(guarded, "x" * (1 << 20)) not in {grpc.StatusCode.OK, grpc.StatusCode.UNKNOWN}
    assert await code_of(guarded, guarded.admin) is grpc.StatusCode.OK


def frame(kind: int, flags: int, stream: int, payload: bytes) -> bytes:
    """Return a frame of HTTP/2."""
    return len(payload).to_bytes(3, "big") + bytes([kind, flags]) + stream.to_bytes(4, "big") + payload


def describe_request(token: bytes) -> bytes:
    """Return a call of gRPC as a client sends it that does not check its headers."""
    path = f"/{pb.DESCRIPTOR.services_by_name['Coordinator'].full_name}/Describe".encode()
    fields = [(b":method", b"POST"), (b":scheme", b"http"), (b":path", path), (b":authority", b"x")]
    fields += [(b"content-type", b"application/grpc"), (b"te", b"trailers"), (b"authorization", b"Bearer " + token)]
    # Literal fields that nobody indexes; all lengths are below 127.
    head = b"".join(b"\0" + bytes([len(name)]) + name + bytes([len(value)]) + value for name, value in fields)
    preface = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n" + frame(4, 0, 0, b"")
    return preface + frame(1, 4, 1, head) + frame(0, 1, 1, bytes(5))


async def is_answered(port: int, request: bytes) -> bool:
    """Whether a call gets a message back, before its stream or its connection ends."""
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    writer.write(request)
    try:
        async with asyncio.timeout(stretch(20)):
            while True:
                head = await reader.readexactly(9)
                kind, flags, size = head[3], head[4], int.from_bytes(head[:3], "big")
                await reader.readexactly(size)
                if kind == 0 and size > 5:
                    return True
                if kind in (3, 7) or (kind == 1 and flags & 1):  # reset, gone away, or trailers
                    return False
    except (asyncio.IncompleteReadError, ConnectionError):
        return False
    finally:
        writer.close()


async def test_bytes_that_are_no_header_are_refused_by_grpc(guarded: Guarded) -> None:
    port = guarded.coordinator.grpc_port
    assert await is_answered(port, describe_request(guarded.admin.encode()))
    for token in (b"\0", b"\xff\xfe", "\N{SNOWMAN}".encode(), b"a\r\nb", guarded.admin.encode() + b"\0"):
        assert not await is_answered(port, describe_request(token)), token
    assert await code_of(guarded, guarded.admin) is grpc.StatusCode.OK


@pytest.mark.parametrize("token", [b"\xff" * 100, b"\0\0", b"x" * (1 << 20), "\N{SNOWMAN}".encode()])
async def test_bytes_that_are_no_header_are_refused_by_http_and_channel(guarded: Guarded, token: bytes) -> None:
    for port in (guarded.coordinator.http_port, guarded.coordinator.channel_port):
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        head = b"GET /api/jobs HTTP/1.1\r\nHost: x\r\nAuthorization: Bearer " + token + b"\r\n\r\n"
        writer.write(head)
        try:
            async with asyncio.timeout(stretch(10)):
                answer = await reader.read(1 << 16)
        except ConnectionError:
            answer = b""
        assert b" 200 " not in answer
        assert b" 101 " not in answer
        writer.close()
    assert await code_of(guarded, guarded.admin) is grpc.StatusCode.OK


async def test_failed_attempts_are_counted_and_told_to_administrators_alone(guarded: Guarded) -> None:
    for _ in range(3):
        assert await code_of(guarded, "strata_a_b") is grpc.StatusCode.UNAUTHENTICATED
    _, text = await asyncio.to_thread(guarded.get, "/metrics", guarded.admin)
    assert b"strata_access_refused_total 3.0" in text
    _, events = await asyncio.to_thread(guarded.get, f"/api/events?kind={REFUSED.replace(' ', '%20')}", guarded.admin)
    (told,) = json.loads(events)["items"]
    assert told["address"] == "127.0.0.1"
    viewer = await guarded.make_token(Role.VIEWER)
    _, events = await asyncio.to_thread(guarded.get, "/api/events", viewer)
    assert REFUSED not in events.decode()


async def test_events_say_whose_token_did_it_and_from_where(guarded: Guarded) -> None:
    token = await guarded.make_token(Role.WORKER, name="launcher")
    await guarded.call("ConfigureJob", pb.ConfigureJob(job_id="llm", min_workers=2), token)
    _, events = await asyncio.to_thread(guarded.get, "/api/events?job=llm", guarded.admin)
    assert [(each["by"], each["address"]) for each in json.loads(events)["items"]] == [("launcher", "127.0.0.1")]


async def test_no_secret_is_in_a_log_event_status_journal_or_metric(
    guarded: Guarded, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.DEBUG)
    token = await guarded.make_token(Role.WORKER)
    monkeypatch.setenv("STRATA_TOKEN", token)
    worker = Driver(guarded.url, c.RegisterWorker(worker_id="w0", incarnation="1"))
    running = asyncio.create_task(worker.run())
    await worker.heartbeat(timeout_s=stretch(20))
    await code_of(guarded, f"{token}x")
    shown = [caplog.text.encode(), str(await guarded.call("GetStatus", pb.GetStatus(), guarded.admin)).encode()]
    paths = ("/api/events", "/api/dashboard", "/api/status", "/metrics")
    shown += [(await asyncio.to_thread(guarded.get, path, guarded.admin))[1] for path in paths]
    running.cancel()
    await asyncio.gather(running, return_exceptions=True)
    shown += await asyncio.to_thread(files_below, tmp_path)
    assert len(shown) > 8
    for secret in (token.rpartition("_")[2], guarded.admin.rpartition("_")[2]):
        assert not [each for each in shown if secret.encode() in each]


def files_below(folder: Path) -> list[bytes]:
    return [path.read_bytes() for path in folder.rglob("*") if path.is_file() and path.name != "admin-token"]
