"""The coordinator's composition root: journal, dispatcher, sessions, and the transports around them.

HTTP (dashboard, metrics) will be one more transport here, beside gRPC and the channel.
"""

from __future__ import annotations

import asyncio
import logging
from contextlib import AsyncExitStack
from dataclasses import dataclass, field
from typing import Self

import grpc
from grpc_health.v1 import health_pb2, health_pb2_grpc
from grpc_health.v1.health import aio as health
from grpc_reflection.v1alpha import reflection

from strata.clock import SystemClock
from strata.cluster import Limits
from strata.coordinator.channel import serve_channel
from strata.coordinator.dispatcher import Dispatcher
from strata.coordinator.journal import open_journal
from strata.coordinator.service import CoordinatorService
from strata.coordinator.sessions import Sessions
from strata.errors import PortTakenError
from strata.wire._generated import coordinator_pb2 as pb
from strata.wire._generated import coordinator_pb2_grpc as stubs

log = logging.getLogger(__name__)

SERVICE = pb.DESCRIPTOR.services_by_name["Coordinator"].full_name
MAX_MESSAGE_BYTES = 4 << 20
_OPTIONS = (
    ("grpc.max_receive_message_length", MAX_MESSAGE_BYTES),
    ("grpc.max_send_message_length", 64 << 20),
    # A second coordinator on the same port is an error, not a silent half of the workers.
    ("grpc.so_reuseport", 0),
    ("grpc.keepalive_time_ms", 20_000),
    ("grpc.keepalive_timeout_ms", 10_000),
    ("grpc.http2.min_recv_ping_interval_without_data_ms", 5_000),
    ("grpc.keepalive_permit_without_calls", 1),
)


@dataclass(frozen=True, kw_only=True)
class CoordinatorConfig:
    """Where a coordinator listens and keeps its state. Port 0 takes a free one."""

    grpc_address: str = "127.0.0.1:50051"
    channel_address: str = "127.0.0.1:50052"
    advertise_channel: str | None = None
    """The host:port that workers are told for the channel, where it differs from the one that it binds."""
    state: str = "memory://"
    limits: Limits = field(default_factory=Limits)
    max_channels: int = 10_000
    """How many workers may be connected; one more is refused, and so is one more unary call under way."""


class Coordinator:
    """A coordinator that serves from entering the ``async with`` block to leaving it.

    Leaving it drains: no new commands are taken, what waits for the disk is written and answered, and then the
    connections are closed, which tells the workers to look for another one, or the next.
    """

    def __init__(self, config: CoordinatorConfig) -> None:
        self._config = config
        self._stack = AsyncExitStack()
        self.grpc_port = 0
        self.channel_port = 0

    async def __aenter__(self) -> Self:
        async with AsyncExitStack() as stack:
            journal = open_journal(self._config.state)
            stack.callback(journal.close)
            sessions = Sessions()
            dispatcher = Dispatcher(journal, limits=self._config.limits, clock=SystemClock(), deliver=sessions.deliver)
            ticking = asyncio.create_task(dispatcher.run(), name="ticks")
            stack.push_async_callback(_cancel, ticking)
            await self._serve_channel(stack, sessions, dispatcher)
            await self._serve_grpc(stack, sessions, dispatcher)
            self.dispatcher, self.sessions = dispatcher, sessions
            self._stack = stack.pop_all()
        log.info("serving gRPC on port %d and channels on port %d", self.grpc_port, self.channel_port)
        return self

    async def __aexit__(self, *_: object) -> None:
        await self._stack.aclose()

    async def _serve_channel(self, stack: AsyncExitStack, sessions: Sessions, dispatcher: Dispatcher) -> None:
        host, port = split_address(self._config.channel_address)
        try:
            server = await serve_channel(host, port, sessions, dispatcher, max_channels=self._config.max_channels)
        except OSError as error:
            raise PortTakenError("channel", self._config.channel_address, error.strerror or str(error)) from error
        stack.push_async_callback(_close_server, server)
        self.channel_port = server.sockets[0].getsockname()[1]
        sessions.channel_url = f"ws://{self._config.advertise_channel or f'{host}:{self.channel_port}'}"

    async def _serve_grpc(self, stack: AsyncExitStack, sessions: Sessions, dispatcher: Dispatcher) -> None:
        server = grpc.aio.server(options=_OPTIONS, maximum_concurrent_rpcs=self._config.max_channels)
        stubs.add_CoordinatorServicer_to_server(CoordinatorService(dispatcher, sessions), server)
        servicer = health.HealthServicer()
        health_pb2_grpc.add_HealthServicer_to_server(servicer, server)
        names = (SERVICE, health_pb2.DESCRIPTOR.services_by_name["Health"].full_name, reflection.SERVICE_NAME)
        reflection.enable_server_reflection(names, server)
        host, port = split_address(self._config.grpc_address)
        try:
            self.grpc_port = server.add_insecure_port(f"{host}:{port}")
        except RuntimeError as error:
            raise PortTakenError("gRPC", self._config.grpc_address, "it cannot be bound") from error
        await server.start()
        stack.push_async_callback(server.stop, 1.0)
        for name in ("", SERVICE):
            await servicer.set(name, health_pb2.HealthCheckResponse.SERVING)


def split_address(address: str) -> tuple[str, int]:
    """Return host and port of ``host:port``, or raise ValueError."""
    host, colon, port = address.rpartition(":")
    if not colon or not host or not port.isdigit() or int(port) > 65_535:
        raise ValueError(f"address {address!r}; use host:port, such as 127.0.0.1:50051")
    return host.strip("[]"), int(port)


async def _cancel(task: asyncio.Task[None]) -> None:
    task.cancel()
    await asyncio.gather(task, return_exceptions=True)


async def _close_server(server: asyncio.Server) -> None:
    server.close()
    # Connections are dropped rather than waited for: their clients come back by themselves.
    if hasattr(server, "close_clients"):
        server.close_clients()
