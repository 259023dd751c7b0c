"""The gate of HTTP: each request is let in by its token and by what its role may see, before any route runs."""

from __future__ import annotations

import re

from starlette.requests import Request
from starlette.responses import JSONResponse
from starlette.types import ASGIApp, Receive, Scope, Send

from strata.cluster.access import LOCAL, Principal, Role
from strata.coordinator.entry.gate import Caller, Gate
from strata.coordinator.entry.roles import ROUTES, denial, roles_from
from strata.errors import AccessDeniedError, NotLeaderError, UnauthenticatedError

_CALLER = "strata.caller"
# Of a tenant that cannot be, so that it sees nothing, also if this coordinator begins to lead meanwhile.
_NOBODY = Principal("nobody", "/", Role.VIEWER)
# What is no route of the API is the page, which is for everyone.
_API = ("/api/", "/metrics")
_PATTERNS = [(re.compile(re.sub(r"\{\w+\}", "[^/]+", path)), role) for path, role in ROUTES.items()]


def principal_of_request(request: Request) -> Principal:
    """Return as whom a request was let in."""
    caller: Caller | None = request.scope.get(_CALLER)
    return LOCAL if caller is None else caller.principal


def role_of_path(path: str) -> Role | None:
    """Return the least role that may ask for a path; None for everyone."""
    if not path.startswith(_API):
        return None
    return next((role for pattern, role in _PATTERNS if pattern.fullmatch(path)), Role.VIEWER)


class HttpGate:
    """Stands before the application."""

    def __init__(self, app: ASGIApp, gate: Gate) -> None:
        self._app = app
        self._gate = gate

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Pass a request on with who sends it, or answer it."""
        least = role_of_path(scope["path"]) if scope["type"] == "http" else None
        if not self._gate.is_open:
            address = scope["client"][0] if scope.get("client") else "unknown"
            # Whatever lets everyone in has nothing of any tenant to show.
            scope[_CALLER] = Caller(_NOBODY, address)
        if least is not None and not self._gate.is_open:
            try:
                given = next((value for name, value in scope["headers"] if name == b"authorization"), None)
                text = None if given is None else given.decode("latin-1")
                caller = await self._gate.admit_patiently(text, address)
                if caller.principal.role not in roles_from(least):
                    raise denial(caller.principal, scope["path"], least)
            except NotLeaderError:
                # A standby answers with where the leader is, and tells of itself alone.
                caller = scope[_CALLER]
            except UnauthenticatedError as error:
                await self._gate.slow_down(address, error.problem)
                headers = {"WWW-Authenticate": 'Bearer realm="strata"', "Cache-Control": "no-store"}
                await JSONResponse({"detail": str(error)}, 401, headers)(scope, receive, send)
                return
            except AccessDeniedError as error:
                await JSONResponse({"detail": str(error)}, 403, {"Cache-Control": "no-store"})(scope, receive, send)
                return
            scope[_CALLER] = caller
        await self._app(scope, receive, send)


def is_admitted(gate: Gate | None, request: Request) -> bool:
    """Whether whoever sent a request that lasts would be let in again."""
    caller: Caller | None = request.scope.get(_CALLER)
    return gate is None or caller is None or gate.is_valid(caller)
