"""Names of jobs: what a tenant calls a job outside, and what the cluster calls it inside.

Inside, job ``j`` of tenant ``t`` is ``t/j``, and of the default tenant plainly ``j``. No id has a slash, so no two
tenants ever mean the same job, and whatever is kept or delivered by job is kept apart by tenant. Everything that comes
in passes :func:`qualify` or :func:`qualify_name`, and everything that goes out passes :func:`present` or :func:`shown`.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import replace
from functools import lru_cache
from typing import TypeVar

from strata.cluster.access.administration import TenantCommand
from strata.cluster.access.principals import DEFAULT_TENANT, Principal, Role
from strata.cluster.commands import Command, JobCommand
from strata.cluster.events import Effect, Event
from strata.errors import AccessDeniedError, InvalidIdError, StrataError, fields_of

SLASH = "/"
MAX_NAMES = 1 << 16

C = TypeVar("C", bound=Command)
V = TypeVar("V", bound=StrataError | Effect | Event)


def full_name(tenant: str, job_id: str) -> str:
    """Return what the cluster calls a tenant's job."""
    return job_id if tenant == DEFAULT_TENANT else f"{tenant}{SLASH}{job_id}"


def split_name(name: str) -> tuple[str, str]:
    """Return the tenant of a job and what the tenant calls it."""
    tenant, slash, job_id = name.partition(SLASH)
    return (tenant, job_id) if slash else (DEFAULT_TENANT, name)


def tenant_of(name: str) -> str:
    """Return the tenant of a job."""
    return split_name(name)[0]


def owner_of(command: Command) -> str:
    """Return the tenant that a command is about."""
    if isinstance(command, JobCommand):
        return tenant_of(command.job_id)
    assert isinstance(command, TenantCommand)
    return command.tenant


def check_name(name: str) -> str:
    """Return the full name of a job if tenant and job can be ids, or raise InvalidIdError."""
    tenant, slash, job_id = name.partition(SLASH)
    if not slash:
        return InvalidIdError.check("job id", name)
    if tenant == DEFAULT_TENANT:
        raise InvalidIdError("job id", name, f"names the tenant {DEFAULT_TENANT!r}, whose jobs go by their plain names")
    InvalidIdError.check("tenant", tenant)
    InvalidIdError.check("job id", job_id)
    return name


def qualify(principal: Principal, command: C) -> C:
    """Give a command the full name of its job, or raise AccessDeniedError if it is not for this caller.

    The command is changed in place: it was made from a frame a moment ago and nobody else has it, and a copy would
    cost a tenth of all that a heartbeat costs.
    """
    if isinstance(command, JobCommand):
        if not (principal.role is Role.ADMIN and principal.tenant == DEFAULT_TENANT):
            name = qualify_name(principal, command.job_id)
            if name is not command.job_id:
                command.job_id = name  # type: ignore[misc]  # frozen to mypy only; see above
    elif isinstance(command, TenantCommand) and not principal.sees_all:
        raise AccessDeniedError(principal.name, "manage tenants and tokens")
    return command


@lru_cache(maxsize=MAX_NAMES)
def qualify_name(principal: Principal, job_id: str) -> str:
    """Return the full name of the job that a caller calls so; an administrator may give the full name itself."""
    if SLASH in job_id:
        if principal.sees_all:
            return check_name(job_id)
        raise InvalidIdError("job id", job_id, f"contains {SLASH!r}")
    if not principal.may_use(job_id):
        raise AccessDeniedError(principal.name, f"use job {job_id!r}: its token is for jobs {principal.jobs!r}")
    return full_name(principal.tenant, job_id)


def owns(principal: Principal, name: str) -> bool:
    """Whether a caller is shown the job with this full name."""
    if principal.sees_all:
        return True
    tenant, job_id = split_name(name)
    # Without a job: what happened to the tenant itself.
    return tenant == principal.tenant and (not job_id or principal.may_use(job_id))


def shown(principal: Principal, name: str) -> str:
    """Return what a caller calls the job with this full name."""
    return name if principal.sees_all else split_name(name)[1]


def present(principal: Principal, value: V) -> V:
    """Return an error, an effect or an event as this caller is to see it: with its own names of its own jobs."""
    if principal.sees_all or principal.tenant == DEFAULT_TENANT:
        return value
    if not isinstance(value, StrataError):
        name = shown(principal, value.job_id)
        return value if name == value.job_id else replace(value, job_id=name)
    return _present_error(principal, value)


def _present_error(principal: Principal, error: V) -> V:
    assert isinstance(error, StrataError)
    fields = fields_of(error)
    if "job_id" not in fields:
        return error
    fields["job_id"] = shown(principal, fields["job_id"])
    if isinstance(known := fields.get("known"), Collection):
        fields["known"] = [shown(principal, name) for name in known if owns(principal, name)]
    presented = type(error)(**fields)
    for note in getattr(error, "__notes__", ()):
        presented.add_note(note)
    return presented
