"""``strata coordinator``: run the service until SIGTERM or Ctrl-C."""

from __future__ import annotations

import asyncio
import logging
import os
import resource
import signal
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

if TYPE_CHECKING:
    from starlette.routing import BaseRoute

    from strata.config import Settings
    from strata.coordinator.entry.server_tls import TlsConfig
    from strata.coordinator.server import CoordinatorConfig
    from strata.tracing.traces import Tracing

log = logging.getLogger(__name__)
SWITCH_S = 0.0005


def run_coordinator(
    *,
    listen: Annotated[
        str, typer.Option(help="The host on which all three ports listen; 0.0.0.0 is every address of this machine.")
    ] = "127.0.0.1",
    grpc_address: Annotated[
        str | None,
        typer.Option(help="The host:port on which gRPC listens.", show_default="port 50051 of --listen"),
    ] = None,
    channel_address: Annotated[
        str | None,
        typer.Option(
            help="The host:port on which the workers' channel listens.", show_default="port 50052 of --listen"
        ),
    ] = None,
    advertise_grpc: Annotated[
        str | None, typer.Option(help="The host:port at which clients and replicas reach gRPC, if it differs.")
    ] = None,
    advertise_channel: Annotated[
        str | None, typer.Option(help="The host:port at which workers reach the channel, if it differs.")
    ] = None,
    http_host: Annotated[
        str | None,
        typer.Option(help="The host on which HTTP listens: API, dashboard and metrics.", show_default="--listen"),
    ] = None,
    http_port: Annotated[
        int, typer.Option(min=0, max=65_535, help="The port on which HTTP listens; 0 takes a free one.")
    ] = 8080,
    no_http: Annotated[bool, typer.Option("--no-http", help="Do not serve HTTP; no goodput is recorded then.")] = False,
    advertise_http: Annotated[
        str | None, typer.Option(help="The host:port at which tools reach HTTP, if it differs.")
    ] = None,
    tls_cert: Annotated[
        Path | None,
        typer.Option(
            help="The certificate of all three ports; a replaced file is loaded at once.",
            show_default="STRATA_TLS_CERT",
        ),
    ] = None,
    tls_key: Annotated[Path | None, typer.Option(help="Its private key.", show_default="STRATA_TLS_KEY")] = None,
    tls_client_ca: Annotated[
        Path | None,
        typer.Option(
            help="Accept only clients with a certificate of this authority.", show_default="STRATA_TLS_CLIENT_CA"
        ),
    ] = None,
    admin_token_file: Annotated[
        Path | None,
        typer.Option(
            help="The file of the administrator's token, created if missing; all clients then need a token.",
            show_default="STRATA_ADMIN_TOKEN_FILE",
        ),
    ] = None,
    insecure: Annotated[bool, typer.Option("--insecure", help="Accept other machines without TLS or tokens.")] = False,
    state: Annotated[
        str | None,
        typer.Option(
            help="The journal: sqlite:///path, etcd://host:2379,host:2379/prefix for replicas, or memory://.",
            show_default="strata-journal.db in the working directory",
        ),
    ] = None,
    lease: Annotated[float, typer.Option(help="Seconds that a worker counts as alive without a heartbeat.")] = 10.0,
    grace: Annotated[
        float, typer.Option(help="Seconds that a worker has to reconnect after its connection closed.")
    ] = 2.0,
    leader_lease: Annotated[
        int, typer.Option(min=2, help="With replicas: seconds without a sign of the leader until another one leads.")
    ] = 3,
    max_channels: Annotated[int, typer.Option(min=1, help="How many workers may be connected at a time.")] = 10_000,
    max_unsent: Annotated[
        int, typer.Option(min=1, help="How many MiB of replies may be queued for slow clients, in total.")
    ] = 1_024,
    accept_journal_loss: Annotated[
        bool,
        typer.Option(
            "--accept-journal-loss", help="Go on with what is readable of a damaged journal; the rest is lost."
        ),
    ] = False,
    log_json: Annotated[
        bool | None,
        typer.Option(
            "--log-json/--log-text",
            help="Log one JSON object a line, or text.",
            show_default="text at a terminal, JSON elsewhere",
        ),
    ] = None,
    log_level: Annotated[
        str, typer.Option(help="The least severe level that is logged: debug, info, warning or error.")
    ] = "info",
) -> None:
    """Run the coordinator, which manages membership, barriers, checkpoint commits and data of all jobs.

    It journals each decision before it replies, so you can kill and restart it at any moment: workers keep
    training and reconnect by themselves. On SIGTERM and Ctrl-C it sends pending replies and exits. If it cannot
    trust its journal or itself any more, it logs one critical line and exits with 70.
    """
    # Read when gRPC is loaded. It would write a line of its own, in no format of a log, for each handshake that fails:
    # whoever reaches the port could fill the log.
    os.environ.setdefault("GRPC_VERBOSITY", "NONE")
    # Imported here: no other command needs gRPC, and loading it takes longer than most of them run.
    from strata import __version__
    from strata.address import DEFAULT_PORT, join_address, parse_host
    from strata.cluster import Limits
    from strata.config import load_settings
    from strata.coordinator.etcd.target import is_etcd, parse_target
    from strata.coordinator.journal import check_state
    from strata.coordinator.logs import LEVELS, set_up_logging
    from strata.coordinator.server import CoordinatorConfig
    from strata.tracing.environment import open_tracing

    settings = load_settings(
        strata_tls_cert=tls_cert,
        strata_tls_key=tls_key,
        strata_tls_client_ca=tls_client_ca,
        strata_admin_token_file=admin_token_file,
        strata_insecure=insecure or None,
    )
    try:
        host = parse_host(listen)
        grpc_address = grpc_address or join_address(host, DEFAULT_PORT)
        channel_address = channel_address or join_address(host, DEFAULT_PORT + 1)
        http_address = None if no_http else join_address(parse_host(http_host or listen), http_port)
        config = CoordinatorConfig(
            grpc_address=grpc_address,
            channel_address=channel_address,
            advertise_grpc=advertise_grpc,
            advertise_channel=advertise_channel,
            http_address=http_address,
            tls=_tls_of(settings),
            admin_token_file=settings.strata_admin_token_file,
            oidc=settings.oidc,
            is_insecure=settings.strata_insecure,
            advertise_http=advertise_http,
            make_page=_make_page,
            version=__version__,
            state=state or f"sqlite://{Path.cwd() / 'strata-journal.db'}",
            limits=Limits(lease_s=lease, grace_s=grace),
            leader_lease_s=leader_lease,
            max_channels=max_channels,
            accept_journal_loss=accept_journal_loss,
            max_unsent_bytes=max_unsent << 20,
        )
        check_state(config.state)
        if is_etcd(config.state):
            parse_target(config.state, os.environ)
        if log_level not in LEVELS:
            raise ValueError(f"--log-level {log_level!r}; use {', '.join(LEVELS[:-1])} or {LEVELS[-1]}")  # noqa: TRY301 - reported below
    except ValueError as error:
        raise typer.BadParameter(str(error)) from error
    set_up_logging(level=log_level, as_json=not sys.stderr.isatty() if log_json is None else log_json)
    _allow_open_files(max_channels)
    if not no_http:
        # The thread that makes HTTP's answers gives way within this time, so that no heartbeat waits for long.
        sys.setswitchinterval(SWITCH_S)
    tracing = open_tracing(os.environ, service="strata-coordinator", attributes={})
    try:
        with asyncio.Runner(loop_factory=_new_loop) as runner:
            runner.run(_serve(config, tracing))
    finally:
        tracing.close()


