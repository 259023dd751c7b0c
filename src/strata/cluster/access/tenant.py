"""One tenant: its quotas, and what its jobs use of them together."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

from strata.cluster.access.quotas import NO_QUOTAS, Quotas
from strata.errors import QuotaExceededError

if TYPE_CHECKING:
    from strata.cluster.job import Job


class Tenant:
    """A tenant and its jobs, by their full names."""

    def __init__(self, name: str, quotas: Quotas = NO_QUOTAS) -> None:
        self.name = name
        self.quotas = quotas
        self.jobs: dict[str, Job] = {}
        self.last_generation = 0
        """The highest generation of the jobs that were removed: a job of the same name begins above it."""
        self.last_revision = 0
        """The same of the revisions of their keys."""

    def retire(self, job: Job) -> None:
        """Note where the numbers of a removed job ended, so that what was said in it fits no later job of its name."""
        self.last_generation = max(self.last_generation, job.membership.generation)
        self.last_revision = max(self.last_revision, job.keys.revision)

    def use(self) -> dict[str, int]:
        """Return how much of each quota that the cluster counts is used, by the name of the quota."""
        return {name: count(self) for name, count in USES.items()}

    def check(self, quota: str, *, adding: int = 1) -> None:
        """Raise QuotaExceededError if so much more of something would be more than the tenant may have."""
        limit = getattr(self.quotas, quota)
        if limit is None:
            return
        use = USES[quota](self)
        if use + adding > limit:
            raise quota_error(self.name, quota, limit=limit, use=use)

    def warn_of_checkpoints(self) -> str:
        """Say that committed checkpoints are above their soft quota; nothing if they are not."""
        soft = self.quotas.checkpoint_soft_bytes
        if soft is None or (use := USES["checkpoint_bytes"](self)) <= soft:
            return ""
        hard = self.quotas.checkpoint_bytes
        refused = "" if hard is None else f"; above {hard} saves are refused"
        return f"tenant {self.name!r} has {use} bytes of checkpoints, above the soft quota of {soft}{refused}"


def quota_error(tenant: str, quota: str, *, limit: float, use: float) -> QuotaExceededError:
    """Return the refusal of more than a quota, with the command that raises it."""
    option = quota.replace("_", "-")
    raised_by = f"an administrator ('strata tenant set {tenant} --{option} N')"
    words = quota.replace("_per_s", " per second").replace("_", " ")
    return QuotaExceededError(words, limit=limit, use=use, tenant=tenant, raised_by=raised_by)


USES: dict[str, Callable[[Tenant], int]] = {
    "jobs": lambda tenant: sum(int(bool(job.membership.present())) for job in tenant.jobs.values()),
    "workers": lambda tenant: sum(len(job.membership.present()) for job in tenant.jobs.values()),
    "datasets": lambda tenant: sum(len(job.ledger.datasets) for job in tenant.jobs.values()),
    "keys": lambda tenant: sum(len(job.keys) for job in tenant.jobs.values()),
    "checkpoint_bytes": lambda tenant: sum(job.commits.size_bytes() for job in tenant.jobs.values()),
    "barriers": lambda tenant: sum(len(job.barriers.open()) for job in tenant.jobs.values()),
}
"""How each quota that the cluster itself counts is counted."""
