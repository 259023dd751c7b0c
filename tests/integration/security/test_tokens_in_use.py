"""Tokens on real sockets: revoked under a worker, hostile, of an issuer, and where their secrets must not be."""

from __future__ import annotations

import asyncio
import json
import logging
import time
from collections.abc import AsyncIterator, Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from threading import Event, Thread
from typing import Any

import grpc
import jwt
import pytest
from cryptography.hazmat.primitives.asymmetric import ec, rsa

from strata.client.driver import Driver
from strata.cluster import commands as c
from strata.cluster.access import Role
from strata.cluster.access import administration as t
from strata.config import OidcRule, OidcSettings
from strata.coordinator.entry.gate import REFUSED
from strata.errors import ConfigError, UnauthenticatedError
from strata.wire._generated import coordinator_pb2 as pb
from tests.testbed.guarded import Guarded, guarding
from tests.testbed.pace import stretch

AUDIENCE = "strata"


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


class Issuer:
    """An OIDC issuer on this machine, with an RSA and an EC key."""

    def __init__(self) -> None:
        self.keys: dict[str, Any] = {
            "rsa": rsa.generate_private_key(public_exponent=65_537, key_size=2_048),
            "ec": ec.generate_private_key(ec.SECP256R1()),
        }
        issuer = self

        class Handler(BaseHTTPRequestHandler):
            def do_GET(self) -> None:
                answer = issuer.answer(self.path)
                self.send_response(200)
                self.end_headers()
                self.wfile.write(json.dumps(answer).encode())

            def log_message(self, format: str, *arguments: Any) -> None:  # noqa: A002
                pass

        self.server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.url = f"http://127.0.0.1:{self.server.server_port}"

    def answer(self, path: str) -> Any:
        if path.endswith("openid-configuration"):
            return {"issuer": self.url, "jwks_uri": f"{self.url}/keys"}
        algorithms = {"rsa": jwt.algorithms.RSAAlgorithm, "ec": jwt.algorithms.ECAlgorithm}
        keys = [
            {**json.loads(algorithms[kid.partition("-")[0]].to_jwk(key.public_key())), "kid": kid, "use": "sig"}
            for kid, key in self.keys.items()
        ]
        return {"keys": keys}

    def sign(self, kid: str = "rsa", **changes: Any) -> str:
        claims = {"iss": self.url, "aud": AUDIENCE, "exp": time.time() + 600, "sub": "system:serviceaccount:blue:train"}
        claims |= {"kubernetes.io": {"namespace": "blue", "serviceaccount": {"name": "train"}}, **changes}
        claims = {name: value for name, value in claims.items() if value is not None}
        algorithm = "RS256" if kid.startswith("rsa") else "ES256"
        return jwt.encode(claims, self.keys[kid], algorithm=algorithm, headers={"kid": kid})


@pytest.fixture
def issuer() -> Iterator[Issuer]:
    made = Issuer()
    thread = Thread(target=made.server.serve_forever, daemon=True)
    thread.start()
    yield made
    made.server.shutdown()
    made.server.server_close()
    thread.join()


@pytest.fixture
async def federated(tmp_path: Path, issuer: Issuer) -> AsyncIterator[Guarded]:
    rule = OidcRule(matches="system:serviceaccount:*:train", role="worker", tenant_claim="kubernetes.io/namespace")
    async with guarding(tmp_path, oidc=OidcSettings(issuer.url, AUDIENCE, (rule,))) as coordinator:
        yield coordinator


@pytest.mark.parametrize("kid", ["rsa", "ec"])
async def test_a_service_accounts_token_gets_in_as_its_namespace(federated: Guarded, issuer: Issuer, kid: str) -> None:
    await federated.make_tenant("blue")
    token = issuer.sign(kid)
    answer = await federated.call("ConfigureJob", pb.ConfigureJob(job_id="llm", min_workers=1), token)
    assert isinstance(answer, pb.Done), answer
    status = await federated.call("GetStatus", pb.GetStatus(), federated.admin)
    assert [job.job_id for job in status.jobs] == ["blue/llm"]
    answer = await federated.call("RemoveJob", pb.RemoveJob(job_id="llm"), token)
    assert answer.code() is grpc.StatusCode.PERMISSION_DENIED


