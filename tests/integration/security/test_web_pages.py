"""A web page in a browser on the machine of an open coordinator: it reaches the ports, and must not get a channel."""

from __future__ import annotations

import asyncio

import pytest

from strata.coordinator.server import Coordinator, CoordinatorConfig
from tests.testbed.pace import stretch

REFUSED = (1_008).to_bytes(2, "big") + b"a web page may not open a channel"


async def open_channel(port: int, *headers: str) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
    """Ask for a channel as a browser does, and return the connection after the head of the answer."""
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    lines = ["GET / HTTP/1.1", f"Host: 127.0.0.1:{port}", "Upgrade: websocket", "Connection: Upgrade", *headers]
    lines += ["Sec-WebSocket-Version: 13", "Sec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==", "", ""]
    writer.write("\r\n".join(lines).encode())
    async with asyncio.timeout(stretch(20)):
        await reader.readuntil(b"\r\n\r\n")
    return reader, writer


@pytest.mark.parametrize("origin", ["https://evil.example", "null", "http://127.0.0.1:8080", ""])
async def test_a_web_page_gets_no_channel_to_an_open_coordinator(origin: str) -> None:
    """Browsers let any page open a WebSocket to any address, loopback included, and name the page in Origin."""
    config = CoordinatorConfig(grpc_address="127.0.0.1:0", channel_address="127.0.0.1:0")
    async with Coordinator(config) as coordinator:
        reader, page = await open_channel(coordinator.channel_port, f"Origin: {origin}")
        assert not coordinator.sessions.open
        async with asyncio.timeout(stretch(20)):
            assert await reader.readexactly(2 + len(REFUSED)) == bytes([0x88, len(REFUSED)]) + REFUSED
        assert coordinator.gate.attempts.total == 1
        _, program = await open_channel(coordinator.channel_port)
        assert len(coordinator.sessions.open) == 1
        page.close()
        program.close()
