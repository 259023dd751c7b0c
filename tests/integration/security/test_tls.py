"""TLS on real sockets: whom clients trust, what they are told when they do not, and files that are rotated."""

from __future__ import annotations

import asyncio
import shutil
import socket
import ssl
from pathlib import Path
from typing import Any

import pytest
from starlette.requests import Request

from strata.client.credentials import Credentials
from strata.client.description import describe as describe_coordinator
from strata.client.dial import Dial
from strata.client.driver import Driver
from strata.client.http_reader import HttpReader
from strata.client.transport import ChannelTransport, TransportLostError
from strata.client.unary import ask
from strata.cluster import commands as c
from strata.cluster.access import Role
from strata.coordinator.entry.certificates import CertificateFiles, make_certificates
from strata.dashboard.upstream import Upstream
from strata.errors import CoordinatorLostError, UntrustedCoordinatorError
from strata.wire._generated import coordinator_pb2 as pb
from tests.testbed.guarded import Guarded, guarding
from tests.testbed.pace import stretch
from tests.testbed.waiting import wait_until


def describe(url: str) -> Any:
    return ask(url, lambda stub: stub.Describe(pb.Describe(), timeout=stretch(5)))


def trust(monkeypatch: pytest.MonkeyPatch, guarded: Guarded, ca: Path) -> None:
    monkeypatch.setenv("STRATA_TLS_CA", str(ca))
    monkeypatch.setenv("STRATA_TOKEN", guarded.admin)


def ports(guarded: Guarded) -> list[int]:
    found = guarded.coordinator
    assert found.http_port is not None
    return [found.grpc_port, found.channel_port, found.http_port]


async def test_a_coordinator_of_the_right_authority_is_trusted(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    async with guarding(tmp_path, tls=True) as guarded:
        assert guarded.files is not None
        trust(monkeypatch, guarded, guarded.files.ca)
        description = await asyncio.to_thread(describe, guarded.url)
        assert description.channel_url.startswith("wss://")
        assert description.http_url.startswith("https://")


@pytest.mark.parametrize(
    ("fault", "words"),
    [
        ("wrong authority", "unable to get local issuer|certificate signature failure|unknown"),
        ("system's authorities", "unable to get local issuer|self.signed"),
        ("expired", "expired"),
        ("self-signed", "self.signed|unable to get local issuer"),
        ("wrong host", "mismatch|not valid for"),
    ],
)
async def test_a_coordinator_that_is_not_shown_to_be_right_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, fault: str, words: str
) -> None:
    async with guarding(tmp_path, tls=True) as guarded:
        assert guarded.files is not None
        files = guarded.files
        trust(monkeypatch, guarded, files.ca)
        before = {port: await asyncio.to_thread(unchecked, port) for port in ports(guarded)}
        if fault == "wrong authority":
            trust(monkeypatch, guarded, make_certificates(tmp_path / "other", hosts=["127.0.0.1"], days=1).ca)
        elif fault == "system's authorities":
            monkeypatch.delenv("STRATA_TLS_CA")
        elif fault == "expired":
            # An hour before now until then: over before it begins to be used.
            make_certificates(files.folder, hosts=["127.0.0.1"], days=0)
        elif fault == "self-signed":
            shutil.copy(files.ca, files.cert)
            shutil.copy(files.ca_key, files.key)
            trust(monkeypatch, guarded, make_certificates(tmp_path / "other", hosts=["127.0.0.1"], days=1).ca)
        else:
            make_certificates(files.folder, hosts=["another.example"], days=1)
        if fault in ("expired", "self-signed", "wrong host"):
            # gRPC itself does not take an authority's certificate for a server's, and goes on with the one before.
            for port in ports(guarded)[fault == "self-signed" :]:
                await asyncio.to_thread(wait_until, lambda port=port: unchecked(port) != before[port])
        with pytest.raises(UntrustedCoordinatorError, match=words):
            await asyncio.to_thread(describe, guarded.url)
        # The other ports are checked too: whoever stands between may let one of them through.
        with pytest.raises(UntrustedCoordinatorError, match=words):
            await asyncio.to_thread(HttpReader(guarded.http_url).get, "/api/health")
        channel_url = f"wss://127.0.0.1:{guarded.coordinator.channel_port}"
        with pytest.raises(TransportLostError, match=words):
            await ChannelTransport.connect(channel_url, Dial.to(guarded.url))


