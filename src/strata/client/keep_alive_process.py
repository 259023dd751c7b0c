"""A program beside the training process that says "it lives" while that process cannot say so itself.

    python keep_alive_process.py PARENT_PID     # started by strata.client.keep_alive, which writes to its stdin

It imports nothing of Strata, so that it starts in a few hundredths of a second and stays small. The rule: it speaks
only when the training process has not spoken for longer than it should, and only while that process runs, is not
stopped, and has been silent for less than the bound that it was given. It ends when its parent is gone.
"""

from __future__ import annotations

import json
import os
import select
import socket
import sys
import time
from pathlib import Path
from typing import Any

# How often the parent is looked at: a killed one must not be kept alive once more than it takes to notice.
LOOK_S = 0.25
# Of each coordinator: two that are silent must not keep this process from the third for a lease.
TIMEOUT_S = 1.0
HANDSHAKE = (
    "GET / HTTP/1.1\r\nHost: {host}:{port}\r\nUpgrade: websocket\r\nConnection: Upgrade\r\n"
    "Sec-WebSocket-Key: c3RyYXRhLXZvdWNoZXIhIQ==\r\nSec-WebSocket-Version: 13\r\n"
)


class Line:
    """The connection to one coordinator, made when there is something to say, and anew when it breaks."""

    def __init__(self, host: str, port: int, name: str) -> None:
        self._host = host
        self._port = port
        # What must stand on its certificate.
        self._name = name
        self._socket: socket.socket | None = None

    def say(self, target: dict[str, Any]) -> None:
        """Send the frame if that is possible now; the next one is due soon."""
        try:
            if self._socket is not None and self._is_over(self._socket):
                self.close()
            if self._socket is None:
                self._socket = _connect(self._host, self._port, self._name, target)
            self._socket.sendall(bytes.fromhex(target["frame"]))
        except OSError:
            self.close()

    def close(self) -> None:
        """Hang up."""
        if self._socket is not None:
            self._socket.close()
            self._socket = None

    def _is_over(self, connection: socket.socket) -> bool:
        """Drop what was answered; return whether the other side hung up."""
        while select.select([connection], [], [], 0)[0]:
            try:
                if not connection.recv(65_536):
                    return True
            except TimeoutError:  # of TLS, the beginning of a record
                return False
        return False


def _connect(host: str, port: int, name: str, target: dict[str, Any]) -> socket.socket:
    connection = socket.create_connection((host, port), timeout=TIMEOUT_S)
    try:
        if target["tls"]:
            connection = _wrap(connection, name, *target["tls"])
        token = target["token"] or (Path(target["token_file"]).read_text().strip() if target["token_file"] else "")
        proof = f"Authorization: Bearer {token}\r\n" if token else ""
        connection.sendall(f"{HANDSHAKE.format(host=host, port=port)}{proof}\r\n".encode())
        answer = b""
        while b"\r\n\r\n" not in answer:
            received = connection.recv(4096)
            if not received or len(answer) > 65_536:
                raise ConnectionError("no handshake")
            answer += received
        if b" 101 " not in answer.split(b"\r\n")[0]:
            raise ConnectionError("not a WebSocket")
    except OSError:
        connection.close()
        raise
    return connection


def _wrap(connection: socket.socket, name: str, ca: str | None, cert: str | None, key: str | None) -> socket.socket:
    # Imported only where it is used: it would double the size of this process.
    import ssl

    context = ssl.create_default_context(cafile=ca)
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    if cert is not None:
        context.load_cert_chain(cert, key)
    return context.wrap_socket(connection, server_hostname=name)


def runs(pid: int) -> bool:
    """Whether a process runs: it is there and neither stopped nor dead. Without /proc it is believed to."""
    try:
        state = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except FileNotFoundError:
        return not Path("/proc/self/stat").exists()
    return state not in ("T", "t", "Z", "X")


def main() -> None:
    """Listen to the parent, and speak for it when it is silent."""
    parent = int(sys.argv[1])
    stdin = sys.stdin.fileno()
    lines: list[Line] = []
    target: dict[str, Any] = {}
    rest = b""
    last_seen_s = said_s = time.monotonic()
    while os.getppid() == parent:
        if select.select([stdin], [], [], LOOK_S)[0]:
            received = os.read(stdin, 65_536)
            if not received:
                return
            *told, rest = (rest + received).split(b"\n")
            last_seen_s = time.monotonic()
            for each in filter(None, told):
                target = json.loads(each)
                _close(lines)
                lines = [Line(host, port, name) for host, port, name in target["places"]]
        now_s = time.monotonic()
        if not target:
            continue
        interval_s, bound_s = target["interval_s"], target["bound_s"]
        silent_s = now_s - last_seen_s
        if silent_s < interval_s:
            _close(lines)
        elif silent_s < bound_s and now_s - said_s >= interval_s and runs(parent):
            said_s = now_s
            # To every coordinator: only the one that leads counts it, and which one that is may have changed.
            for line in lines:
                line.say(target)


def _close(lines: list[Line]) -> None:
    for line in lines:
        line.close()


if __name__ == "__main__":
    main()
