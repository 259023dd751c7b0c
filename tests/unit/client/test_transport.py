"""A connection that is given up, or on which something else speaks, is closed and leaves nothing open."""

from __future__ import annotations

import asyncio
import ssl
from contextlib import suppress
from pathlib import Path

import grpc
import pytest
from picows import WSFrame, WSListener, WSMsgType, WSTransport, ws_create_server

from strata.address import parse_endpoints
from strata.client.credentials import Credentials
from strata.client.dial import Dial
from strata.client.transport import ChannelTransport, StreamTransport, TransportLostError
from strata.coordinator.entry.certificates import make_certificates
from strata.wire._generated import coordinator_pb2 as pb
from tests.testbed.pace import stretch
from tests.testbed.process import free_ports

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


class Answering(WSListener):
    """Answers each frame with the same one, and never hangs up by itself."""

    def __init__(self, kind: WSMsgType, payload: bytes) -> None:
        super().__init__()
        self._kind = kind
        self._payload = payload

    def on_ws_frame(self, transport: WSTransport, frame: WSFrame) -> None:
        if frame.msg_type == WSMsgType.BINARY:
            transport.send(self._kind, self._payload)


@pytest.mark.parametrize(
    ("kind", "payload"),
    [(WSMsgType.BINARY, b"\xff\xff no frame of Strata"), (WSMsgType.CLOSE, b"\x03\xe9")],
    ids=["garbage", "goodbye"],
)
async def test_a_channel_that_says_goodbye_or_what_is_no_frame_is_left(kind: WSMsgType, payload: bytes) -> None:
    server = await ws_create_server(lambda _: Answering(kind, payload), "127.0.0.1", 0)
    async with server:
        url = f"ws://127.0.0.1:{server.sockets[0].getsockname()[1]}"
        transport = await ChannelTransport.connect(url, PLAIN)
        received: list[pb.ServerFrame] = []
        transport.start(received.append)
        transport.send(pb.ClientFrame(id=1))
        async with asyncio.timeout(stretch(20)):
            await transport.wait_lost()
    assert received == []


@pytest.fixture
def opened(monkeypatch: pytest.MonkeyPatch) -> list[grpc.Channel]:
    """Every gRPC channel that was opened; none waits long for an answer."""
    channels: list[grpc.Channel] = []
    open_grpc = Dial.open_grpc

    def note(*arguments: object, **options: object) -> grpc.Channel:
        channels.append(open_grpc(*arguments, **options))
        return channels[-1]

    monkeypatch.setattr(Dial, "open_grpc", note)
    monkeypatch.setattr("strata.client.transport.CONNECT_TIMEOUT_S", 0.05)
    return channels


def check_closed(channel: grpc.Channel) -> None:
    with pytest.raises(ValueError, match="closed channel"):
        channel.unary_unary("/strata.v1.Coordinator/Describe")(b"")


async def test_a_stream_to_a_port_where_nobody_answers_is_given_up_and_closed(opened: list[grpc.Channel]) -> None:
    (port,) = free_ports(1)
    with pytest.raises(TransportLostError, match=f"no coordinator answers at 127.0.0.1:{port}$"):
        await StreamTransport.connect(f"127.0.0.1:{port}", PLAIN)
    check_closed(*opened)


async def test_a_stream_to_a_port_that_speaks_tls_says_so(opened: list[grpc.Channel], tmp_path: Path) -> None:
    files = make_certificates(tmp_path, hosts=["127.0.0.1"], days=1)
    context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    context.load_cert_chain(files.cert, files.key)

    def hang_up(_: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.close()

    server = await asyncio.start_server(hang_up, "127.0.0.1", 0, ssl=context)
    async with server:
        address = f"127.0.0.1:{server.sockets[0].getsockname()[1]}"
        with pytest.raises(TransportLostError, match="it speaks TLS, and the address does not; use grpcs://"):
            await StreamTransport.connect(address, PLAIN)
    check_closed(*opened)


async def test_a_stream_to_a_port_that_speaks_neither_is_not_said_to_speak_tls(opened: list[grpc.Channel]) -> None:
    def hang_up(_: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.close()

    server = await asyncio.start_server(hang_up, "127.0.0.1", 0)
    async with server:
        port = server.sockets[0].getsockname()[1]
        with pytest.raises(TransportLostError, match=f"no coordinator answers at 127.0.0.1:{port}$"):
            await StreamTransport.connect(f"127.0.0.1:{port}", PLAIN)
    check_closed(*opened)
