"""The dashboard alone: the page, and the API of a coordinator that may be elsewhere, on one port."""

from __future__ import annotations

import socket

import uvicorn
from starlette.applications import Starlette
from starlette.routing import Route

from strata.address import join_address
from strata.dashboard.site import Site
from strata.dashboard.upstream import Upstream
from strata.errors import PortTakenError


def make_app(upstream: Upstream, site: Site | None = None) -> Starlette:
    """Return the application that shows the page on what ``upstream`` says."""
    return Starlette(
        routes=[
            Route("/api/{path:path}", upstream.forward, methods=["GET"]),
            Route("/metrics", upstream.forward, methods=["GET"]),
            (site or Site()).route(),
        ]
    )


class DashboardServer:
    """Serves until it is told to stop; the port is bound when it is made, so that it can be told to others."""

    def __init__(self, upstream: Upstream, *, host: str, port: int) -> None:
        try:
            self._socket = socket.create_server((host, port), family=socket.AF_INET6 if ":" in host else socket.AF_INET)
        except OSError as error:
            reason = error.strerror or str(error)
            raise PortTakenError("dashboard", join_address(host, port), reason) from error
        self.port: int = self._socket.getsockname()[1]
        self.url = f"http://{join_address(host, self.port)}"
        config = uvicorn.Config(make_app(upstream), log_level="warning", access_log=False, timeout_graceful_shutdown=1)
        self._server = uvicorn.Server(config)

    async def serve(self) -> None:
        """Serve until SIGTERM, Ctrl-C or :meth:`stop`."""
        await self._server.serve(sockets=[self._socket])

    def stop(self) -> None:
        """End :meth:`serve` soon."""
        self._server.should_exit = True
