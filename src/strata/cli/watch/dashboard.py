"""``strata dashboard``: the page alone, on what a coordinator elsewhere says."""

from __future__ import annotations

import asyncio
import sys
from typing import Annotated

import typer


def serve_dashboard(
    *,
    coordinator: Annotated[
        str,
        typer.Option(
            help="The address of the coordinator's HTTP API; with several (http://a:8080,b:8080) it finds the leader.",
            metavar="URL",
        ),
    ] = "http://127.0.0.1:8080",
    host: Annotated[str, typer.Option(help="The host on which the page listens.")] = "127.0.0.1",
    port: Annotated[
        int, typer.Option(min=0, max=65_535, help="The port on which the page listens; 0 takes a free one.")
    ] = 3000,
) -> None:
    """Serve the dashboard on a port of its own, until Ctrl-C.

    The coordinator serves the same page at its HTTP port. Use this command where browsers cannot reach the
    coordinator; it stays up while the coordinator is down.
    """
    from strata.address import parse_host
    from strata.client.credentials import Credentials
    from strata.dashboard.page_server import DashboardServer
    from strata.dashboard.site import Site
    from strata.dashboard.upstream import Upstream

    try:
        upstream = Upstream(coordinator, Credentials.load())
    except ValueError as error:
        raise typer.BadParameter(str(error), param_hint="--coordinator") from error
    try:
        host = parse_host(host)
    except ValueError as error:
        raise typer.BadParameter(str(error), param_hint="--host") from error
    if not Site().is_built:
        sys.stderr.write("strata dashboard: the page is not built; in a clone of the repository: make dashboard\n")
        raise typer.Exit(1)
    server = DashboardServer(upstream, host=host, port=port)
    # On stdout and flushed, so that whoever started it with port 0 can read where it is.
    sys.stdout.write(f"The dashboard of {upstream.url} is at {server.url}\n")
    sys.stdout.flush()
    asyncio.run(server.serve())
