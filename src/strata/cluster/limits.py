"""How long things may take and how many there may be."""

from __future__ import annotations

import math
from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class Limits:
    """The bounds of a cluster; each has a default that suits a run of some thousand workers."""

    lease_s: float = 10.0
    """How long a worker counts as alive without a word from it."""
    grace_s: float = 2.0
    """How long a worker whose connection closed has to come back."""
    collect_s: float = 1_800.0
    """How long a checkpoint may wait for its parts."""
    manifest_s: float = 30.0
    """How long a worker may take to write a manifest before the next one is asked."""
    repair_s: float = 60.0
    """How long workers may take to repair a checkpoint whose replicas differ, before it is committed as it is."""
    keep_departed_s: float = 86_400.0
    """How long a worker that left or failed is remembered."""
    keep_jobs_s: float = 30 * 86_400.0
    """How long a job that nobody works on is remembered; its checkpoints stay in storage."""
    max_jobs: int = 1_000
    """How many jobs may have workers; those that nobody works on do not count."""
    max_idle_jobs: int = 500
    """How many jobs of a tenant that nobody works on are remembered; above that, the longest idle is forgotten."""
    max_workers_per_job: int = 10_000
    """How many workers may be in one job; those that left or failed do not count."""
    max_departed_per_job: int = 1_000
    """How many workers that left or failed are remembered; above that, the longest gone is forgotten."""
    max_datasets_per_job: int = 1_000
    max_barriers_per_job: int = 1_000
    max_keys_per_job: int = 1_000
    max_tenants: int = 1_000
    max_tokens_per_tenant: int = 1_000
    """How many tokens of a tenant may be valid at once."""
    max_ended_tokens_per_tenant: int = 1_000
    """How many tokens that expired or were revoked are remembered; above that, the longest ended is forgotten."""
    keep_tokens_s: float = 90 * 86_400.0
    """How long a token that expired or was revoked is remembered, for those who ask what became of it."""

    def __post_init__(self) -> None:
        for name in self.__slots__:
            if not 0 < getattr(self, name) < math.inf:
                raise ValueError(f"{name} is {getattr(self, name)}; use a number above 0")
        if self.grace_s > self.lease_s:
            raise ValueError(f"grace_s is {self.grace_s}, longer than lease_s={self.lease_s}; use at most that")