@pytest.mark.parametrize("port", ["grpc", "channel", "http"])
async def test_a_client_that_asks_for_tls_never_speaks_without_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, port: str
) -> None:
    async with guarding(tmp_path) as guarded:
        monkeypatch.setenv("STRATA_TOKEN", guarded.admin)
        found = guarded.coordinator
        with pytest.raises((UntrustedCoordinatorError, CoordinatorLostError, TransportLostError)):
            if port == "grpc":
                await asyncio.to_thread(describe, f"grpcs://127.0.0.1:{found.grpc_port}")
            elif port == "http":
                await asyncio.to_thread(HttpReader(f"https://127.0.0.1:{found.http_port}").get, "/api/health")
            else:
                url = f"grpcs://127.0.0.1:{found.grpc_port}"
                await ChannelTransport.connect(f"wss://127.0.0.1:{found.channel_port}", Dial.to(url))
        assert found.gate.attempts.total == 0, "no token was sent"


@pytest.mark.filterwarnings("ignore:.*TLSv1_1 is deprecated:DeprecationWarning")
async def test_tls_1_1_is_refused_on_every_port_and_1_3_is_used(tmp_path: Path) -> None:
    async with guarding(tmp_path, tls=True) as guarded:
        assert guarded.files is not None

        def shake_hands(port: int, *, newest: ssl.TLSVersion) -> str | None:
            context = ssl.create_default_context(cafile=guarded.files.ca)
            context.set_alpn_protocols(["h2", "http/1.1"])
            context.set_ciphers("DEFAULT:@SECLEVEL=0")
            context.minimum_version = min(ssl.TLSVersion.TLSv1_1, newest)
            context.maximum_version = newest
            with (
                socket.create_connection(("127.0.0.1", port), timeout=stretch(5)) as plain,
                context.wrap_socket(plain, server_hostname="localhost") as secured,
            ):
                return secured.version()

        for port in ports(guarded):
            newest = await asyncio.to_thread(shake_hands, port, newest=ssl.TLSVersion.TLSv1_3)
            assert newest == "TLSv1.3"
            with pytest.raises((ssl.SSLError, ConnectionError)):
                await asyncio.to_thread(shake_hands, port, newest=ssl.TLSVersion.TLSv1_1)