async def test_a_key_that_the_issuer_has_just_made_is_asked_for(
    federated: Guarded, issuer: Issuer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("strata.coordinator.entry.oidc.MIN_REFRESH_S", 0.0)
    assert await code_of(federated, issuer.sign()) is grpc.StatusCode.OK
    issuer.keys["ec-2"] = ec.generate_private_key(ec.SECP256R1())
    assert await code_of(federated, issuer.sign("ec-2")) is grpc.StatusCode.OK


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"aud": "another"}, "another audience"),
        ({"iss": "https://evil.example"}, "another issuer"),
        ({"exp": 1.0}, "expired"),
        ({"exp": None}, "lacks a claim"),
        ({"aud": None}, "lacks a claim"),
        ({"nbf": time.time() + 10_000}, "not valid yet"),
        ({"sub": "system:serviceaccount:blue:other"}, "no rule"),
        ({"kubernetes.io": {"namespace": "a/b"}}, "no tenant's name"),
        ({"kubernetes.io": {"namespace": ["blue", "red"]}}, "no tenant's name"),
    ],
)
async def test_a_token_that_is_not_for_this_is_refused(
    federated: Guarded, issuer: Issuer, changes: dict[str, Any], words: str
) -> None:
    answer = await federated.call("Describe", pb.Describe(), issuer.sign(**changes))
    assert answer.code() is grpc.StatusCode.UNAUTHENTICATED
    assert words in answer.details()


async def test_no_algorithm_without_a_key_of_the_issuer_is_taken(federated: Guarded, issuer: Issuer) -> None:
    claims = jwt.decode(issuer.sign(), options={"verify_signature": False})
    forged = jwt.encode(claims, "", algorithm="none", headers={"kid": "rsa"})
    symmetric = jwt.encode(claims, "k" * 64, algorithm="HS256", headers={"kid": "rsa"})
    head, body, _ = issuer.sign().split(".")
    for token in (forged, symmetric, f"{head}.{body}.", f"{head}.{body}.AAAA"):
        assert await code_of(federated, token) is grpc.StatusCode.UNAUTHENTICATED


async def test_a_key_of_an_unknown_kind_spoils_no_other(tmp_path: Path, issuer: Issuer) -> None:
    listed = issuer.answer("/keys")["keys"]
    odd = [{"kty": "OKP", "crv": "X9", "x": "AA", "kid": "odd"}, {"kty": "RSA", "n": "!", "e": "AQAB", "kid": "bad"}]
    issuer.answer = lambda _: {"keys": [*odd, *listed]}  # type: ignore[method-assign]
    rule = OidcRule(matches="*", role="worker", tenant="default")
    settings = OidcSettings(issuer.url, AUDIENCE, (rule,), jwks_url=f"{issuer.url}/keys")
    async with guarding(tmp_path, oidc=settings) as coordinator:
        assert await code_of(coordinator, issuer.sign()) is grpc.StatusCode.OK


async def test_tokens_with_unknown_keys_hold_up_no_command_while_the_issuer_does_not_answer(
    federated: Guarded, issuer: Issuer, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert await code_of(federated, issuer.sign()) is grpc.StatusCode.OK
    monkeypatch.setattr("strata.coordinator.entry.oidc.MIN_REFRESH_S", 0.0)
    monkeypatch.setattr("strata.coordinator.entry.oidc.TIMEOUT_S", stretch(60))
    asked, go_on = Event(), Event()

    def hang(_: str) -> Any:
        asked.set()
        assert go_on.wait(stretch(60))
        return {"keys": []}

    issuer.answer = hang  # type: ignore[method-assign]
    issuer.keys["ec-2"] = ec.generate_private_key(ec.SECP256R1())
    strangers = [asyncio.create_task(code_of(federated, issuer.sign("ec-2"))) for _ in range(40)]
    try:
        await asyncio.to_thread(asked.wait, stretch(20))
        # Durable, so it needs a thread; the strangers still wait for theirs.
        async with asyncio.timeout(stretch(20)):
            await federated.make_tenant("blue")
        assert not any(task.done() for task in strangers)
    finally:
        go_on.set()
    assert set(await asyncio.gather(*strangers)) == {grpc.StatusCode.UNAUTHENTICATED}


def test_an_issuer_without_https_elsewhere_is_refused() -> None:
    from strata.coordinator.entry.oidc import OidcIssuer

    with pytest.raises(ConfigError, match="https://"):
        OidcIssuer(OidcSettings("http://issuer.example", AUDIENCE, ()))
