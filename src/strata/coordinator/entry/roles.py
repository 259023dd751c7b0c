"""Roles: one table of what each may do. Transports ask it, and docs/security.md and the tests are made from it.

A role may do what the roles before it may: viewer, worker, operator, admin. What no role may do stands in no row; the
coordinator alone says it. Which job and which tenant is meant is decided elsewhere (:mod:`strata.cluster.access`).
"""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType

from strata.cluster import commands as c
from strata.cluster.access import LOCAL, Principal, Role
from strata.cluster.access import administration as t
from strata.cluster.commands import Command
from strata.cluster.events import NOBODY
from strata.errors import AccessDeniedError, BadCommandError

ORDER = tuple(Role)

COMMANDS: Mapping[type[Command], Role] = MappingProxyType(
    {
        c.RegisterWorker: Role.WORKER,
        c.Heartbeat: Role.WORKER,
        c.KeepAlive: Role.WORKER,
        c.Goodbye: Role.WORKER,
        c.ReportStall: Role.WORKER,
        c.ArriveAtBarrier: Role.WORKER,
        c.OfferReleases: Role.WORKER,
        c.BringRelease: Role.WORKER,
        c.CancelBarrier: Role.WORKER,
        c.RegisterDataset: Role.WORKER,
        c.AskRestorePoint: Role.WORKER,
        c.LeaseShards: Role.WORKER,
        c.ReportProgress: Role.WORKER,
        c.SkipSamples: Role.WORKER,
        c.ReportPart: Role.WORKER,
        c.ConfirmCommit: Role.WORKER,
        c.AskCommit: Role.WORKER,
        c.ReportRepair: Role.WORKER,
        c.GiveUpCheckpoint: Role.WORKER,
        c.RejectCheckpoint: Role.WORKER,
        c.AbortCheckpoint: Role.WORKER,
        c.AdoptCheckpoints: Role.WORKER,
        c.AskCheckpoints: Role.WORKER,
        c.DropCheckpoints: Role.WORKER,
        # The launcher does so for its workers.
        c.ConfigureJob: Role.WORKER,
        # Keys hold where ranks meet, so they are not for those who only look.
        c.GetKey: Role.WORKER,
        c.SetKey: Role.WORKER,
        c.RemoveJob: Role.OPERATOR,
        c.RewindJob: Role.OPERATOR,
        c.ForgetCheckpoints: Role.OPERATOR,
        t.CreateTenant: Role.ADMIN,
        t.SetTenant: Role.ADMIN,
        t.RemoveTenant: Role.ADMIN,
        t.CreateToken: Role.ADMIN,
        t.RevokeToken: Role.ADMIN,
    }
)
"""Commands, in the channel and as calls of the same name."""

CALLS: Mapping[str, Role] = MappingProxyType(
    {
        "Describe": Role.VIEWER,
        "GetStatus": Role.VIEWER,
        "StreamEvents": Role.VIEWER,
        "GetLatestCheckpoint": Role.VIEWER,
        "ListCheckpoints": Role.VIEWER,
        "AuditData": Role.VIEWER,
        "GetDataShard": Role.WORKER,
        # Calls that carry commands under another name.
        "StreamHeartbeats": Role.WORKER,
        "DeregisterWorker": Role.WORKER,
        "WaitBarrier": Role.WORKER,
        "NotifyCheckpoint": Role.WORKER,
        "Channel": Role.WORKER,
        # Of its own tenant; an administrator hears of all.
        "ListTenants": Role.VIEWER,
        "ListTokens": Role.OPERATOR,
        **{kind.__name__: role for kind, role in COMMANDS.items()},
    }
)
"""Calls of gRPC."""

ROUTES: Mapping[str, Role | None] = MappingProxyType(
    {
        # For load balancers and probes: whether it lives, and no more.
        "/api/health": None,
        "/api/ready": None,
        "/api/openapi.json": None,
        "/api/dashboard": Role.VIEWER,
        "/api/status": Role.VIEWER,
        "/api/jobs": Role.VIEWER,
        "/api/workers": Role.VIEWER,
        "/api/workers/{worker_id}": Role.VIEWER,
        "/api/datasets": Role.VIEWER,
        "/api/datasets/{dataset_id}": Role.VIEWER,
        "/api/checkpoints": Role.VIEWER,
        "/api/checkpoints/{step}": Role.VIEWER,
        "/api/barriers": Role.VIEWER,
        "/api/events": Role.VIEWER,
        "/api/goodput": Role.VIEWER,
        "/api/series": Role.VIEWER,
        "/api/series/step-times": Role.VIEWER,
        "/metrics": Role.VIEWER,
    }
)
"""Routes of HTTP; None is for everyone. The page itself is for everyone too: what it shows, it asks of these."""


def roles_from(least: Role) -> tuple[Role, ...]:
    """Return a role and all above it."""
    return ORDER[ORDER.index(least) :]


MAY_COMMAND: Mapping[Role, frozenset[type[Command]]] = MappingProxyType(
    {role: frozenset(kind for kind, least in COMMANDS.items() if role in roles_from(least)) for role in Role}
)
MAY_CALL: Mapping[Role, frozenset[str]] = MappingProxyType(
    {role: frozenset(name for name, least in CALLS.items() if role in roles_from(least)) for role in Role}
)


def attribution(principal: Principal, address: str) -> tuple[str, str]:
    """Return what the events of a caller's commands carry: whose token, and from where; nothing of an open gate."""
    return NOBODY if principal is LOCAL else (principal.name, address)


def refuse_command(principal: Principal, kind: type[Command]) -> AccessDeniedError | BadCommandError:
    """Return why a caller's role does not allow a command."""
    if kind not in COMMANDS:
        return BadCommandError(f"{kind.__name__} is for the coordinator alone")
    return denial(principal, kind.__name__, COMMANDS[kind])


def check_call(principal: Principal, name: str) -> None:
    """Raise AccessDeniedError if a caller's role does not allow a call of gRPC; what is in no row is nobody's."""
    if name not in MAY_CALL[principal.role]:
        raise denial(principal, name, CALLS.get(name))


def denial(principal: Principal, what: str, needs: Role | None) -> AccessDeniedError:
    """Return the error that says which role it takes."""
    hint = "no role may" if needs is None else f"it takes the role {needs}; ask an administrator for such a token"
    return AccessDeniedError(f"token {principal.name!r} with the role {principal.role}", f"ask for {what}", hint=hint)
