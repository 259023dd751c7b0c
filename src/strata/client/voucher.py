"""A program beside the training process that says "it lives" while that process cannot say so itself.

    python voucher.py PARENT_PID          started by strata.client.vouching, which writes to its standard input

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

# How often the parent is looked at: a killed one must not be vouched for once more than it takes to notice.
LOOK_S = 0.25
TIMEOUT_S = 2.0
HANDSHAKE = (
    "GET / HTTP/1.1\r\nHost: {host}:{port}\r\nUpgrade: websocket\r\nConnection: Upgrade\r\n"
    "Sec-WebSocket-Key: c3RyYXRhLXZvdWNoZXIhIQ==\r\nSec-WebSocket-Version: 13\r\n\r\n"
)


class Line:
    """The connection to the coordinator, made when there is something to say, and anew when it breaks."""

    def __init__(self) -> None:
        self._socket: socket.socket | None = None

    def say(self, host: str, port: int, frame: bytes) -> None:
        """Send a frame if that is possible now; the next one is due soon."""
        try:
            if self._socket is not None and self._is_over(self._socket):
                self.close()
            if self._socket is None:
                self._socket = _connect(host, port)
            self._socket.sendall(frame)
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
            if not connection.recv(65_536):
                return True
        return False


def _connect(host: str, port: int) -> socket.socket:
    connection = socket.create_connection((host, port), timeout=TIMEOUT_S)
    try:
        connection.sendall(HANDSHAKE.format(host=host, port=port).encode())
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
    line = Line()
    target: dict[str, object] = {}
    rest = b""
    heard_s = said_s = time.monotonic()
    while os.getppid() == parent:
        if select.select([stdin], [], [], LOOK_S)[0]:
            received = os.read(stdin, 65_536)
            if not received:
                return
            *lines, rest = (rest + received).split(b"\n")
            heard_s = time.monotonic()
            for each in filter(None, lines):
                target = json.loads(each)
                line.close()
        now_s = time.monotonic()
        if not target:
            continue
        interval_s, bound_s = float(str(target["interval_s"])), float(str(target["bound_s"]))
        silent_s = now_s - heard_s
        if silent_s < interval_s:
            line.close()
        elif silent_s < bound_s and now_s - said_s >= interval_s and runs(parent):
            said_s = now_s
            line.say(str(target["host"]), int(str(target["port"])), bytes.fromhex(str(target["frame"])))


if __name__ == "__main__":
    main()
