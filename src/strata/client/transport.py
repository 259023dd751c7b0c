"""Two ways to carry frames to the coordinator: a WebSocket, and a gRPC stream where that port is closed."""

from __future__ import annotations

import asyncio
import queue
import socket
import threading
from collections.abc import Callable
from contextlib import suppress
from functools import partial
from typing import Any, Protocol, TypeVar
from urllib.parse import urlsplit

import grpc
from google.protobuf.message import DecodeError
from picows import WSError, WSFrame, WSListener, WSMsgType, WSParsedURL, WSTransport, ws_connect

from strata.client.dial import Dial
from strata.wire._generated import coordinator_pb2 as pb
from strata.wire._generated import coordinator_pb2_grpc as stubs

MAX_FRAME_BYTES = 64 << 20
CONNECT_TIMEOUT_S = 5.0
CLOSE_TIMEOUT_S = 2.0
CLOSE_TURNS = 10
_OPTIONS = (
    ("grpc.max_receive_message_length", MAX_FRAME_BYTES),
    ("grpc.keepalive_time_ms", 20_000),
    ("grpc.keepalive_permit_without_calls", 1),
    # This library does its own waiting between attempts; gRPC's would add to it.
    ("grpc.initial_reconnect_backoff_ms", 100),
    ("grpc.max_reconnect_backoff_ms", 1_000),
)

Receive = Callable[[pb.ServerFrame], None]
T = TypeVar("T")


class TransportLostError(Exception):
    """The connection is gone, or was never there."""


class Transport(Protocol):
    """A connection that carries frames until it is lost."""

    def start(self, receive: Receive) -> None:
        """Begin to pass on the frames that come in."""
        ...

    def send(self, frame: pb.ClientFrame) -> None:
        """Send a frame, without waiting; one that is lost with the connection is sent again by the caller."""
        ...

    async def wait_lost(self) -> None:
        """Return when the connection is gone."""
        ...

    async def close(self) -> None:
        """Close the connection when what was sent is on its way, or after CLOSE_TIMEOUT_S."""
        ...

    def abort(self) -> None:
        """Close the connection at once, in the next turns of the loop; one that is closed stays so."""
        ...


class ChannelTransport:
    """Frames in WebSocket messages."""

    def __init__(self, transport: WSTransport, listener: _Listener) -> None:
        self._transport = transport
        self._listener = listener

    @classmethod
    async def connect(cls, url: str, dial: Dial, *, host: str | None = None) -> ChannelTransport:
        """Connect, or raise TransportLostError; ``host`` stands on its certificate, if not the one of the URL."""
        if dial.endpoints.is_secure and not url.startswith("wss://"):
            raise TransportLostError(f"{url} is without TLS, and the coordinator was asked for with it")
        listener, where = _Listener(), urlsplit(url)
        opened: list[socket.socket] = []

        async def open_socket(parsed: WSParsedURL) -> socket.socket:
            opened.append(await _connect_socket(parsed.host, parsed.port))
            return opened[0]

        is_open = False
        try:
            async with asyncio.timeout(CONNECT_TIMEOUT_S):
                transport, _ = await ws_connect(
                    lambda: listener,
                    url,
                    max_frame_size=MAX_FRAME_BYTES,
                    socket_factory=open_socket,
                    ssl_context=dial.context_for(url),
                    server_hostname=(host or where.hostname) if where.scheme == "wss" else None,
                    extra_headers=dial.headers(where.netloc),
                    # A proxy or a redirect would learn the token.
                    max_redirects=0,
                )
            if transport.is_disconnected:
                # With TLS 1.3 a client that is refused learns it after its own half of the handshake.
                raise TransportLostError(f"{url}: the coordinator closed the connection")
            is_open = True
        except (OSError, WSError, TimeoutError) as error:
            raise TransportLostError(f"{url}: {type(error).__name__} {error}") from error
        finally:
            if not is_open:
                await _close_sockets(opened)
        return cls(transport, listener)

    def start(self, receive: Receive) -> None:
        """Begin to pass on the frames that come in."""
        self._listener.receive = receive

    def send(self, frame: pb.ClientFrame) -> None:
        """Send a frame."""
        if not self._transport.is_disconnected:
            self._transport.send(WSMsgType.BINARY, frame.SerializeToString())

    async def wait_lost(self) -> None:
        """Return when the connection is gone."""
        await self._transport.wait_disconnected()

    async def close(self) -> None:
        """Close the connection; a coordinator that takes nothing more off it is not waited for."""
        self._transport.disconnect()
        try:
            async with asyncio.timeout(CLOSE_TIMEOUT_S):
                await self._transport.wait_disconnected()
        except TimeoutError:
            self.abort()
            await self._transport.wait_disconnected()

    def abort(self) -> None:
        """Close the connection at once; what was not sent is lost."""
        self._transport.disconnect(graceful=False)


