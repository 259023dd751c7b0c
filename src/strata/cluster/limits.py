"""How long things may take and how many there may be."""

from __future__ import annotations

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
    max_jobs: int = 1_000
    max_workers_per_job: int = 10_000
    max_datasets_per_job: int = 1_000
    max_barriers_per_job: int = 1_000
    max_keys_per_job: int = 100

    def __post_init__(self) -> None:
        for name in self.__slots__:
            if getattr(self, name) <= 0:
                raise ValueError(f"{name} is {getattr(self, name)}; use more than 0")
        if self.grace_s > self.lease_s:
            raise ValueError(f"grace_s is {self.grace_s}, longer than lease_s={self.lease_s}; use at most that")
