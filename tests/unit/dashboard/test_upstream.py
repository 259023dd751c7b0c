"""Forwarding to the coordinator: its answers as they are, and words where there are none."""

from __future__ import annotations

import asyncio
import json
import shutil
import socket
import ssl
import struct
import threading
import urllib.error
import urllib.request
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import TYPE_CHECKING
from unittest.mock import ANY

import pytest

from strata.client.credentials import Credentials
from strata.coordinator.entry.certificates import make_certificates
from strata.dashboard import upstream
from strata.dashboard.page_server import DashboardServer
from strata.dashboard.upstream import Upstream
from strata.errors import PortTakenError
from tests.testbed.network.one_connection import one_connection
from tests.testbed.pace import stretch
from tests.testbed.process import free_ports
from tests.testbed.web import serve_files

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from email.message import Message
    from pathlib import Path


@contextmanager
def serving(url: str, credentials: Credentials | None = None) -> Iterator[DashboardServer]:
    server = DashboardServer(Upstream(url, credentials), host="127.0.0.1", port=0)
    thread = threading.Thread(target=lambda: asyncio.run(server.serve()), daemon=True)
    thread.start()
    try:
        yield server
    finally:
        server.stop()
        thread.join()


def get(url: str, **headers: str) -> tuple[int, Message, bytes]:
    request = urllib.request.Request(url, headers=headers)
    try:
        with urllib.request.urlopen(request, timeout=stretch(30)) as answer:
            return answer.status, answer.headers, answer.read()
    except urllib.error.HTTPError as error:
        with error:
            return error.code, error.headers, error.read()


def test_the_api_is_forwarded_as_it_is() -> None:
    with serve_files() as coordinator, serving(coordinator.url) as server:
        coordinator.files["/api/jobs"] = b'{"jobs": []}'
        status, headers, body = get(f"{server.url}/api/jobs?job=a%20b")
        assert (status, body) == (200, b'{"jobs": []}')
        assert headers["ETag"]
        assert get(f"{server.url}/api/gone")[0] == 404


def test_a_coordinator_that_is_away_is_said_in_words_and_comes_back() -> None:
    (port,) = free_ports(1)
    with serving(f"http://127.0.0.1:{port}") as server:
        status, _, body = get(f"{server.url}/api/jobs")
        assert status == 502
        assert f"the coordinator at http://127.0.0.1:{port} does not answer" in json.loads(body)["detail"]


@contextmanager
def standby_of(leader: str, tls: ssl.SSLContext | None = None) -> Iterator[str]:
    """A coordinator that says with each request who leads, or that nobody does."""

    class Standby(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            self.send_response(307 if leader else 503)
            if leader:
                self.send_header("Location", f"{leader}{self.path}")
            self.send_header("Content-Length", "0")
            self.end_headers()

        def log_message(self, *_: object) -> None:
            pass

    with ThreadingHTTPServer(("127.0.0.1", 0), Standby) as server:
        if tls:
            server.socket = tls.wrap_socket(server.socket, server_side=True)
        threading.Thread(target=server.serve_forever, daemon=True).start()
        yield f"http://127.0.0.1:{server.server_address[1]}"
        server.shutdown()


def test_a_standby_is_not_shown_to_the_browser_but_the_leader_that_it_names() -> None:
    with serve_files() as leader, standby_of(leader.url) as standby, serving(standby) as server:
        leader.files["/api/jobs"] = b'{"jobs": []}'
        assert get(f"{server.url}/api/jobs?job=a") == (200, ANY, b'{"jobs": []}')


@pytest.mark.parametrize(("name", "status"), [("localhost", 503), ("elsewhere.example", 502)])
def test_a_leader_that_is_known_by_a_number_must_have_the_name_that_was_asked_for(
    tmp_path: Path, name: str, status: int
) -> None:
    """As in Kubernetes, where the certificate has the name of the Service and a pod has a number."""
    contexts = []
    for folder, host in (("a", "localhost"), ("b", name)):
        # The same authority for both.
        shutil.copytree(tmp_path / "a", tmp_path / folder) if folder == "b" else None
        files = make_certificates(tmp_path / folder, hosts=[host], days=1)
        contexts.append(ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER))
        contexts[-1].load_cert_chain(files.cert, files.key)
    credentials = Credentials(ca=tmp_path / "a" / "ca.pem")
    with standby_of("", contexts[1]) as leader:
        found = leader.replace("http://", "https://")
        with standby_of(found, contexts[0]) as standby:
            url = standby.replace("http://127.0.0.1", "https://localhost")
            with serving(url, credentials) as server:
                assert get(f"{server.url}/api/jobs")[0] == status


def test_a_standby_that_names_an_address_of_another_kind_is_not_followed() -> None:
    with standby_of("ftp://127.0.0.1:1") as standby, serving(standby) as server:
        status, _, body = get(f"{server.url}/api/jobs")
    assert status == 502
    assert "ftp://127.0.0.1:1 leads, which is no address of its kind" in json.loads(body)["detail"]


def test_a_standby_without_a_leader_is_believed_only_if_no_other_coordinator_answers() -> None:
    with serve_files() as leader, standby_of("") as standby:
        leader.files["/api/jobs"] = b"{}"
        with serving(f"{standby},127.0.0.1:{leader.server_address[1]}") as server:
            assert get(f"{server.url}/api/jobs")[0] == 200
        with serving(standby) as server:
            assert get(f"{server.url}/api/jobs")[0] == 503