async def _connect_socket(host: str, port: int) -> socket.socket:
    loop = asyncio.get_running_loop()
    problem: OSError | None = None
    for family, kind, protocol, _, address in await loop.getaddrinfo(host, port, type=socket.SOCK_STREAM):
        connecting = socket.socket(family, kind, protocol)
        connecting.settimeout(0)
        try:
            await loop.sock_connect(connecting, address)
        except OSError as error:
            connecting.close()
            problem = error
        except BaseException:
            connecting.close()
            raise
        else:
            return connecting
    raise problem or OSError(f"{host} has no address")


async def _close_sockets(opened: list[socket.socket]) -> None:
    """Close what an attempt to connect has left: picows forgets its connection when the handshake is cancelled."""
    for each in opened:
        with suppress(OSError):
            each.shutdown(socket.SHUT_RDWR)
        # Whoever reads from it sees its end and closes it, within a few turns of the loop.
        for _ in range(CLOSE_TURNS):
            if each.fileno() == -1:
                break
            await asyncio.sleep(0)
        each.close()


class _Listener(WSListener):
    def __init__(self) -> None:
        super().__init__()
        # The coordinator speaks only when it is spoken to, so nothing comes before there is someone to receive it.
        self.receive: Receive = lambda _: None

    def on_ws_frame(self, transport: WSTransport, frame: WSFrame) -> None:
        if frame.msg_type == WSMsgType.BINARY:
            try:
                message = pb.ServerFrame.FromString(frame.get_payload_as_bytes())
            except DecodeError:
                transport.disconnect()
                return
            self.receive(message)
        elif frame.msg_type == WSMsgType.CLOSE:
            transport.disconnect()


class StreamTransport:
    """Frames on a gRPC stream.

    It uses gRPC's threads and not its event loops: those print errors when a loop that they served is closed.
    """

    def __init__(self, channel: grpc.Channel) -> None:
        self._channel = channel
        self._loop = asyncio.get_running_loop()
        self._unsent: queue.SimpleQueue[pb.ClientFrame | None] = queue.SimpleQueue()
        self._receive: Receive = lambda _: None
        self._lost = asyncio.Event()
        self._call: Any = None

    @classmethod
    async def connect(cls, address: str, dial: Dial, *, name: str | None = None) -> StreamTransport:
        """Connect, or raise TransportLostError; ``name`` is the address that stands on its certificate."""
        channel = dial.open_grpc(address, name=name, options=_OPTIONS)
        try:
            await run_in_thread(partial(_wait_ready, channel, address, dial, name or address))
        except BaseException:
            channel.close()
            raise
        return cls(channel)

    def start(self, receive: Receive) -> None:
        """Begin to pass on the frames that come in."""
        self._receive = receive
        self._call = stubs.CoordinatorStub(self._channel).Channel(iter(self._unsent.get, None))
        try:
            threading.Thread(target=self._read, name="strata-grpc-stream", daemon=True).start()
        except RuntimeError:  # the program has ended, see run_in_thread
            self._lost.set()

    def send(self, frame: pb.ClientFrame) -> None:
        """Send a frame."""
        self._unsent.put(frame)

    async def wait_lost(self) -> None:
        """Return when the stream has ended."""
        await self._lost.wait()

    async def close(self) -> None:
        """End the stream."""
        self._unsent.put(None)
        if self._call is not None:
            self._call.cancel()
        try:
            await run_in_thread(self._channel.close)
        except TransportLostError:
            self._channel.close()
        self._lost.set()

    def abort(self) -> None:
        """End the stream at once."""
        self._unsent.put(None)
        self._channel.close()
        self._lost.set()

    def _read(self) -> None:
        try:
            for frame in self._call:
                self._tell(self._receive, frame)
        except grpc.RpcError:
            pass
        self._unsent.put(None)
        self._tell(self._lost.set)

    def _tell(self, callback: Callable[..., object], *arguments: object) -> None:
        # The loop may be closed while this thread still reads; then nobody is there to be told.
        with suppress(RuntimeError):
            self._loop.call_soon_threadsafe(callback, *arguments)


async def run_in_thread(call: Callable[[], T]) -> T:
    """Return what a blocking call returns, or raise TransportLostError where no thread is to be had for it.

    Once a program has ended, the interpreter starts no threads, and so nothing can be connected any more.
    """
    try:
        running = asyncio.get_running_loop().run_in_executor(None, call)
    except RuntimeError as error:
        raise TransportLostError(str(error)) from error
    return await running


def _wait_ready(channel: grpc.Channel, address: str, dial: Dial, name: str) -> None:
    try:
        grpc.channel_ready_future(channel).result(CONNECT_TIMEOUT_S)
    except grpc.FutureTimeoutError as error:
        problem = dial.find_tls_problem(address, name=name)
        raise TransportLostError(str(problem or f"no coordinator answers at {address}")) from error
