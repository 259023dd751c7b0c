"""Tokens of an OIDC issuer on real sockets: who gets in with one, and until when."""

from __future__ import annotations

import asyncio
import base64
import json
import socket
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
from strata.config import OidcRule, OidcSettings
from strata.coordinator.entry.gate import UnknownKeyError
from strata.coordinator.entry.oidc import OidcIssuer
from strata.errors import ConfigError, UnauthenticatedError
from strata.wire._generated import coordinator_pb2 as pb
from tests.testbed.guarded import Guarded, guarding
from tests.testbed.pace import stretch

AUDIENCE = "strata"


async def code_of(guarded: Guarded, token: str | None) -> grpc.StatusCode:
    answer = await guarded.call("Describe", pb.Describe(), token)
    return answer.code() if isinstance(answer, grpc.aio.AioRpcError) else grpc.StatusCode.OK


class Issuer:
    """An OIDC issuer on this machine, with an RSA and an EC key."""

    def __init__(self) -> None:
        self.keys: dict[str, Any] = {
            "rsa": rsa.generate_private_key(public_exponent=65_537, key_size=2_048),
            "ec": ec.generate_private_key(ec.SECP256R1()),
        }
        self.moved: dict[str, str] = {}
        self.raw = b""
        self.brought: dict[str, str | None] = {}
        """With which token each path was asked for last."""
        issuer = self

        class Handler(BaseHTTPRequestHandler):
            def do_GET(self) -> None:
                if issuer.raw:
                    self.wfile.write(issuer.raw)
                    return
                issuer.brought[self.path] = self.headers["Authorization"]
                answer = issuer.answer(self.path)
                moved = issuer.moved.get(self.path)
                self.send_response(200 if moved is None else 302)
                if moved is not None:
                    self.send_header("Location", moved)
                self.end_headers()
                self.wfile.write(json.dumps(answer).encode())

            def log_message(self, format: str, *arguments: Any) -> None:  # noqa: A002 - as http.server calls it
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
    issuer.answer = lambda _: {"keys": [*odd, *listed]}
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

    issuer.answer = hang
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


def ask_for_keys(issuer: Issuer, **settings: Any) -> OidcIssuer:
    """Return what knows the keys that the issuer named when it was asked once."""
    made = OidcIssuer(OidcSettings(issuer.url, AUDIENCE, (OidcRule(matches="*", role="worker"),), **settings))
    made.refresh()
    return made


def test_keys_are_fetched_from_where_the_issuer_has_moved_them_and_its_own_token_stays_with_it(
    tmp_path: Path, issuer: Issuer
) -> None:
    (tmp_path / "token").write_text("secret-of-the-pod\n")
    found = {"issuer": issuer.url, "jwks_uri": f"{issuer.url}/moved"}
    keys = issuer.answer("/keys")
    issuer.answer = lambda path: found if path.endswith("configuration") else keys
    issuer.moved["/moved"] = f"{issuer.url}/keys"
    known = ask_for_keys(issuer, token_file=tmp_path / "token")
    assert known.check(issuer.sign()).principal.name == "system:serviceaccount:blue:train"
    brought = "Bearer secret-of-the-pod"
    assert issuer.brought == {"/.well-known/openid-configuration": brought, "/moved": brought, "/keys": None}


