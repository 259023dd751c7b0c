"""The coordinator's composition root: journal, dispatcher, sessions, and the transports around them."""

from __future__ import annotations

import asyncio
import logging
import math
import os
import socket
from collections.abc import Callable
from contextlib import AsyncExitStack
from dataclasses import dataclass, field
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Any, Self

import grpc
from grpc_health.v1 import health_pb2, health_pb2_grpc
from grpc_health.v1.health import aio as health
from grpc_reflection.v1alpha import reflection

from strata.address import SECURE, is_loopback, join_address, split_address
from strata.clock import SystemClock
from strata.cluster import Limits
from strata.cluster.events import Event
from strata.config import OidcSettings
from strata.coordinator.channel import serve_channel
from strata.coordinator.dispatcher import Dispatcher
from strata.coordinator.entry.admin_token import AdminToken
from strata.coordinator.entry.gate import Gate
from strata.coordinator.entry.grpc_gate import GrpcGate
from strata.coordinator.entry.listening import check_listening
from strata.coordinator.entry.server_tls import ServerTls, TlsConfig
from strata.coordinator.etcd.target import EtcdTarget, is_etcd, parse_target
from strata.coordinator.failing.fail_stop import FailStop
from strata.coordinator.flow import MAX_ANSWER_BYTES, UnsentBudget
from strata.coordinator.journal import Journal, MemoryJournal, journal_path, open_journal
from strata.coordinator.replication.elector import Elector
from strata.coordinator.replication.follower import Warm
from strata.coordinator.replication.leadership import Leader, Leadership, lead_alone
from strata.coordinator.service import CoordinatorService, add_service
from strata.coordinator.sessions import Sessions
from strata.coordinator.telemetry.feed import Feed
from strata.coordinator.telemetry.job_traces import JobsTraces
from strata.errors import NotLeaderError, PortTakenError
from strata.tracing.traces import NO_TRACES, Tracing
from strata.wire._generated import coordinator_pb2 as pb
from strata.wire._generated import journal_pb2 as jp

if TYPE_CHECKING:
    from strata.coordinator.entry.oidc import OidcIssuer

log = logging.getLogger(__name__)

