"""``strata coordinator``: run the service until it is told to stop."""

from __future__ import annotations

import asyncio
import json
import logging
import resource
import signal
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

if TYPE_CHECKING:
    from strata.coordinator.server import CoordinatorConfig

log = logging.getLogger(__name__)
_LOOPBACK = ("127.", "localhost", "::1")


def run_coordinator(
    *,
    grpc_address: Annotated[str, typer.Option(help="Where gRPC listens.")] = "127.0.0.1:50051",
    channel_address: Annotated[str, typer.Option(help="Where the workers' channel listens.")] = "127.0.0.1:50052",
    advertise_channel: Annotated[
        str | None, typer.Option(help="The host:port that workers are told for the channel, if it is another one.")
    ] = None,
    state: Annotated[
        str | None,
        typer.Option(
            help="The journal: sqlite:///path, or memory:// to forget everything at the end.",
            show_default="strata-journal.db in the working directory",
        ),
    ] = None,
    lease: Annotated[
        float, typer.Option(help="For how many seconds a worker counts as alive without a word from it.")
    ] = 10.0,
    grace: Annotated[
        float, typer.Option(help="For how many seconds a worker whose connection closed may come back.")
    ] = 2.0,
    max_channels: Annotated[int, typer.Option(min=1, help="How many workers may be connected at a time.")] = 10_000,
    log_json: Annotated[bool, typer.Option("--log-json", help="Log one JSON object per line.")] = False,
) -> None:
    """Run the coordinator: members, barriers, commits and data of all jobs.

    What it has told anyone is in its journal first, so it may be killed at any moment and started again: workers train
    on meanwhile and come back by themselves. SIGTERM and Ctrl-C drain it.
    """
    # Imported here: no other command needs gRPC, and loading it takes longer than most of them run.
    from strata.cluster import Limits
    from strata.coordinator.journal import check_state
    from strata.coordinator.server import CoordinatorConfig, split_address

    try:
        config = CoordinatorConfig(
            grpc_address=grpc_address,
            channel_address=channel_address,
            advertise_channel=advertise_channel,
            state=state or f"sqlite://{Path.cwd() / 'strata-journal.db'}",
            limits=Limits(lease_s=lease, grace_s=grace),
            max_channels=max_channels,
        )
        check_state(config.state)
        hosts = [split_address(address)[0] for address in (grpc_address, channel_address)]
    except ValueError as error:
        raise typer.BadParameter(str(error)) from error
    _set_up_logging(as_json=log_json)
    if not all(host.startswith(_LOOPBACK) for host in hosts):
        log.warning("listening beyond this machine without authentication: let only a trusted network reach it")
    _allow_open_files(max_channels)
    with asyncio.Runner(loop_factory=_new_loop) as runner:
        runner.run(_serve(config))


async def _serve(config: CoordinatorConfig) -> None:
    from strata.coordinator.server import Coordinator

    stop = asyncio.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        asyncio.get_running_loop().add_signal_handler(number, stop.set)
    async with Coordinator(config) as coordinator:
        log.info("state is kept in %s", config.state)
        # On stdout and flushed, so that whoever started it with port 0 can read where it is.
        sys.stdout.write(f"ready grpc={coordinator.grpc_port} channel={coordinator.channel_port}\n")
        sys.stdout.flush()
        await stop.wait()
        log.info("stopping: what waits for the disk is written first")


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


def _set_up_logging(*, as_json: bool) -> None:
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(
        _JsonFormatter() if as_json else logging.Formatter("%(asctime)s %(levelname)s %(name)s: %(message)s")
    )
    logging.basicConfig(level=logging.INFO, handlers=[handler])
    # It tells of every connection that comes and goes.
    logging.getLogger("picows").setLevel(logging.WARNING)


class _JsonFormatter(logging.Formatter):
    def format(self, record: logging.LogRecord) -> str:
        entry = {
            "time": self.formatTime(record, "%Y-%m-%dT%H:%M:%S%z"),
            "level": record.levelname,
            "logger": record.name,
            "message": record.getMessage(),
        }
        if record.exc_info:
            entry["exception"] = self.formatException(record.exc_info)
        return json.dumps(entry)