def test_an_issuer_is_not_asked_again_right_after_it_was(issuer: Issuer, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("strata.coordinator.entry.oidc.MIN_REFRESH_S", 1e6)
    known = ask_for_keys(issuer)
    assert "/keys" in issuer.brought
    issuer.brought.clear()
    known.refresh()
    assert issuer.brought == {}


def test_an_issuer_that_has_another_name_is_not_believed(issuer: Issuer, caplog: pytest.LogCaptureFixture) -> None:
    keys = issuer.answer("/keys")
    found = {"issuer": "https://other.example", "jwks_uri": f"{issuer.url}/keys"}
    issuer.answer = lambda path: found if path.endswith("configuration") else keys
    known = ask_for_keys(issuer)
    assert f"the keys of issuer {issuer.url} cannot be fetched: it calls itself 'https://other.example'" in caplog.text
    with pytest.raises(UnknownKeyError):
        known.check(issuer.sign())


def test_a_token_that_makes_no_sense_is_refused(issuer: Issuer) -> None:
    known = ask_for_keys(issuer)
    nested = base64.urlsafe_b64encode(b"[" * 99_999).decode()
    for token in (issuer.sign(exp=10**400), issuer.sign(exp=float("inf")), f"{nested}.e30.AAAA", "\ud800.e30.AAAA"):
        with pytest.raises(UnauthenticatedError, match="cannot be read"):
            known.check(token)


def test_an_issuer_without_https_elsewhere_is_refused() -> None:
    with pytest.raises(ConfigError, match="https://"):
        OidcIssuer(OidcSettings("http://issuer.example", AUDIENCE, ()))


@pytest.mark.parametrize("way", ["the list of keys", "a redirect"])
async def test_keys_are_not_fetched_from_another_machine_without_tls(
    tmp_path: Path, issuer: Issuer, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, way: str
) -> None:
    """Whoever is on the way could put a key of their own into the answer."""
    resolve = socket.getaddrinfo

    def resolve_here(host: Any, *rest: Any, **fields: Any) -> Any:
        return resolve("127.0.0.1" if host == "keys.test" else host, *rest, **fields)

    monkeypatch.setattr(socket, "getaddrinfo", resolve_here)
    elsewhere = f"http://keys.test:{issuer.server.server_port}/keys"
    keys = issuer.answer("/keys")
    found = {"issuer": issuer.url, "jwks_uri": elsewhere if way == "the list of keys" else f"{issuer.url}/moved"}
    issuer.answer = lambda path: found if path.endswith("configuration") else keys
    issuer.moved["/moved"] = elsewhere
    rule = OidcRule(matches="*", role="worker", tenant="default")
    async with guarding(tmp_path, oidc=OidcSettings(issuer.url, AUDIENCE, (rule,))) as coordinator:
        assert await code_of(coordinator, issuer.sign()) is grpc.StatusCode.UNAUTHENTICATED
    assert "is no https:// URL" in caplog.text


async def refetch(guarded: Guarded) -> None:
    """Have the keys fetched as they are every few minutes, and wait for the answer."""
    issuer = guarded.coordinator.gate.issuer
    assert issuer is not None
    await asyncio.wrap_future(issuer.ask_for_keys())


@pytest.fixture
def at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("strata.coordinator.entry.oidc.MIN_REFRESH_S", 0.0)


@pytest.mark.usefixtures("at_once")
@pytest.mark.parametrize("change", ["gone", "replaced under its name"])
async def test_a_token_ends_when_its_key_leaves_the_issuers_list(
    federated: Guarded, issuer: Issuer, change: str
) -> None:
    old, other = issuer.sign("ec"), issuer.sign("rsa")
    for token in (old, other):
        assert await code_of(federated, token) is grpc.StatusCode.OK
    del issuer.keys["ec"]
    if change != "gone":
        issuer.keys["ec"] = ec.generate_private_key(ec.SECP256R1())
    await refetch(federated)
    assert await code_of(federated, old) is grpc.StatusCode.UNAUTHENTICATED
    status, _ = await asyncio.to_thread(federated.get, "/api/jobs", old)
    assert status == 401
    assert await code_of(federated, other) is grpc.StatusCode.OK
    if change != "gone":
        assert await code_of(federated, issuer.sign("ec")) is grpc.StatusCode.OK


@pytest.mark.usefixtures("at_once")
@pytest.mark.parametrize("transport", ["channel", "stream"])
async def test_a_key_that_leaves_the_issuers_list_ends_the_connections_of_its_tokens(
    federated: Guarded, issuer: Issuer, monkeypatch: pytest.MonkeyPatch, transport: str
) -> None:
    await federated.make_tenant("blue")
    monkeypatch.setenv("STRATA_TOKEN", issuer.sign("ec"))
    worker = Driver(
        federated.url, c.RegisterWorker(worker_id="w0", incarnation="1"), use_channel=transport == "channel"
    )
    running = asyncio.create_task(worker.run())
    await worker.heartbeat(timeout_s=stretch(20))
    assert worker.kind == transport
    del issuer.keys["ec"]
    await refetch(federated)
    async with asyncio.timeout(stretch(20)):
        await running
    assert isinstance(worker.protocol.refusal, UnauthenticatedError)
    assert not federated.coordinator.sessions.open


@pytest.mark.usefixtures("at_once")
@pytest.mark.parametrize(
    "answer", [{}, {"keys": None}, {"keys": []}, {"keys": [{"kty": "new"}]}, [], "no JSON"], ids=str
)
async def test_an_issuer_that_cannot_name_its_keys_locks_nobody_out(
    federated: Guarded, issuer: Issuer, answer: Any
) -> None:
    before, later = issuer.sign("rsa"), issuer.sign("ec")
    assert await code_of(federated, before) is grpc.StatusCode.OK
    if answer == "no JSON":
        issuer.server.shutdown()
        issuer.server.server_close()
    else:
        found = issuer.answer("openid-configuration")
        issuer.answer = lambda path: found if path.endswith("configuration") else answer
    await refetch(federated)
    for token in (before, later):
        assert await code_of(federated, token) is grpc.StatusCode.OK


@pytest.mark.usefixtures("at_once")
@pytest.mark.parametrize(
    "raw",
    [
        b"nonsense\r\n\r\n",
        b"HTTP/1.1 200 OK\r\nContent-Length: 1000\r\n\r\n{",
        b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\nzz",
        b"HTTP/1.1 200 OK\r\n\r\n" + b"[" * 100_000,
        b"HTTP/1.1 200 OK\r\n\r\n\xff\xfe",
    ],
    ids=["no HTTP", "cut off", "broken chunks", "deep", "no text"],
)
async def test_an_issuer_that_answers_nonsense_locks_nobody_out(federated: Guarded, issuer: Issuer, raw: bytes) -> None:
    before = issuer.sign("rsa")
    assert await code_of(federated, before) is grpc.StatusCode.OK
    issuer.keys["ec-2"] = ec.generate_private_key(ec.SECP256R1())
    issuer.raw = raw
    await refetch(federated)
    assert await code_of(federated, before) is grpc.StatusCode.OK
    assert await code_of(federated, issuer.sign("ec-2")) is grpc.StatusCode.UNAUTHENTICATED
    issuer.raw = b""
    assert await code_of(federated, issuer.sign("ec-2")) is grpc.StatusCode.OK


async def test_a_revoked_token_ends_its_connections_while_the_issuer_does_not_answer(
    tmp_path: Path, issuer: Issuer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("strata.coordinator.entry.oidc.MIN_REFRESH_S", 0.0)
    monkeypatch.setattr("strata.coordinator.entry.oidc.TIMEOUT_S", stretch(60))
    monkeypatch.setattr("strata.coordinator.entry.gate.KEYS_S", 0.0)
    asked, go_on = Event(), Event()

    def hang(_: str) -> Any:
        asked.set()
        assert go_on.wait(stretch(60))
        return {}

    issuer.answer = hang
    rule = OidcRule(matches="*", role="worker", tenant="default")
    async with guarding(tmp_path, oidc=OidcSettings(issuer.url, AUDIENCE, (rule,))) as guarded:
        try:
            token = await guarded.make_token(Role.WORKER)
            monkeypatch.setenv("STRATA_TOKEN", token)
            worker = Driver(guarded.url, c.RegisterWorker(worker_id="w0", incarnation="1"))
            running = asyncio.create_task(worker.run())
            await worker.heartbeat(timeout_s=stretch(20))
            assert await asyncio.to_thread(asked.wait, stretch(20))
            await guarded.revoke(token)
            async with asyncio.timeout(stretch(20)):
                await running
            assert isinstance(worker.protocol.refusal, UnauthenticatedError)
        finally:
            go_on.set()
