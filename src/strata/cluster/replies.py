"""What the cluster answers at once, as values."""

from __future__ import annotations

from dataclasses import dataclass

from strata.cluster.commits import CommitProgress, Committed
from strata.sharding.cursor import Spans


@dataclass(frozen=True, slots=True, kw_only=True)
class Done:
    """It is done, or was done before."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Registered:
    """The worker is in, with its place among the others. The job runs when ``waits_for`` is 0."""

    rank: int
    world_size: int
    generation: int
    waits_for: int
    lease_s: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Heard:
    """The sign of life was noted; a generation other than the worker's own means: restore and go on in that one."""

    rank: int
    world_size: int
    generation: int
    waits_for: int


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
