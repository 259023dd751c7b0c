"""What the cluster answers at once, as values."""

from __future__ import annotations

from dataclasses import dataclass

from strata.cluster.commits import CommitProgress, Committed
from strata.cluster.seat import Seat
from strata.sharding.cursor import Spans


@dataclass(frozen=True, slots=True, kw_only=True)
class Done:
    """It is done, or was done before."""


@dataclass(frozen=True, slots=True, kw_only=True)
class _Seated:
    """Where the worker stands, as flat fields because the wire has them so. The job runs when ``waits_for`` is 0."""

    rank: int
    world_size: int
    generation: int
    waits_for: int

    @property
    def seat(self) -> Seat:
        """The worker's place among the others."""
        return Seat(self.rank, self.world_size, self.generation)


@dataclass(frozen=True, slots=True, kw_only=True)
class Registered(_Seated):
    """The worker is in."""

    lease_s: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Heard(_Seated):
    """The sign of life was noted; a generation other than the worker's own means: restore and go on in that one."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RestorePoint:
    """Where the generation goes on: a checkpoint, or the beginning."""

    checkpoint: Committed | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Hand:
    """Rows (shard, start, stop) of an epoch, in the order in which to read them; if global, of all workers."""

    spans: Spans


@dataclass(frozen=True, slots=True, kw_only=True)
class KeyValue:
    """What a key holds; token 0 says nothing. ``is_set``: the command that this answers put it there, now or before."""

    value: bytes = b""
    token: int = 0
    is_set: bool = False


Reply = Done | Registered | Heard | RestorePoint | CommitProgress | Hand | KeyValue
