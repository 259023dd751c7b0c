"""What the cluster answers at once, as values."""

from __future__ import annotations

from dataclasses import dataclass

from strata.cluster.commits import CommitProgress
from strata.cluster.events import Effect
from strata.cluster.values import CommitRecord, RankInfo
from strata.sharding.cursor import Spans


@dataclass(frozen=True, slots=True, kw_only=True)
class Done:
    """It is done, or was done before."""


@dataclass(frozen=True, slots=True, kw_only=True)
class _Ranked:
    """Where the worker stands, as flat fields because the wire has them so. The job runs when ``waits_for`` is 0."""

    rank: int
    world_size: int
    generation: int
    waits_for: int

    @property
    def rank_info(self) -> RankInfo:
        """The worker's place among the others."""
        return RankInfo(self.rank, self.world_size, self.generation)


@dataclass(frozen=True, slots=True, kw_only=True)
class Registered(_Ranked):
    """The worker is in."""

    lease_s: float


@dataclass(frozen=True, slots=True, kw_only=True)
class HeartbeatReply(_Ranked):
    """The sign of life was noted; a generation other than the worker's own means: restore and go on in that one."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RestorePoint:
    """Where the generation goes on: a checkpoint, or the beginning."""

    checkpoint: CommitRecord | None


@dataclass(frozen=True, slots=True, kw_only=True)
class ShardLease:
    """Rows (shard, start, stop) of an epoch, in the order in which to read them; if global, of all workers."""

    spans: Spans


@dataclass(frozen=True, slots=True, kw_only=True)
class KeyValue:
    """What a key holds; token 0 says nothing. ``is_set``: the command that this answers put it there, now or before."""

    value: bytes = b""
    token: int = 0
    is_set: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class CommittedSteps:
    """The steps of the checkpoints that the index has, oldest first."""

    steps: tuple[int, ...]


Reply = Done | Registered | HeartbeatReply | RestorePoint | CommitProgress | ShardLease | KeyValue | CommittedSteps
Answer = tuple[Reply, list[Effect]]
