"""A TCP proxy that can swallow everything on its open connections, while new ones work."""

from __future__ import annotations

import socket
import threading
from contextlib import contextmanager, suppress
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterator


class Proxy:
    """Listens on a free port and passes bytes on to the one that it is given, both ways."""

    def __init__(self) -> None:
        self._target = 0
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.port = self._listener.getsockname()[1]
        self.accepted = 0
        self._is_swallowed: list[threading.Event] = []
        self._sockets: list[socket.socket] = []
        threading.Thread(target=self._accept, daemon=True).start()

    def retarget(self, port: int) -> None:
        """Pass new connections on to this port of this machine."""
        self._target = port

    def swallow(self) -> None:
        """Let nothing through on the connections that are open now, and tell neither side."""
        for event in self._is_swallowed:
            event.set()

    def close(self) -> None:
        """Close everything."""
        for each in (self._listener, *self._sockets):
            with suppress(OSError):
                each.shutdown(socket.SHUT_RDWR)
            each.close()

    def _accept(self) -> None:
        with suppress(OSError):
            while True:
                near, _ = self._listener.accept()
                far = socket.create_connection(("127.0.0.1", self._target))
                self.accepted += 1
                event = threading.Event()
                self._is_swallowed.append(event)
                self._sockets += [near, far]
                for source, sink in ((near, far), (far, near)):
                    threading.Thread(target=_pass_on, args=(source, sink, event), daemon=True).start()


def _pass_on(source: socket.socket, sink: socket.socket, swallowed: threading.Event) -> None:
    with suppress(OSError):
        while data := source.recv(65_536):
            if not swallowed.is_set():
                sink.sendall(data)
        if not swallowed.is_set():
            sink.shutdown(socket.SHUT_WR)


@contextmanager
def proxying() -> Iterator[Proxy]:
    """Run a proxy until the block ends."""
    proxy = Proxy()
    try:
        yield proxy
    finally:
        proxy.close()