async def test_mutual_tls_lets_in_only_who_has_a_certificate(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    files = make_certificates(tmp_path / "tls", hosts=["127.0.0.1"], days=1)
    async with guarding(tmp_path, mutual=True, tls=True) as guarded:
        trust(monkeypatch, guarded, files.ca)
        monkeypatch.setenv("STRATA_TLS_CERT", str(files.client_cert))
        monkeypatch.setenv("STRATA_TLS_KEY", str(files.client_key))
        assert (await asyncio.to_thread(describe, guarded.url)).protocol
        monkeypatch.delenv("STRATA_TLS_CERT")
        monkeypatch.delenv("STRATA_TLS_KEY")
        with pytest.raises(UntrustedCoordinatorError, match="STRATA_TLS_CERT and STRATA_TLS_KEY"):
            await asyncio.to_thread(describe, guarded.url)
        # Of another authority, and one that is no client's.
        other = make_certificates(tmp_path / "other", hosts=["127.0.0.1"], days=1)
        for cert, key in ((other.client_cert, other.client_key), (files.cert, files.key)):
            monkeypatch.setenv("STRATA_TLS_CERT", str(cert))
            monkeypatch.setenv("STRATA_TLS_KEY", str(key))
            with pytest.raises(UntrustedCoordinatorError, match="STRATA_TLS_CERT and STRATA_TLS_KEY"):
                await asyncio.to_thread(describe, guarded.url)


@pytest.mark.parametrize("fault", [None, "no certificate", "another authority's", "a server's", "expired"])
async def test_mutual_tls_is_asked_for_on_every_port(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, fault: str | None
) -> None:
    async with guarding(tmp_path, mutual=True, tls=True) as guarded:
        assert guarded.files is not None
        files = guarded.files
        pair = files.client_cert, files.client_key
        if fault == "another authority's":
            other = make_certificates(tmp_path / "other", hosts=["127.0.0.1"], days=1)
            pair = other.client_cert, other.client_key
        elif fault == "a server's":
            pair = files.cert, files.key
        elif fault == "expired":
            shutil.copytree(files.folder, tmp_path / "same")
            old = make_certificates(tmp_path / "same", hosts=["127.0.0.1"], days=0)
            pair = old.client_cert, old.client_key
        trust(monkeypatch, guarded, files.ca)
        if fault != "no certificate":
            monkeypatch.setenv("STRATA_TLS_CERT", str(pair[0]))
            monkeypatch.setenv("STRATA_TLS_KEY", str(pair[1]))
        for port in ports(guarded):
            is_answered = await asyncio.to_thread(ask_raw, port, guarded.admin) != b""
            assert is_answered is (fault is None)
        if fault is None:
            return
        with pytest.raises(TransportLostError):
            await ChannelTransport.connect(f"wss://127.0.0.1:{guarded.coordinator.channel_port}", Dial.to(guarded.url))


async def test_a_dashboard_without_a_certificate_is_told_that_it_needs_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with guarding(tmp_path, mutual=True, tls=True) as guarded:
        assert guarded.files is not None
        trust(monkeypatch, guarded, guarded.files.ca)
        upstream = Upstream(guarded.http_url, Credentials.load())
        where = {"path": "/api/jobs", "raw_path": b"/api/jobs", "query_string": b"", "server": ("page", 80)}
        answer = await upstream.forward(Request({"type": "http", "method": "GET", "headers": [], **where}))
        assert answer.status_code == 502
        assert b"STRATA_TLS_CERT and STRATA_TLS_KEY" in answer.body


def ask_raw(port: int, token: str) -> bytes:
    """Return what a port answers to a request of HTTP that has the token and the certificate of the settings."""
    context = Credentials.load().ssl_context()
    context.set_alpn_protocols(["h2", "http/1.1"])
    try:
        with (
            socket.create_connection(("127.0.0.1", port), timeout=stretch(10)) as plain,
            context.wrap_socket(plain, server_hostname="127.0.0.1") as secured,
        ):
            secured.sendall(f"GET /api/jobs HTTP/1.1\r\nHost: x\r\nAuthorization: Bearer {token}\r\n\r\n".encode())
            return secured.recv(1_000)
    except (ssl.SSLError, ConnectionError):
        return b""


async def test_a_port_that_is_not_what_the_address_says_is_told_from_one_where_nobody_is(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with guarding(tmp_path, tls=True) as guarded:
        assert guarded.files is not None
        trust(monkeypatch, guarded, guarded.files.ca)
        grpc_port, channel_port, http_port = ports(guarded)
        for port in (grpc_port, channel_port, http_port):
            with pytest.raises(UntrustedCoordinatorError, match="it speaks TLS, and the address does not"):
                await asyncio.to_thread(describe, f"grpc://127.0.0.1:{port}")
        for port in (channel_port, http_port):
            with pytest.raises(UntrustedCoordinatorError, match="what listens there is not gRPC"):
                await asyncio.to_thread(describe, f"grpcs://127.0.0.1:{port}")
    with pytest.raises(CoordinatorLostError, match="cannot be reached"):
        await asyncio.to_thread(describe, f"grpc://127.0.0.1:{grpc_port}")


async def test_a_silent_coordinator_is_not_asked_why(monkeypatch: pytest.MonkeyPatch) -> None:
    # As of one that is frozen: the system takes connections for it. Another one may lead, and waits to be found.
    def probe(*_: object, **__: object) -> None:
        raise AssertionError("it was probed")

    monkeypatch.setattr(Dial, "find_tls_problem", probe)
    with socket.create_server(("127.0.0.1", 0)) as frozen:
        url = f"grpcs://127.0.0.1:{frozen.getsockname()[1]}"
        with pytest.raises(CoordinatorLostError):
            await asyncio.to_thread(ask, url, lambda stub: stub.Describe(pb.Describe(), timeout=0.5))
        with pytest.raises(CoordinatorLostError):
            await asyncio.to_thread(
                describe_coordinator, Dial.to(url), url.removeprefix("grpcs://"), name="127.0.0.1:1", timeout_s=0.5
            )


async def test_a_worker_that_trusts_another_authority_says_so_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    async with guarding(tmp_path, tls=True) as guarded:
        trust(monkeypatch, guarded, make_certificates(tmp_path / "other", hosts=["127.0.0.1"], days=1).ca)
        worker = Driver(guarded.url, c.RegisterWorker(worker_id="w", incarnation="i"))
        tries: list[float] = []
        lost = worker.protocol.lost

        def note(now_s: float) -> list[Any]:
            tries.append(now_s)
            return lost(now_s)

        monkeypatch.setattr(worker.protocol, "lost", note)
        running = asyncio.create_task(worker.run())
        await asyncio.to_thread(wait_until, lambda: len(tries) >= 3, "three attempts")
        running.cancel()
        await asyncio.gather(running, return_exceptions=True)
    assert caplog.text.count("still trying to connect: no TLS connection to the coordinator") == 1


async def test_a_certificate_is_rotated_under_workers_and_none_of_them_notices(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with guarding(tmp_path, tls=True) as guarded:
        assert guarded.files is not None
        trust(monkeypatch, guarded, guarded.files.ca)
        monkeypatch.setenv("STRATA_TOKEN", await guarded.make_token(Role.WORKER))
        workers = [Driver(guarded.url, c.RegisterWorker(worker_id=f"w{n}", incarnation="1")) for n in range(3)]
        running = [asyncio.create_task(worker.run()) for worker in workers]
        for worker in workers:
            await worker.heartbeat(timeout_s=stretch(20))
        assert {worker.kind for worker in workers} == {"channel"}
        files = guarded.files
        before = {port: await asyncio.to_thread(served, files, port) for port in ports(guarded)}
        transports = [worker._transport for worker in workers]
        make_certificates(guarded.files.folder, hosts=["localhost", "127.0.0.1"], days=1)
        for port in ports(guarded):
            await asyncio.to_thread(wait_until, lambda port=port: served(files, port) != before[port])
        for worker in workers:
            await worker.heartbeat(timeout_s=stretch(20))
        assert [worker._transport for worker in workers] == transports, "no connection was dropped"
        status = await guarded.call("GetStatus", pb.GetStatus(), guarded.admin)
        assert [worker.state for worker in status.jobs[0].workers] == ["idle"] * 3
        for task in running:
            task.cancel()
        await asyncio.gather(*running, return_exceptions=True)


def unchecked(port: int) -> str:
    return ssl.get_server_certificate(("127.0.0.1", port), timeout=stretch(10))


def served(files: CertificateFiles, port: int) -> str:
    return ssl.get_server_certificate(("127.0.0.1", port), ca_certs=str(files.ca))


async def test_the_keys_and_the_journal_are_for_their_owner_alone(tmp_path: Path) -> None:
    async with guarding(tmp_path, tls=True) as guarded:
        await guarded.make_token(Role.WORKER)
        modes = await asyncio.to_thread(modes_below, tmp_path)
        assert {name for name, mode in modes.items() if mode & 0o077} <= {"ca.pem", "server.pem", "client.pem"}
        assert {"journal.db", "journal.db-wal", "admin-token", "server-key.pem"} <= set(modes)


def modes_below(folder: Path) -> dict[str, int]:
    return {path.name: path.stat().st_mode for path in folder.rglob("*") if path.is_file()}
