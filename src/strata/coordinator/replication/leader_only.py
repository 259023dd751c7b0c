"""Where a standby sends those who ask it over HTTP: to the leader, or away for a moment if there is none."""

from __future__ import annotations

import asyncio

from starlette.datastructures import URL
from starlette.responses import JSONResponse, RedirectResponse, Response
from starlette.types import ASGIApp, Receive, Scope, Send

from strata.coordinator.replication.leadership import Leadership

# How often a request that waits for a leader in doubt looks whether it may go on.
DOUBT_LOOK_S = 0.05
# What each replica answers for itself.
OWN_PATHS = frozenset({"/api/health", "/api/ready", "/api/openapi.json", "/metrics"})


class LeaderOnly:
    """Answers 307 with the leader's address, or 503, while this coordinator does not lead; in doubt it waits."""

    def __init__(self, app: ASGIApp, leadership: Leadership) -> None:
        self._app = app
        self._leadership = leadership

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Serve one request."""
        if scope["type"] != "http" or scope["path"] in OWN_PATHS:
            await self._app(scope, receive, send)
            return
        while self._leadership.is_in_doubt:  # noqa: ASYNC110 - it may end by time alone, and in another thread
            await asyncio.sleep(DOUBT_LOOK_S)
        refusal = self._leadership.refusal()
        if refusal is None:
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
