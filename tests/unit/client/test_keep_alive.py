"""The small process that speaks for a worker which cannot: what it says, to whom, and when it is silent."""

from __future__ import annotations

import io
import json
import os
import select
import signal
import socket
import ssl
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from strata.client import keep_alive_process
from strata.client.description import TrustedUrl
from strata.client.dial import Dial
from strata.client.keep_alive import KeepAliveProcess
from strata.client.keep_alive_process import Line, main, runs
from strata.cluster import commands as c
from strata.coordinator.entry.certificates import CertificateFiles, make_certificates
from tests.testbed.pace import stretch
from tests.testbed.process import start
from tests.testbed.waiting import wait_until

TARGET: dict[str, Any] = {"frame": b"frame".hex(), "token": None, "token_file": None, "tls": None}
ACCEPTED = b"HTTP/1.1 101 Switching Protocols\r\n\r\n"


class Coordinator:
    """Takes one connection after the other, answers each handshake in the same way, and keeps what comes."""

    def __init__(self, answer: bytes = ACCEPTED, tls: ssl.SSLContext | None = None) -> None:
        self._answer = answer
        self._tls = tls
        self._listening = socket.create_server(("127.0.0.1", 0))
        self.port: int = self._listening.getsockname()[1]
        self.requests: list[bytes] = []
        self.frames = b""
        self._open: list[socket.socket] = []
        self._thread = threading.Thread(target=self._serve, daemon=True)
        self._thread.start()

    def _serve(self) -> None:
        while True:
            try:
                connection, _ = self._listening.accept()
            except OSError:
                return
            if self._tls is not None:
                try:
                    connection = self._tls.wrap_socket(connection, server_side=True)
                except OSError:
                    continue
            self._open.append(connection)
            request = b""
            while b"\r\n\r\n" not in request and (more := connection.recv(4096)):
                request += more
            self.requests.append(request)
            connection.sendall(self._answer)
            try:
                while more := connection.recv(4096):
                    self.frames += more
            except OSError:
                pass
            connection.close()

    def hang_up(self) -> None:
        self._open[-1].shutdown(socket.SHUT_RDWR)

    def send_plain(self, data: bytes) -> None:
        """Send bytes below TLS, on the connection that was made last."""
        with socket.socket(fileno=os.dup(self._open[-1].fileno())) as plain:
            plain.sendall(data)

    def close(self) -> None:
        self._listening.shutdown(socket.SHUT_RDWR)
        self._listening.close()
        for each in self._open:
            each.close()
        self._thread.join(stretch(10))


@pytest.fixture
def coordinator() -> Iterator[Coordinator]:
    coordinator = Coordinator()
    yield coordinator
    coordinator.close()


def test_it_proves_who_it_is_and_sends_the_frame_on_one_connection(coordinator: Coordinator, tmp_path: Path) -> None:
    (tmp_path / "token").write_text("secret\n")
    line = Line("127.0.0.1", coordinator.port, "127.0.0.1")
    for _ in range(2):
        line.say({**TARGET, "token_file": str(tmp_path / "token")})
    wait_until(lambda: coordinator.frames == b"frameframe", "both frames")
    line.close()
    (request,) = coordinator.requests
    assert b"\r\nAuthorization: Bearer secret\r\n" in request


def test_it_connects_again_when_the_coordinator_has_hung_up(coordinator: Coordinator) -> None:
    line = Line("127.0.0.1", coordinator.port, "127.0.0.1")
    line.say(TARGET)
    wait_until(lambda: coordinator.frames == b"frame", "the first frame")
    coordinator.hang_up()

    def say_again() -> bool:
        line.say(TARGET)
        return len(coordinator.requests) == 2

    wait_until(say_again, "the second connection")
    line.close()


@pytest.mark.parametrize("answer", [b"HTTP/1.1 401 Unauthorized\r\n\r\n", b"x" * 70_000], ids=["refused", "babble"])
def test_it_sends_nothing_to_what_takes_no_channel(answer: bytes) -> None:
    coordinator = Coordinator(answer)
    line = Line("127.0.0.1", coordinator.port, "127.0.0.1")
    line.say(TARGET)
    assert line._socket is None
    coordinator.close()
    assert coordinator.frames == b""
    line.say(TARGET)
    assert line._socket is None, "nobody listens there any more"


@pytest.fixture
def files(tmp_path: Path) -> CertificateFiles:
    return make_certificates(tmp_path / "tls", hosts=["127.0.0.1"], days=1)


@pytest.fixture
def secured(files: CertificateFiles) -> Iterator[Coordinator]:
    """A coordinator that takes only clients with a certificate."""
    context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH, cafile=files.ca)
    context.load_cert_chain(files.cert, files.key)
    context.verify_mode = ssl.CERT_REQUIRED
    coordinator = Coordinator(tls=context)
    yield coordinator
    coordinator.close()