SERVICE = pb.DESCRIPTOR.services_by_name["Coordinator"].full_name
MAX_MESSAGE_BYTES = 4 << 20
_OPTIONS = (
    ("grpc.max_receive_message_length", MAX_MESSAGE_BYTES),
    ("grpc.max_send_message_length", MAX_ANSWER_BYTES),
    # One client cannot take all calls that may be under way.
    ("grpc.max_concurrent_streams", 1_000),
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
    advertise_grpc: str | None = None
    """The host:port that clients of other replicas are told for gRPC, where it differs from the one that it binds."""
    advertise_channel: str | None = None
    """The host:port that workers are told for the channel, where it differs from the one that it binds."""
    http_address: str | None = None
    """Where the HTTP API, the dashboard and the metrics are; None for nowhere."""
    advertise_http: str | None = None
    """The host:port that tools are told for HTTP, where it differs from the one that it binds."""
    make_page: Callable[[], Any] | None = None
    """What makes the Starlette route of the dashboard, when HTTP is served; None for the API alone."""
    tls: TlsConfig | None = None
    """The certificate of all three ports; None serves without TLS."""
    admin_token_file: Path | None = None
    """The file of the administrator's token, which is made if it is not there. With it everyone needs a token."""
    oidc: OidcSettings | None = None
    """The issuer whose tokens get in beside Strata's own."""
    is_insecure: bool = False
    """Whether to listen beyond this machine without TLS or tokens."""
    version: str = ""
    """Which version of Strata this is, for those who ask."""
    state: str = "memory://"
    accept_journal_loss: bool = False
    """Whether to go on with what is readable of a damaged journal, and forget the rest."""
    limits: Limits = field(default_factory=Limits)
    leader_lease_s: int = 3
    """With replicas: for how long a leader that is silent keeps the others from leading; etcd grants at least 2."""
    max_channels: int = 10_000
    """How many workers may be connected; one more is refused, and so is one more unary call under way."""
    max_unsent_bytes: int = 1 << 30
    """How many bytes may wait for clients that read slowly; above that, those with most waiting are disconnected."""

    def __post_init__(self) -> None:
        for address in (self.grpc_address, self.channel_address, self.http_address):
            if address is not None:
                split_address(address)
        for address in (self.advertise_grpc, self.advertise_channel, self.advertise_http):
            if address is not None and split_address(address)[1] == 0:
                raise ValueError(f"address {address!r}: nobody is reached at port 0")


class Coordinator:
    """A coordinator that serves from entering the ``async with`` block to leaving it.

    Leaving it drains: no new commands are taken, what waits for the disk is written and answered, and then the
    connections are closed, which tells the workers to look for another one, or the next.
    """

    def __init__(
        self, config: CoordinatorConfig, *, tracing: Tracing = NO_TRACES, fail_stop: FailStop | None = None
    ) -> None:
        self._fail_stop = fail_stop or FailStop()
        self._config = config
        self._tracing = tracing
        self._clock = SystemClock()
        self._target: EtcdTarget | None = None
        self.elector: Elector | None = None
        self._tls = None if config.tls is None else ServerTls(config.tls)
        self._stack = AsyncExitStack()
        self.grpc_port = 0
        self.channel_port = 0
        self.http_port: int | None = None

    async def __aenter__(self) -> Self:
        if not self._config.is_insecure:
            self._check_listening(is_open=not self._may_know_tokens())
        # All that may refuse the start comes before the journal is made, and a new token after it.
        self._issuer = self._make_issuer()
        token_file = self._config.admin_token_file
        self._admin = AdminToken(token_file) if token_file is not None and token_file.expanduser().exists() else None
        async with AsyncExitStack() as stack:
            self.sessions = Sessions()
            budget = UnsentBudget(self._config.max_unsent_bytes)
            # Nobody would take from it without HTTP.
            feed = None if self._config.http_address is None else Feed()
            self.dispatcher = self._make_dispatcher(stack, feed)
            # Before the first command: what it says is told by the feed, when it is durable.
            replayed = self.dispatcher.cluster.events.since(0)[1]
            self.gate = gate = self._make_gate()
            stack.push_async_callback(_cancel, self._fail_stop.own(gate.watch(), name="gate"))
            ticking = self._fail_stop.own(self.dispatcher.run(), name="ticks")
            stack.push_async_callback(_cancel, ticking)
            if self._tls is not None:
                stack.push_async_callback(_cancel, self._fail_stop.own(self._tls.watch(), name="certificates"))
            await self._serve_channel(stack, budget, gate)
            if self._config.http_address is not None:
                # Before gRPC is served: a tool that asks meanwhile must not be told that there is no HTTP.
                self._announce_http(split_address(self._config.http_address))
            await self._serve_grpc(stack, budget, gate)
            if feed is not None:
                await self._serve_http(stack, feed, replayed, gate)
            self._begin_to_lead(stack)
            self._stack = stack.pop_all()
        log.info("serving gRPC on port %d and channels on port %d", self.grpc_port, self.channel_port)
        if self.http_port is not None:
            log.info("serving HTTP on port %d", self.http_port)
        return self

    async def __aexit__(self, *_: object) -> None:
        await self._stack.aclose()
        if self._fail_stop.failure is not None:
            raise self._fail_stop.failure

    def _make_issuer(self) -> OidcIssuer | None:
        if self._config.oidc is None:
            return None
        # Imported here, for it brings libraries that nobody else needs.
        from strata.coordinator.entry.oidc import OidcIssuer

        return OidcIssuer(self._config.oidc, is_insecure=self._config.is_insecure)

    def _make_gate(self) -> Gate:
        if self._admin is None and self._config.admin_token_file is not None:
            self._admin = AdminToken(self._config.admin_token_file)
        gate = Gate(self.dispatcher, admin=self._admin, issuer=self._issuer)
        self._check_listening(is_open=gate.is_open)
        return gate

    def _check_listening(self, *, is_open: bool) -> None:
        config = self._config
        addresses = (config.grpc_address, config.channel_address, config.http_address)
        for host in {split_address(each)[0] for each in addresses if each is not None}:
            if not is_loopback(host):
                has_tls = config.tls is not None
                check_listening(host, has_tls=has_tls, is_open=is_open, is_insecure=config.is_insecure)

    def _may_know_tokens(self) -> bool:
        """Whether anyone could be asked for a token: known before a journal or an administrator's token is made."""
        config, path = self._config, journal_path(self._config.state)
        is_set_up = config.admin_token_file is not None or config.oidc is not None
        return is_set_up or (path is not None and path.exists())

    def _make_dispatcher(self, stack: AsyncExitStack, feed: Feed | None) -> Dispatcher:
        journal: Journal
        if is_etcd(self._config.state):
            # A standby writes nothing; whoever makes it the leader brings the journal of its term.
            self._target = parse_target(self._config.state, os.environ)
            self.leadership, journal = Leadership(self._clock), MemoryJournal()
        else:
            self.leadership = lead_alone(self._clock)
            journal = open_journal(self._config.state, accept_loss=self._config.accept_journal_loss)
        stack.callback(journal.close)
        return Dispatcher(
            journal,
            limits=self._config.limits,
            clock=self._clock,
            deliver=self.sessions.deliver,
            feed=feed,
            leadership=self.leadership,
            traces=JobsTraces(self._tracing) if self._tracing.is_on else None,
            turns=self.sessions.turns,
            fail_stop=self._fail_stop,
        )

    def _begin_to_lead(self, stack: AsyncExitStack) -> None:
        """Lead from now on, or campaign from now on if there may be others."""
        host, _ = split_address(self._config.grpc_address)
        # An address that means all of this machine's says nothing to another one.
        host = socket.gethostname() if host in ("0.0.0.0", "::") else host  # noqa: S104 - compared, not bound
        address = self._config.advertise_grpc or join_address(host, self.grpc_port)
        if self._target is None:
            self.leadership.lead(Leader(address, self.sessions.http_url), until_s=math.inf)
            return
        self.elector = Elector(
            self._target,
            jp.Replica(grpc=address, http=self.sessions.http_url, version=self._config.version),
            leadership=self.leadership,
            limits=self._config.limits,
            clock=self._clock,
            lease_s=self._config.leader_lease_s,
            lead=self._lead,
            stand_by=self._stand_by,
            fail_stop=self._fail_stop,
        )
        # The last one of all, so that on leaving it resigns first.
        stack.push_async_callback(self.elector.close)
        self.elector.start()

    async def _lead(self, journal: Journal, warm: Warm) -> None:
        self.dispatcher.lead(journal, warm.cluster, last_s=warm.last_s, since_snapshot=warm.since_snapshot)
        # Only now are the tokens of the cluster known.
        self.gate.decide()
        await self._health.set(SERVICE, health_pb2.HealthCheckResponse.SERVING)

    async def _stand_by(self) -> None:
        await self._health.set(SERVICE, health_pb2.HealthCheckResponse.NOT_SERVING)
        await self.dispatcher.stand_by()
        self.sessions.hang_up(self.leadership.refusal() or NotLeaderError("", term=0))

    async def _serve_channel(self, stack: AsyncExitStack, budget: UnsentBudget, gate: Gate) -> None:
        host, port = split_address(self._config.channel_address)
        try:
            server = await serve_channel(
                host,
                port,
                self.sessions,
                self.dispatcher,
                budget,
                max_channels=self._config.max_channels,
                gate=gate,
                tls=self._tls,
            )
        except OSError as error:
            raise PortTakenError("channel", self._config.channel_address, error.strerror or str(error)) from error
        stack.push_async_callback(_close_server, server)
        self.channel_port = server.sockets[0].getsockname()[1]
        self.sessions.channel_url = (
            f"{self._scheme('ws')}://{self._config.advertise_channel or join_address(host, self.channel_port)}"
        )

    async def _serve_grpc(self, stack: AsyncExitStack, budget: UnsentBudget, gate: Gate) -> None:
        # An open gate asks nobody, so calls need not pass it; one with replicas may close when this one leads.
        guarding = None if gate.is_open and self._target is None else GrpcGate(gate)
        server = grpc.aio.server(options=_OPTIONS, maximum_concurrent_rpcs=self._config.max_channels)
        add_service(CoordinatorService(self.dispatcher, self.sessions, budget, gate, self.leadership), server, guarding)
        self._health = health.HealthServicer()
        health_pb2_grpc.add_HealthServicer_to_server(self._health, server)
        names = (SERVICE, health_pb2.DESCRIPTOR.services_by_name["Health"].full_name, reflection.SERVICE_NAME)
        reflection.enable_server_reflection(names, server)
        host, port = split_address(self._config.grpc_address)
        try:
            if self._tls is None:
                self.grpc_port = server.add_insecure_port(join_address(host, port))
            else:
                self.grpc_port = server.add_secure_port(join_address(host, port), self._tls.grpc_credentials())
        except RuntimeError as error:
            raise PortTakenError("gRPC", self._config.grpc_address, "it cannot be bound") from error
        await server.start()
        stack.push_async_callback(server.stop, 1.0)
        serving, waiting = health_pb2.HealthCheckResponse.SERVING, health_pb2.HealthCheckResponse.NOT_SERVING
        # The process is well as a standby too; the service is where the leader is.
        await self._health.set("", serving)
        await self._health.set(SERVICE, serving if self.leadership.is_leader else waiting)

    async def _serve_http(self, stack: AsyncExitStack, feed: Feed, replayed: list[Event], gate: Gate) -> None:
        # Imported here, for who serves no HTTP needs none of it; and in a thread, for workers are served already.
        http_thread = await asyncio.to_thread(import_module, "strata.coordinator.http.http_thread")
        assert self._config.http_address is not None
        host, port = split_address(self._config.http_address)
        thread = http_thread.serve_http(
            host,
            port,
            self.dispatcher,
            self.sessions,
            feed,
            self.leadership,
            replayed=replayed,
            state=self._config.state,
            version=self._config.version,
            grpc_port=self.grpc_port,
            channel_port=self.channel_port,
            gate=gate,
            make_page=self._config.make_page,
            tls=self._tls,
            fail_stop=self._fail_stop,
        )
        # It waits for the coordinator's loop while it ends, so the loop must run meanwhile.
        stack.push_async_callback(asyncio.to_thread, thread.close)
        self.http_port = thread.port
        self._announce_http((host, thread.port))

    def _announce_http(self, listening: tuple[str, int]) -> None:
        """Let everyone know where HTTP is; port 0 is not known yet."""
        if self._config.advertise_http or listening[1]:
            address = self._config.advertise_http or join_address(*listening)
            self.sessions.http_url = f"{self._scheme('http')}://{address}"

    def _scheme(self, plain: str) -> str:
        return plain if self._tls is None else SECURE[plain]


async def _cancel(task: asyncio.Task[None]) -> None:
    task.cancel()
    await asyncio.gather(task, return_exceptions=True)


async def _close_server(server: asyncio.Server) -> None:
    server.close()
    # Connections are dropped rather than waited for: their clients come back by themselves.
    if hasattr(server, "close_clients"):
        server.close_clients()
