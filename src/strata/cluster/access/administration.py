"""What an administrator can ask of the cluster: commands without a job, journaled like all that change something."""

from __future__ import annotations

from strata.cluster.access.principals import DEFAULT_TENANT, Role
from strata.cluster.access.quotas import NO_QUOTAS, Quotas
from strata.cluster.commands import Command
from strata.immutable import immutable


@immutable(frozen=True, slots=True, kw_only=True)
class TenantCommand(Command):
    """A command about one tenant and what it owns."""

    tenant: str = DEFAULT_TENANT


@immutable(frozen=True, slots=True, kw_only=True)
class CreateTenant(TenantCommand):
    """Make a tenant; the same one again changes nothing."""

    quotas: Quotas = NO_QUOTAS


@immutable(frozen=True, slots=True, kw_only=True)
class SetTenant(TenantCommand):
    """Give a tenant these quotas in place of all that it had."""

    quotas: Quotas = NO_QUOTAS


@immutable(frozen=True, slots=True, kw_only=True)
class RemoveTenant(TenantCommand):
    """Remove a tenant with its tokens and its jobs, none of which has workers. Checkpoints stay in storage."""


@immutable(frozen=True, slots=True, kw_only=True)
class CreateToken(TenantCommand):
    """Make a token known by the SHA-256 of its secret, in hex: the secret itself never comes to the cluster.

    The same one again changes nothing. ``jobs`` is a pattern of the jobs that it is for, and ``name`` is for people.
    """

    token_id: str
    sha256: str
    role: Role = Role.WORKER
    jobs: str = "*"
    name: str = "token"
    expires_s: float | None = None


@immutable(frozen=True, slots=True, kw_only=True)
class RevokeToken(TenantCommand):
    """Take a token back; doing it again changes nothing."""

    token_id: str


@immutable(frozen=True, slots=True, kw_only=True)
class ForgetTokens(TenantCommand):
    """Forget tokens that expired or were revoked long ago; made by :meth:`Cluster.due`."""

    token_ids: tuple[str, ...]


TENANT_COMMANDS: tuple[type[TenantCommand], ...] = (
    CreateTenant,
    SetTenant,
    RemoveTenant,
    CreateToken,
    RevokeToken,
    ForgetTokens,
)
"""Every kind of command to a tenant. The wire and the cluster derive their tables from it."""
