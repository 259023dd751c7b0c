"""Where a standby sends those who ask it over HTTP: to the leader, or away for a moment if there is none."""

from __future__ import annotations

from starlette.datastructures import URL
from starlette.responses import JSONResponse, RedirectResponse, Response
from starlette.types import ASGIApp, Receive, Scope, Send

from strata.coordinator.replication.leadership import Leadership

# What each replica answers for itself.
OWN_PATHS = frozenset({"/api/health", "/api/ready", "/api/openapi.json", "/metrics"})


class LeaderOnly:
    """Answers 307 with the leader's address, or 503, while this coordinator does not lead."""

    def __init__(self, app: ASGIApp, leadership: Leadership) -> None:
        self._app = app
        self._leadership = leadership

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Serve one request."""
        refusal = self._leadership.refusal() if scope["type"] == "http" else None
        if refusal is None or scope["path"] in OWN_PATHS:
            await self._app(scope, receive, send)
            return
        leader = self._leadership.leader.http if refusal.leader else ""
        response: Response
        if leader:
            url = URL(scope=scope)
            response = RedirectResponse(leader + url.path + (f"?{url.query}" if url.query else ""), status_code=307)
        else:
            response = JSONResponse({"detail": str(refusal)}, status_code=503, headers={"Retry-After": "1"})
        await response(scope, receive, send)