def test_with_tls_it_shows_its_certificate_and_stays_on_a_connection_that_is_in_the_middle_of_a_record(
    secured: Coordinator, files: CertificateFiles, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(keep_alive_process, "TIMEOUT_S", stretch(20))
    target = {**TARGET, "tls": [str(files.ca), str(files.client_cert), str(files.client_key)]}
    line = Line("127.0.0.1", secured.port, "127.0.0.1")
    line.say(target)
    wait_until(lambda: secured.frames == b"frame", "the first frame")
    # The head of a record whose rest does not come: there is something to read, and nothing can be read.
    secured.send_plain(b"\x17\x03\x03")
    assert line._socket is not None
    wait_until(lambda: bool(select.select([line._socket], [], [], 0)[0]), "the head of the record")
    line._socket.settimeout(0.01)
    line.say(target)
    wait_until(lambda: secured.frames == b"frameframe", "the second frame")
    line.close()
    assert len(secured.requests) == 1


@pytest.mark.parametrize("fault", ["another name", "another authority"])
def test_it_proves_itself_to_no_coordinator_that_it_cannot_trust(
    secured: Coordinator, files: CertificateFiles, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, fault: str
) -> None:
    monkeypatch.setattr(keep_alive_process, "TIMEOUT_S", stretch(20))
    other = make_certificates(tmp_path / "other", hosts=["127.0.0.1"], days=1)
    authority = other.ca if fault == "another authority" else files.ca
    name = "another.example" if fault == "another name" else "127.0.0.1"
    line = Line("127.0.0.1", secured.port, name)
    line.say({**TARGET, "token": "secret", "tls": [str(authority), None, None]})
    assert line._socket is None
    assert secured.requests == []


def test_a_process_runs_unless_it_is_stopped_or_gone() -> None:
    assert runs(os.getpid())
    with start([sys.executable, "-I", "-S", "-c", "input()"], stdin=subprocess.PIPE) as child:
        os.kill(child.pid, signal.SIGSTOP)
        wait_until(lambda: not runs(child.pid), "the stop")
        child.kill()
    assert not runs(child.pid)


@pytest.mark.parametrize(("silent_after_s", "frames"), [(0.0, b"frame"), (1e9, b"")], ids=["silent", "speaks"])
def test_it_speaks_only_for_a_parent_that_is_silent(
    coordinator: Coordinator, monkeypatch: pytest.MonkeyPatch, silent_after_s: float, frames: bytes
) -> None:
    reading, writing = os.pipe()
    monkeypatch.setattr(sys, "argv", ["keep_alive_process.py", str(os.getppid())])
    monkeypatch.setattr(keep_alive_process, "LOOK_S", 0.0)
    places = [("127.0.0.1", coordinator.port, "127.0.0.1")]
    told = json.dumps({**TARGET, "places": places, "interval_s": silent_after_s, "bound_s": 1e12})
    # In two pieces: a line may come in several reads.
    os.write(writing, told.encode()[:20])
    looks = iter([True])

    def look(parent: int) -> bool:
        if next(looks, False):
            os.close(writing)
        return True

    real_read = os.read

    def read(fd: int, size: int) -> bytes:
        received = real_read(fd, size)
        if received and b"\n" not in received:
            os.write(writing, told.encode()[20:] + b"\n")
        elif received and silent_after_s:
            os.close(writing)
        return received

    made: list[Line] = []

    def make(*place: Any) -> Line:
        made.append(Line(*place))
        return made[-1]

    monkeypatch.setattr(keep_alive_process, "Line", make)
    monkeypatch.setattr(keep_alive_process, "runs", look)
    monkeypatch.setattr(os, "read", read)
    with io.TextIOWrapper(io.FileIO(reading)) as stdin:
        monkeypatch.setattr(sys, "stdin", stdin)
        main()
    if frames:
        wait_until(lambda: coordinator.frames.startswith(frames), "the frame")
    assert bool(coordinator.requests) == bool(frames)
    for line in made:
        line.close()


WORKER = c.RegisterWorker(worker_id="a", incarnation="1-p.1")
CHANNELS = (TrustedUrl("ws://127.0.0.1:1", "127.0.0.1"),)


def test_a_process_that_has_exited_is_replaced(caplog: pytest.LogCaptureFixture) -> None:
    keep_alive = KeepAliveProcess(bound_s=1.0)
    keep_alive.speak_for(WORKER, CHANNELS, Dial.to("127.0.0.1:1"), 10.0)
    first = keep_alive._process
    assert first is not None
    first.kill()
    first.wait()
    keep_alive.tick()
    assert "has exited; starting another one" in caplog.text
    keep_alive.speak_for(WORKER, CHANNELS, Dial.to("127.0.0.1:1"), 10.0)
    second = keep_alive._process
    assert second is not None
    assert second.pid != first.pid
    keep_alive.close()
    assert second.poll() is not None


def test_a_machine_on_which_no_process_can_be_started_is_said_once(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def refuse() -> None:
        raise BlockingIOError(11, "Resource temporarily unavailable")

    monkeypatch.setattr("strata.client.keep_alive._start", refuse)
    keep_alive = KeepAliveProcess(bound_s=1.0)
    for _ in range(3):
        keep_alive.speak_for(WORKER, CHANNELS, Dial.to("127.0.0.1:1"), 10.0)
        keep_alive.tick()
    assert caplog.text.count("no keep-alive process") == 1
    keep_alive.close()
