"""The registry of tenants and their tokens, and how each command about them changes it."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

from strata.cluster.access import administration as t
from strata.cluster.access.names import full_name
from strata.cluster.access.principals import DEFAULT_TENANT, Role
from strata.cluster.access.quotas import Quotas
from strata.cluster.access.tenant import Tenant
from strata.cluster.events import Event, EventLog
from strata.cluster.limits import Limits
from strata.errors import (
    AccessDeniedError,
    InvalidIdError,
    QuotaExceededError,
    TenantBusyError,
    TenantExistsError,
    TokenExistsError,
    UnknownTenantError,
    UnknownTokenError,
)


@dataclass(frozen=True, slots=True)
class TokenRecord:
    """A token as the journal knows it: the hash of its secret and what it is good for."""

    token_id: str
    tenant: str
    role: Role
    jobs: str
    name: str
    sha256: str
    created_s: float
    expires_s: float | None = None
    revoked_s: float | None = None

    def ended_s(self, now_s: float) -> float | None:
        """Return when it was revoked or expired; None while it counts."""
        expired_s = self.expires_s if self.expires_s is not None and self.expires_s <= now_s else None
        ends = [end_s for end_s in (self.revoked_s, expired_s) if end_s is not None]
        return min(ends, default=None)


class Access:
    """All tenants and tokens of a cluster. Every method either does what it says or raises and changes nothing."""

    def __init__(self, limits: Limits, log: EventLog) -> None:
        self._limits = limits
        self._log = log
        self._tenants = {DEFAULT_TENANT: Tenant(DEFAULT_TENANT)}
        self._tokens: dict[str, TokenRecord] = {}
        self.has_rates = False
        """Whether any tenant may only send so many requests each second."""

    def token(self, token_id: str) -> TokenRecord | None:
        """Return a token that is remembered, also one that has ended."""
        return self._tokens.get(token_id)

    def tokens(self, tenant: str | None = None) -> list[TokenRecord]:
        """Return the tokens of a tenant, or of all, by tenant and age."""
        found = [each for each in self._tokens.values() if tenant is None or each.tenant == tenant]
        return sorted(found, key=lambda each: (each.tenant, each.created_s, each.token_id))

    def tenants(self) -> list[Tenant]:
        """Return all tenants, by name."""
        return [self._tenants[name] for name in sorted(self._tenants)]

    def tenant(self, name: str) -> Tenant:
        """Return a tenant, or raise UnknownTenantError."""
        if name not in self._tenants:
            raise UnknownTenantError(name)
        return self._tenants[name]

    def create_tenant(self, command: t.CreateTenant, now_s: float) -> None:
        """Make a tenant."""
        InvalidIdError.check("tenant", command.tenant)
        known = self._tenants.get(command.tenant)
        if known is not None:
            if known.quotas != command.quotas:
                raise TenantExistsError(command.tenant)
            return
        if len(self._tenants) > self._limits.max_tenants:
            raise QuotaExceededError("tenants", limit=self._limits.max_tenants)
        self._tenants[command.tenant] = Tenant(command.tenant, command.quotas)
        self._note_rates()
        self._say(now_s, command.tenant, "tenant created", _describe(command.quotas))

    def set_tenant(self, command: t.SetTenant, now_s: float) -> None:
        """Change a tenant's quotas; what it has already above a new one stays."""
        tenant = self.tenant(command.tenant)
        if tenant.quotas != command.quotas:
            tenant.quotas = command.quotas
            self._note_rates()
            self._say(now_s, command.tenant, "quotas changed", _describe(command.quotas))

    def remove_tenant(self, command: t.RemoveTenant, now_s: float) -> list[str]:
        """Remove a tenant with its tokens; return its jobs, which are to be removed with it."""
        tenant = self.tenant(command.tenant)
        if command.tenant == DEFAULT_TENANT:
            raise AccessDeniedError(
                "an administrator", f"remove the tenant {DEFAULT_TENANT!r}", hint="remove its jobs instead"
            )
        if busy := [job_id for job_id, job in tenant.jobs.items() if job.membership.present()]:
            raise TenantBusyError(command.tenant, jobs=busy)
        del self._tenants[command.tenant]
        self._tokens = {key: each for key, each in self._tokens.items() if each.tenant != command.tenant}
        self._say(now_s, command.tenant, "tenant removed", f"{len(tenant.jobs)} idle jobs were removed with it")
        return list(tenant.jobs)

    def create_token(self, command: t.CreateToken, now_s: float) -> None:
        """Make a token known."""
        self.tenant(command.tenant)
        record = TokenRecord(
            command.token_id,
            command.tenant,
            command.role,
            command.jobs,
            command.name,
            command.sha256,
            now_s,
            command.expires_s,
        )
        known = self._tokens.get(command.token_id)
        if known is not None:
            if replace(known, created_s=now_s, revoked_s=None) != record:
                raise TokenExistsError(command.token_id)
            return
        living = sum(each.ended_s(now_s) is None for each in self.tokens(command.tenant))
        if living >= self._limits.max_tokens_per_tenant:
            raise QuotaExceededError("tokens in one tenant", limit=self._limits.max_tokens_per_tenant, use=living)
        self._tokens[command.token_id] = record
        self._say(now_s, command.tenant, "token created", f"{_called(record)} for {record.role} of {record.jobs!r}")

    def revoke_token(self, command: t.RevokeToken, now_s: float) -> None:
        """Take a token back."""
        record = self._tokens.get(command.token_id)
        if record is None or record.tenant != command.tenant:
            raise UnknownTokenError(command.tenant, command.token_id)
        if record.revoked_s is None:
            self._tokens[command.token_id] = replace(record, revoked_s=now_s)
            self._say(now_s, command.tenant, "token revoked", _called(record))

    def forget_tokens(self, command: t.ForgetTokens, now_s: float) -> None:
        """Forget tokens that have ended."""
        for token_id in command.token_ids:
            record = self._tokens.get(token_id)
            if record is not None and record.tenant == command.tenant and record.ended_s(now_s) is not None:
                del self._tokens[token_id]

    def due(self, now_s: float) -> list[t.TenantCommand]:
        """Return which tokens to forget: those that ended too long ago, and the oldest where there are too many."""
        ended: dict[str, list[tuple[float, str]]] = {}
        for record in self._tokens.values():
            if (ended_s := record.ended_s(now_s)) is not None:
                ended.setdefault(record.tenant, []).append((ended_s, record.token_id))
        demands: list[t.TenantCommand] = []
        for tenant, rows in sorted(ended.items()):
            surplus = len(rows) - self._limits.max_ended_tokens_per_tenant
            old = [
                token_id
                for place, (ended_s, token_id) in enumerate(sorted(rows))
                if place < surplus or ended_s + self._limits.keep_tokens_s < now_s
            ]
            if old:
                demands.append(t.ForgetTokens(tenant=tenant, token_ids=tuple(old)))
        return demands

    def record(self) -> dict[str, Any]:
        """Return what must survive a restart of the coordinator."""
        return {
            "tenants": [
                [tenant.name, _quotas_record(tenant.quotas), tenant.last_generation, tenant.last_revision]
                for tenant in self.tenants()
            ],
            "tokens": [_token_record(record) for _, record in sorted(self._tokens.items())],
        }

    def restore(self, record: dict[str, Any]) -> None:
        """Take over what :meth:`record` returned."""
        for name, quotas, *numbers in record["tenants"]:
            tenant = self._tenants[name] = Tenant(name, Quotas(**quotas))
            tenant.last_generation, tenant.last_revision = numbers or (0, 0)
        self._note_rates()
        for row in record["tokens"]:
            self._tokens[row["token_id"]] = TokenRecord(**{**row, "role": Role(row["role"])})

    def _note_rates(self) -> None:
        self.has_rates = any(tenant.quotas.requests_per_s is not None for tenant in self._tenants.values())

    def _say(self, now_s: float, tenant: str, kind: str, reason: str) -> None:
        # With an empty job: it is the tenant that it happened to.
        self._log.append(Event(now_s, full_name(tenant, ""), None, kind, reason))


def _called(record: TokenRecord) -> str:
    return f"{record.token_id} ({record.name})"


def _token_record(record: TokenRecord) -> dict[str, Any]:
    return {name: getattr(record, name) for name in record.__slots__}


def _quotas_record(quotas: Quotas) -> dict[str, float]:
    values = ((name, getattr(quotas, name)) for name in quotas.__slots__)
    return {name: value for name, value in values if value is not None}


def _describe(quotas: Quotas) -> str:
    return ", ".join(f"{name}={value}" for name, value in _quotas_record(quotas).items()) or "no quotas"