def test_of_several_coordinators_one_that_answers_is_asked_and_all_are_named_if_none_does() -> None:
    gone, other = free_ports(2)
    with serve_files() as leader:
        leader.files["/api/jobs"] = b"{}"
        with serving(f"http://127.0.0.1:{gone},127.0.0.1:{leader.server_address[1]}") as server:
            # The second time the one that answered is asked first.
            assert [get(f"{server.url}/api/jobs")[0] for _ in range(2)] == [200, 200]
    with serving(f"http://127.0.0.1:{gone},127.0.0.1:{other}") as server:
        status, _, body = get(f"{server.url}/api/jobs")
    assert status == 502
    assert all(f"http://127.0.0.1:{port} does not answer" in json.loads(body)["detail"] for port in (gone, other))


@contextmanager
def answering(answer: Callable[[socket.socket], object]) -> Iterator[str]:
    """The address of something that takes one connection, reads what is asked, and does this with it."""

    def serve(connection: socket.socket) -> None:
        connection.recv(1 << 16)
        answer(connection)

    with one_connection(serve) as address:
        yield address


def test_what_does_not_speak_http_is_told_from_what_is_away() -> None:
    words = b"\x00\x00\x12\x04\x00 not a word of HTTP\r\n\r\n"
    with answering(lambda connection: connection.sendall(words)) as address, serving(address) as server:
        status, _, body = get(f"{server.url}/api/jobs")
    assert status == 502
    assert "give its HTTP port" in json.loads(body)["detail"]


def reset(connection: socket.socket) -> None:
    """Close a connection as a killed process or a firewall does."""
    connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))


def test_a_coordinator_that_goes_away_before_it_answers_is_said_in_words() -> None:
    with answering(reset) as address, serving(address) as server:
        status, _, body = get(f"{server.url}/api/jobs")
    assert status == 502
    assert "Connection reset by peer" in json.loads(body)["detail"]


def test_a_coordinator_that_takes_a_request_and_is_silent_is_not_waited_for(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(upstream, "HEAD_S", 0.01)
    is_over = threading.Event()
    with answering(lambda _: is_over.wait(stretch(60))) as address:
        with serving(address) as server:
            status, _, body = get(f"{server.url}/api/jobs")
        is_over.set()
    assert (status, json.loads(body)["detail"]) == (
        502,
        f"the coordinator at http://{address} does not answer: no answer",
    )


def test_what_a_proxy_says_before_the_answer_is_not_taken_for_it() -> None:
    hints = b"HTTP/1.1 103 Early Hints\r\nLink: </style.css>\r\n\r\n"
    answer = hints + b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\n{}"
    with answering(lambda connection: connection.sendall(answer)) as address, serving(address) as server:
        assert get(f"{server.url}/api/jobs") == (200, ANY, b"{}")


def test_an_answer_without_end_arrives_piece_by_piece() -> None:
    more = threading.Event()

    def answer(connection: socket.socket) -> None:
        connection.sendall(b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\n\r\ndata: one\n\n")
        assert more.wait(stretch(60))
        connection.sendall(b"data: two\n\n")

    with (
        answering(answer) as address,
        serving(address) as server,
        urllib.request.urlopen(f"{server.url}/api/events", timeout=stretch(60)) as stream,
    ):
        assert stream.readline() == b"data: one\n"
        more.set()
        assert stream.readline() == b"\n"
        assert stream.readline() == b"data: two\n"


def test_a_token_of_the_page_does_not_go_to_another_machine_without_tls() -> None:
    with serving("http://192.0.2.1:8080") as server:
        status, _, body = get(f"{server.url}/api/jobs", Authorization="Bearer secret")
    assert status == 502
    assert "the token is not sent to 192.0.2.1:8080 without TLS" in json.loads(body)["detail"]
    assert b"secret" not in body


def test_a_header_beyond_ascii_is_forwarded_and_breaks_nothing() -> None:
    with serve_files() as coordinator, serving(coordinator.url) as server:
        coordinator.files["/api/jobs"] = b"{}"
        assert get(f"{server.url}/api/jobs", Authorization="Bearer t\u00f6ken")[0] == 200


@pytest.mark.parametrize(
    "url",
    [
        "ftp://host",
        "http://",
        "http://host:8080/prefix",
        "http://host:port",
        "http://a,b/c",
        "http://host:0",
        "http://[a",
    ],
)
def test_an_address_that_cannot_be_is_refused(url: str) -> None:
    with pytest.raises(ValueError, match=r"is no address of a coordinator.*use http://HOST:8080"):
        Upstream(url)


@pytest.mark.parametrize("url", ["http://user:hunter2@host:8080", "ftp://user:hunter2@host", "http://a,user:hunter2@b"])
def test_a_password_in_an_address_is_refused_and_not_repeated(url: str) -> None:
    with pytest.raises(ValueError, match="is no address of a coordinator") as caught:
        Upstream(url)
    assert "hunter2" not in str(caught.value)


def test_an_ipv6_address_without_brackets_is_refused_with_the_right_form() -> None:
    with pytest.raises(ValueError, match=r"an IPv6 address needs brackets, such as \[::1\]:8080"):
        Upstream("http://::1:8080")


def test_a_port_that_is_taken_is_named() -> None:
    with serve_files() as other, pytest.raises(PortTakenError, match="dashboard cannot listen on"):
        DashboardServer(Upstream("host"), host="127.0.0.1", port=other.server_address[1])
