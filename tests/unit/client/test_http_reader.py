"""Reading the coordinator's HTTP API: an answer of another program is not mistaken for an absent coordinator."""

from __future__ import annotations

import json
import socket
import ssl
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from strata.client.dial import NO_CERTIFICATE
from strata.client.http_reader import HttpReader
from strata.coordinator.entry.certificates import make_certificates
from strata.coordinator.server import Coordinator
from strata.errors import CoordinatorLostError, StrataError, UntrustedCoordinatorError
from tests.testbed.coordinator import coordinator_thread
from tests.testbed.network.one_connection import one_connection
from tests.testbed.process import free_ports


@contextmanager
def answering(answer: bytes) -> Iterator[str]:
    """Answer one request with these bytes; give the URL."""

    def serve(connection: socket.socket) -> None:
        request = b""
        while b"\r\n\r\n" not in request:
            request += connection.recv(4096)
        connection.sendall(answer)

    with one_connection(serve) as address:
        yield f"http://{address}"


def response(status: str, body: bytes) -> bytes:
    return f"HTTP/1.1 {status}\r\nContent-Length: {len(body)}\r\n\r\n".encode() + body


@pytest.mark.parametrize(
    ("answer", "words"),
    [
        (response("200 OK", b"<html>"), "{url}/api/jobs answered with something that is not JSON: is Strata there?"),
        (response("404 Not Found", json.dumps({"detail": "there is no job 'a'"}).encode()), "there is no job 'a'"),
        (response("404 Not Found", b"<html>"), "{url}/api/jobs answered 404 Not Found"),
        (response("404 Not Found", b"[]"), "{url}/api/jobs answered 404 Not Found"),
        (response("503 Service Unavailable", b"{}"), "{url}/api/jobs answered 503 Service Unavailable"),
    ],
)
def test_an_answer_that_is_none_is_quoted(answer: bytes, words: str) -> None:
    with answering(answer) as url, pytest.raises(StrataError) as caught:
        HttpReader(url).get("/api/jobs")
    assert type(caught.value) is StrataError
    assert str(caught.value) == words.format(url=url)


@pytest.mark.parametrize(
    "answer", [b"", response("200 OK", b"{}")[:-1], b"no HTTP\r\n\r\n"], ids=["nothing", "a part", "not HTTP"]
)
def test_a_coordinator_that_hangs_up_within_its_answer_is_away(answer: bytes) -> None:
    with answering(answer) as url, pytest.raises(CoordinatorLostError) as caught:
        HttpReader(url).get("/api/jobs")
    assert caught.value.address == url


def test_what_did_not_change_is_answered_from_memory() -> None:
    with coordinator_thread(http_address="127.0.0.1:0") as coordinator:
        reader = HttpReader(f"http://127.0.0.1:{coordinator.http_port}")
        first = reader.get("/api/jobs")
        assert reader.get("/api/jobs") is first
        assert reader.get("/api/jobs", tenant=None) is first


def url_of(coordinator: Coordinator) -> str:
    return f"127.0.0.1:{coordinator.grpc_port}"


@pytest.mark.parametrize("answer", [b"", response("503 Service Unavailable", b"{}")], ids=["away", "a standby"])
def test_the_leader_is_looked_for_when_another_replica_cannot_answer(answer: bytes) -> None:
    with coordinator_thread(http_address="127.0.0.1:0") as leader, answering(answer) as url:
        reader = HttpReader(url, coordinator=url_of(leader))
        assert reader.get("/api/health")["status"] == "ok"
        # From now on it is asked at once: the other one answers no second request.
        assert reader.get("/api/health")["status"] == "ok"


def test_a_leader_whose_pages_are_gone_is_not_asked_twice() -> None:
    (closed,) = free_ports(1)
    options = {"http_address": "127.0.0.1:0", "advertise_http": f"127.0.0.1:{closed}"}
    with coordinator_thread(**options) as leader, pytest.raises(CoordinatorLostError) as caught:
        HttpReader(f"http://127.0.0.1:{closed}", coordinator=url_of(leader)).get("/api/health")
    assert caught.value.address == f"http://127.0.0.1:{closed}"


def test_a_reader_without_a_certificate_is_told_that_it_needs_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    files = make_certificates(tmp_path, hosts=["127.0.0.1"], days=1)
    monkeypatch.setenv("STRATA_TLS_CA", str(files.ca))
    context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH, cafile=files.ca)
    context.load_cert_chain(files.cert, files.key)
    context.verify_mode = ssl.CERT_REQUIRED

    def refuse(connection: socket.socket) -> None:
        secured = context.wrap_socket(connection, server_side=True, do_handshake_on_connect=False)
        with pytest.raises(ssl.SSLError):
            secured.do_handshake()
        # What is left unread when it is closed would take the alert off the wire.
        with socket.socket(fileno=secured.detach()) as plain:
            while plain.recv(4096):
                pass

    with one_connection(refuse) as address, pytest.raises(UntrustedCoordinatorError) as caught:
        HttpReader(f"https://{address}").get("/api/health")
    assert caught.value.problem == f"{NO_CERTIFICATE} (tlsv13 alert certificate required)"
