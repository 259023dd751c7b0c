"""Quotas: how much of each thing a tenant may have."""

from __future__ import annotations

import math
from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class Quotas:
    """The bounds of one tenant; None leaves a bound to the coordinator's own limits."""

    jobs: int | None = None
    """How many jobs may have workers at once."""
    workers: int | None = None
    """How many workers may be in all jobs together."""
    datasets: int | None = None
    keys: int | None = None
    barriers: int | None = None
    """How many barriers may be open at once."""
    channels: int | None = None
    """How many connections may be open."""
    requests_per_s: float | None = None
    """How many requests are answered each second in the long run; twice that at once."""
    journal_bytes: int | None = None
    """How many bytes of the journal may be the tenant's."""
    checkpoint_soft_bytes: int | None = None
    """Above so many bytes of committed checkpoints an event warns."""
    checkpoint_bytes: int | None = None
    """Above so many bytes of committed checkpoints a save is refused; training goes on."""

    def __post_init__(self) -> None:
        for name in self.__slots__:
            value = getattr(self, name)
            if value is not None and not 0 < value < math.inf:
                raise ValueError(f"quota {name} is {value}; use a number above 0, or none for no quota")
        soft, hard = self.checkpoint_soft_bytes, self.checkpoint_bytes
        if soft is not None and hard is not None and soft > hard:
            raise ValueError(f"checkpoint_soft_bytes is {soft}, above checkpoint_bytes={hard}; use at most that")


NO_QUOTAS = Quotas()
