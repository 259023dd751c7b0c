"""A gateway to an HTTP store that can misbehave: answer 503, lose answers, or never answer.

It passes requests on byte for byte, Host included, so that signatures stay right.
"""

from __future__ import annotations

import contextlib
import http.client
import socket
import threading
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import TYPE_CHECKING, Any, Literal
from urllib.parse import urlsplit

from tests.testbed.pace import stretch

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

Fate = Literal["pass", "503", "lose answer"]


def _pass_all(method: str, path: str) -> Fate:
    del method, path
    return "pass"


@dataclass
class Gateway:
    """``decide`` gets every request before it is passed on; ``seen`` keeps them, in order."""

    endpoint: str
    decide: Callable[[str, str], Fate] = _pass_all
    seen: list[tuple[str, str]] = field(default_factory=list)


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    gateway: Gateway
    backend: str

    def _handle(self) -> None:
        body = self.rfile.read(int(self.headers.get("Content-Length", 0)))
        self.gateway.seen.append((self.command, self.path))
        fate = self.gateway.decide(self.command, self.path)
        if fate == "503":
            self.send_response(503)
            self.send_header("Content-Length", "0")
            self.end_headers()
            return
        connection = http.client.HTTPConnection(self.backend, timeout=stretch(20))
        with contextlib.closing(connection):
            connection.putrequest(self.command, self.path, skip_host=True, skip_accept_encoding=True)
            for name, value in self.headers.items():
                connection.putheader(name, value)
            connection.endheaders(body)
            response = connection.getresponse()
            data = response.read()
        if fate == "lose answer":
            self.close_connection = True
            self.connection.shutdown(socket.SHUT_RDWR)
            return
        self.send_response(response.status)
        for name, value in response.getheaders():
            if name.lower() not in ("transfer-encoding", "connection", "content-length"):
                self.send_header(name, value)
        length = response.getheader("Content-Length") if self.command == "HEAD" else None
        self.send_header("Content-Length", length or str(len(data)))
        self.end_headers()
        self.wfile.write(data)

    def __getattr__(self, name: str) -> Any:
        # The server looks for do_GET, do_PUT, ...: all are handled alike.
        if name.startswith("do_"):
            return self._handle
        raise AttributeError(name)

    def log_message(self, *_: Any) -> None:
        """Say nothing: ``seen`` has it all."""


@contextlib.contextmanager
def gateway_to(backend: str) -> Iterator[Gateway]:
    """Stand in front of the store at ``backend`` until the block ends."""
    gateway = Gateway("")
    handler = type("Handler", (_Handler,), {"gateway": gateway, "backend": urlsplit(backend).netloc})
    with ThreadingHTTPServer(("127.0.0.1", 0), handler) as server:
        server.daemon_threads = True
        gateway.endpoint = f"http://127.0.0.1:{server.server_address[1]}"
        thread = threading.Thread(target=server.serve_forever, daemon=True)
        thread.start()
        try:
            yield gateway
        finally:
            server.shutdown()
            thread.join(stretch(10))
