"""Errors of tenants, tokens and what a caller may do."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import KW_ONLY

from strata.errors.base import with_fields
from strata.errors.cluster import ClusterError


class AccessError(ClusterError):
    """The caller may not do this, or the command names a tenant or token that does not exist or already exists."""


@with_fields
class AccessDeniedError(AccessError):
    """The caller is authenticated but may not do this."""

    who: str
    what: str
    _: KW_ONLY
    hint: str = "use a token that allows it, or ask an administrator for one"

    template = "{who} may not {what}; {hint}"


@with_fields
class UnknownTenantError(AccessError, LookupError):
    """No tenant of that name."""

    # It names no others: whoever asks may be one of them.
    tenant: str

    template = "there is no tenant {tenant!r}; an administrator can create it with 'strata tenant create {tenant}'"


@with_fields
class TenantExistsError(AccessError):
    """The tenant already exists, with other quotas."""

    tenant: str

    template = "tenant {tenant!r} exists with other quotas; change them with 'strata tenant set {tenant}'"


@with_fields
class TenantBusyError(AccessError):
    """A tenant whose jobs have workers cannot be removed."""

    tenant: str
    _: KW_ONLY
    jobs: Collection[str]

    def __post_init__(self) -> None:
        self.jobs = sorted(self.jobs)
        super().__post_init__()

    def message(self) -> str:
        """Return how many jobs, and some of them."""
        shown = ", ".join(list(self.jobs)[:5])
        return (
            f"{len(self.jobs)} jobs of tenant {self.tenant!r} have workers ({shown}); "
            "stop them first, then remove the tenant"
        )


@with_fields
class UnknownTokenError(AccessError, LookupError):
    """The tenant has no token of that id."""

    tenant: str
    token_id: str

    template = "tenant {tenant!r} has no token {token_id!r}; 'strata token ls' lists its tokens"


@with_fields
class TokenExistsError(AccessError):
    """Another token has that id."""

    token_id: str

    template = "a token with the id {token_id!r} already exists; create one with a new id"
