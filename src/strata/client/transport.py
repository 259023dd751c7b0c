"""Two ways to carry frames to the coordinator: a WebSocket, and a gRPC stream where that port is closed."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Protocol

import grpc
from google.protobuf.message import DecodeError
from picows import WSError, WSFrame, WSListener, WSMsgType, WSTransport, ws_connect

from strata.wire._generated import coordinator_pb2 as pb
from strata.wire._generated import coordinator_pb2_grpc as stubs

MAX_FRAME_BYTES = 64 << 20
CONNECT_TIMEOUT_S = 5.0
_OPTIONS = (
    ("grpc.max_receive_message_length", MAX_FRAME_BYTES),
    ("grpc.keepalive_time_ms", 20_000),
    ("grpc.keepalive_permit_without_calls", 1),
    # This library does its own waiting between attempts; gRPC's would add to it.
    ("grpc.initial_reconnect_backoff_ms", 100),
    ("grpc.max_reconnect_backoff_ms", 1_000),
)

Receive = Callable[[pb.ServerFrame], None]


class TransportLostError(Exception):
    """The connection is gone, or was never there."""


class Transport(Protocol):
    """A connection that carries frames until it is lost."""

    def send(self, frame: pb.ClientFrame) -> None:
        """Send a frame, without waiting; one that is lost with the connection is sent again by the caller."""
        ...

    async def wait_lost(self) -> None:
        """Return when the connection is gone."""
        ...

    async def close(self) -> None:
        """Close the connection."""
        ...


class ChannelTransport:
    """Frames in WebSocket messages."""

    def __init__(self, transport: WSTransport) -> None:
        self._transport = transport

    @classmethod
    async def connect(cls, url: str, receive: Receive) -> ChannelTransport:
        """Connect, or raise TransportLostError."""
        try:
            async with asyncio.timeout(CONNECT_TIMEOUT_S):
                transport, _ = await ws_connect(lambda: _Listener(receive), url, max_frame_size=MAX_FRAME_BYTES)
        except (OSError, WSError, TimeoutError) as error:
            raise TransportLostError(f"{url}: {type(error).__name__} {error}") from error
        return cls(transport)

    def send(self, frame: pb.ClientFrame) -> None:
        """Send a frame."""
        if not self._transport.is_disconnected:
            self._transport.send(WSMsgType.BINARY, frame.SerializeToString())

    async def wait_lost(self) -> None:
        """Return when the connection is gone."""
        await self._transport.wait_disconnected()

    async def close(self) -> None:
        """Close the connection."""
        self._transport.disconnect()
        await self._transport.wait_disconnected()


class _Listener(WSListener):
    def __init__(self, receive: Receive) -> None:
        super().__init__()
        self._receive = receive

    def on_ws_frame(self, transport: WSTransport, frame: WSFrame) -> None:
        if frame.msg_type == WSMsgType.BINARY:
            try:
                message = pb.ServerFrame.FromString(frame.get_payload_as_bytes())
            except DecodeError:
                transport.disconnect()
                return
            self._receive(message)
        elif frame.msg_type == WSMsgType.CLOSE:
            transport.disconnect()


class StreamTransport:
    """Frames on a gRPC stream."""

    def __init__(self, channel: grpc.aio.Channel, receive: Receive) -> None:
        self._channel = channel
        self._unsent: asyncio.Queue[pb.ClientFrame] = asyncio.Queue()
        self._task = asyncio.get_running_loop().create_task(self._run(receive), name="grpc stream")

    @classmethod
    async def connect(cls, address: str, receive: Receive) -> StreamTransport:
        """Connect, or raise TransportLostError."""
        channel = grpc.aio.insecure_channel(address, options=_OPTIONS)
        try:
            async with asyncio.timeout(CONNECT_TIMEOUT_S):
                await channel.channel_ready()
        except TimeoutError as error:
            await channel.close()
            raise TransportLostError(f"no coordinator answers at {address}") from error
        return cls(channel, receive)

    def send(self, frame: pb.ClientFrame) -> None:
        """Send a frame."""
        self._unsent.put_nowait(frame)

    async def wait_lost(self) -> None:
        """Return when the stream has ended."""
        await asyncio.wait([self._task])

    async def close(self) -> None:
        """End the stream."""
        self._task.cancel()
        await asyncio.wait([self._task])
        await self._channel.close()

    async def _run(self, receive: Receive) -> None:
        call = stubs.CoordinatorStub(self._channel).Channel()

        async def write() -> None:
            while True:
                await call.write(await self._unsent.get())

        writing = asyncio.get_running_loop().create_task(write())
        try:
            async for frame in call:
                receive(frame)
        except grpc.aio.AioRpcError:
            return
        finally:
            writing.cancel()
            call.cancel()
