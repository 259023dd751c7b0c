"""A connection that is given up while it is made leaves nothing open."""

from __future__ import annotations

import asyncio
from contextlib import suppress
from pathlib import Path

import pytest

from strata.address import parse_endpoints
from strata.client.credentials import Credentials
from strata.client.dial import Dial
from strata.client.transport import ChannelTransport, TransportLostError

PLAIN = Dial(parse_endpoints("127.0.0.1"), Credentials())


def count_sockets() -> int:
    links = []
    for each in Path("/proc/self/fd").iterdir():
        with suppress(FileNotFoundError):
            links.append(str(each.readlink()))
    return sum(link.startswith("socket:") for link in links)


class SilentServer:
    """Takes connections and never answers a handshake, or answers it with what it is given."""

    def __init__(self, answer: bytes = b"") -> None:
        self._answer = answer
        self._server: asyncio.Server | None = None
        self.is_taken = asyncio.Event()
        self.is_left = asyncio.Event()

    async def __aenter__(self) -> str:
        self._server = await asyncio.start_server(self._serve, "127.0.0.1", 0)
        return f"ws://127.0.0.1:{self._server.sockets[0].getsockname()[1]}/"

    async def __aexit__(self, *_: object) -> None:
        assert self._server is not None
        self._server.close()

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        self.is_taken.set()
        writer.write(self._answer)
        with suppress(ConnectionError):
            await reader.read()
        writer.close()
        self.is_left.set()


async def test_an_attempt_that_is_cancelled_in_the_handshake_closes_its_socket() -> None:
    server = SilentServer()
    async with server as url:
        before = count_sockets()
        attempt = asyncio.create_task(ChannelTransport.connect(url, PLAIN))
        await server.is_taken.wait()
        attempt.cancel()
        with pytest.raises(asyncio.CancelledError):
            await attempt
        assert count_sockets() <= before + 1, "only the server's end may still be open"
        await server.is_left.wait()


async def test_an_attempt_that_is_refused_closes_its_socket() -> None:
    server = SilentServer(b"HTTP/1.1 503 Service Unavailable\r\nContent-Length: 0\r\n\r\n")
    async with server as url:
        with pytest.raises(TransportLostError, match="503"):
            await ChannelTransport.connect(url, PLAIN)
        await server.is_left.wait()


async def test_a_port_that_nobody_listens_on_is_named() -> None:
    async with SilentServer() as url:
        pass
    with pytest.raises(TransportLostError, match=r"127\.0\.0\.1.*ConnectionRefusedError"):
        await ChannelTransport.connect(url, PLAIN)