def _tls_of(settings: Settings) -> TlsConfig | None:
    from strata.coordinator.entry.server_tls import TlsConfig

    cert, key = settings.strata_tls_cert, settings.strata_tls_key
    if cert is None or key is None:
        if settings.strata_tls_client_ca is not None:
            raise ValueError("--tls-client-ca needs --tls-cert and --tls-key")
        return None
    client_ca = settings.strata_tls_client_ca
    return TlsConfig(
        cert=cert.expanduser(), key=key.expanduser(), client_ca=None if client_ca is None else client_ca.expanduser()
    )


async def _serve(config: CoordinatorConfig, tracing: Tracing) -> None:
    from strata.coordinator.failing.fail_stop import FailStop, exit_process
    from strata.coordinator.server import Coordinator
    from strata.coordinator.sharing.garbage import collect_seldom

    stop = asyncio.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        asyncio.get_running_loop().add_signal_handler(number, stop.set)
    fail_stop = FailStop(exit_process)
    fail_stop.watch_process(asyncio.get_running_loop())
    async with Coordinator(config, tracing=tracing, fail_stop=fail_stop) as coordinator:
        collecting = fail_stop.own(collect_seldom(), name="garbage")
        log.info("state is kept in %s", config.state)
        # On stdout and flushed, so that whoever started it with port 0 can read where it is.
        http = "" if coordinator.http_port is None else f" http={coordinator.http_port}"
        sys.stdout.write(f"ready grpc={coordinator.grpc_port} channel={coordinator.channel_port}{http}\n")
        sys.stdout.flush()
        await stop.wait()
        log.info("stopping after the pending writes")
        collecting.cancel()
        await asyncio.gather(collecting, return_exceptions=True)


def _make_page() -> BaseRoute:
    from strata.dashboard.site import Site

    return Site().route()


def _new_loop() -> asyncio.AbstractEventLoop:
    import uvloop

    return uvloop.new_event_loop()


def _allow_open_files(channels: int) -> None:
    """Let the process have a file for every connection, as far as the system lets it."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = channels + 1_000
    allowed = wanted if hard == resource.RLIM_INFINITY else min(wanted, hard)
    if soft != resource.RLIM_INFINITY and soft < allowed:
        resource.setrlimit(resource.RLIMIT_NOFILE, (allowed, hard))
    if allowed < wanted:
        log.warning("%d open files are allowed, and %d channels may need %d", allowed, channels, wanted)
