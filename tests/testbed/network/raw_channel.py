"""A channel without a client library: a socket that can send anything, whole or in pieces, and need not read."""

from __future__ import annotations

import os
import socket
from typing import Self

from tests.testbed.pace import stretch

HANDSHAKE = (
    b"GET / HTTP/1.1\r\nHost: strata\r\nUpgrade: websocket\r\nConnection: Upgrade\r\n"
    b"Sec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\nSec-WebSocket-Version: 13\r\n\r\n"
)


class RawChannel:
    """A connection to the channel's port, after or before the handshake."""

    def __init__(
        self, port: int, *, handshake: bool = True, receive_buffer_bytes: int | None = None, token: str | None = None
    ) -> None:
        self.socket = socket.socket()
        if receive_buffer_bytes is not None:
            self.socket.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, receive_buffer_bytes)
        self.socket.settimeout(stretch(30))
        self.socket.connect(("127.0.0.1", port))
        self.answer = b""
        if handshake:
            self.shake_hands(token)

    def shake_hands(self, token: str | None = None) -> None:
        """Ask for a channel; the answer says whether there is one."""
        header = b"" if token is None else f"Authorization: Bearer {token}\r\n".encode()
        self.socket.sendall(HANDSHAKE[:-2] + header + HANDSHAKE[-2:])
        self.answer = self._read_head()

    def send(self, data: bytes) -> None:
        """Send a binary message."""
        self.socket.sendall(frame(data))

    def receive(self) -> bytes | None:
        """Return the next binary message, or None if the other side hung up."""
        while (head := self._read(2)) is not None:
            length = head[1] & 0x7F
            if length >= 126:
                longer = self._read(2 if length == 126 else 8)
                assert longer is not None
                length = int.from_bytes(longer, "big")
            payload = self._read(length)
            if head[0] & 0xF == 2:
                return payload
        return None

    def wait_closed(self) -> bytes:
        """Read until the other side hangs up; return the last bytes of what came."""
        last = b""
        try:
            while data := self.socket.recv(1 << 20):
                last = (last + data)[-65_536:]
        except ConnectionError:
            pass
        return last

    def close(self) -> None:
        self.socket.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _read_head(self) -> bytes:
        head = b""
        while b"\r\n\r\n" not in head:
            # One by one: what follows the head belongs to the first message.
            data = self.socket.recv(1)
            if not data:
                break
            head += data
        return head

    def _read(self, count: int) -> bytes | None:
        data = b""
        while len(data) < count:
            try:
                received = self.socket.recv(count - len(data))
            except ConnectionError:
                return None
            if not received:
                return None
            data += received
        return data


def frame(data: bytes, *, first: int = 0x82) -> bytes:
    """Return a WebSocket frame as a client sends it; ``first`` is its first byte."""
    if len(data) < 126:
        length = bytes([0x80 | len(data)])
    elif len(data) < 1 << 16:
        length = bytes([0x80 | 126]) + len(data).to_bytes(2, "big")
    else:
        length = bytes([0x80 | 127]) + len(data).to_bytes(8, "big")
    mask = os.urandom(4)
    repeated = (mask * (len(data) // 4 + 1))[: len(data)]
    masked = (int.from_bytes(data, "big") ^ int.from_bytes(repeated, "big")).to_bytes(len(data), "big")
    return bytes([first]) + length + mask + masked
