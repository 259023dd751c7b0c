"""Meeting points: named, bounded in time, released exactly once, and with a reason for everyone who waits in vain."""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, field

from strata.cluster.commands import ArriveAtBarrier
from strata.cluster.events import BarrierFailed, BarrierReleased, Effect
from strata.cluster.membership import Membership
from strata.errors import (
    BarrierCancelledError,
    BarrierTimeoutError,
    GenerationChangedError,
    MissingWorker,
    PayloadTooLargeError,
    StrataError,
)

MAX_PAYLOAD_BYTES = 1 << 20
# So many released barriers are kept, and so many bytes of what was exchanged at them, for arrivals whose reply was
# lost. A worker that meets the others once more has heard of the last time, so a few are enough, however large.
MAX_RELEASED = 1_024
MAX_RELEASED_BYTES = 64 << 20
MIN_RELEASED = 4


@dataclass(slots=True)
class Barrier:
    """Who has arrived at one meeting point of one generation, in the order of arrival."""

    name: str
    expected: int
    deadline_s: float
    arrivals: dict[str, tuple[float, bytes | None]] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Release:
    """How a meeting went: who came, in the order of arrival, and how long the first one waited for the last."""

    name: str
    arrivals: tuple[str, ...]
    waited_s: float


class Barriers:
    """The open barriers of a job, and the last released ones; none of it is durable."""

    def __init__(self, job_id: str) -> None:
        self._job_id = job_id
        self._open: dict[str, Barrier] = {}
        self._released: dict[str, BarrierReleased] = {}
        self._released_bytes = 0
        self.history: deque[Release] = deque(maxlen=MAX_RELEASED)

    def open(self) -> list[Barrier]:
        """Return the barriers that someone waits at."""
        return list(self._open.values())

    def is_open(self, name: str) -> bool:
        """Whether someone waits at the barrier."""
        return name in self._open

    def arrive(self, command: ArriveAtBarrier, membership: Membership, *, now_s: float) -> list[Effect]:
        """Note an arrival; the last one releases everyone. The same arrival again changes nothing."""
        if command.payload is not None and len(command.payload) > MAX_PAYLOAD_BYTES:
            raise PayloadTooLargeError(command.name, size_bytes=len(command.payload), limit_bytes=MAX_PAYLOAD_BYTES)
        if (released := self._released.get(command.name)) is not None and command.worker_id in released.to:
            # Its release was sent and may have been lost: it is told again, alone.
            return [
                BarrierReleased(
                    job_id=self._job_id,
                    to=(command.worker_id,),
                    name=released.name,
                    generation=released.generation,
                    payloads=released.payloads,
                    waited_s=released.waited_s,
                )
            ]
        barrier = self._open.setdefault(
            command.name,
            Barrier(command.name, command.expected or len(membership.present()), now_s + command.timeout_s),
        )
        barrier.arrivals.setdefault(command.worker_id, (now_s, command.payload))
        if len(barrier.arrivals) < barrier.expected:
            return []
        return [self._release(barrier, membership, now_s)]

    def overdue(self, *, now_s: float) -> list[Barrier]:
        """Return the barriers whose time is up."""
        return [barrier for barrier in self._open.values() if barrier.deadline_s < now_s]

    def time_out(self, barrier: Barrier, membership: Membership, *, now_s: float) -> Effect:
        """Send everyone away from a barrier whose time is up, with the names of those who are missing."""
        missing = [
            MissingWorker(member.worker_id, member.rank, str(member.state), member.step, now_s - member.heard_s)
            for member in membership.present()
            if member.worker_id not in barrier.arrivals
        ]
        arrived = len(barrier.arrivals)
        return self._fail(barrier, BarrierTimeoutError(barrier.name, arrived, barrier.expected, missing))

    def cancel(self, name: str, reason: str) -> list[Effect]:
        """Send everyone away from one barrier."""
        barrier = self._open.get(name)
        return [] if barrier is None else [self._fail(barrier, BarrierCancelledError(name, reason))]

    def change_generation(self, generation: int) -> list[Effect]:
        """Send everyone away from every barrier: those whom they wait for may never come."""
        effects: list[Effect] = [
            self._fail(barrier, GenerationChangedError(barrier.name, generation))
            for barrier in list(self._open.values())
        ]
        self._released.clear()
        self._released_bytes = 0
        return effects

    def _release(self, barrier: Barrier, membership: Membership, now_s: float) -> BarrierReleased:
        del self._open[barrier.name]
        rank_of = {member.worker_id: member.rank for member in membership.present()}
        by_rank = sorted(barrier.arrivals, key=lambda worker_id: rank_of[worker_id])
        payloads = [payload for worker_id in by_rank if (payload := barrier.arrivals[worker_id][1]) is not None]
        first_s = min(at_s for at_s, _ in barrier.arrivals.values())
        released = BarrierReleased(
            job_id=self._job_id,
            to=tuple(by_rank),
            name=barrier.name,
            generation=membership.generation,
            payloads=tuple(payloads),
            waited_s=now_s - first_s,
        )
        self._released[barrier.name] = released
        self._released_bytes += _size_bytes(released)
        while len(self._released) > MAX_RELEASED or (
            len(self._released) > MIN_RELEASED and self._released_bytes > MAX_RELEASED_BYTES
        ):
            self._released_bytes -= _size_bytes(self._released.pop(next(iter(self._released))))
        self.history.append(Release(barrier.name, tuple(barrier.arrivals), released.waited_s))
        return released

    def _fail(self, barrier: Barrier, error: StrataError) -> BarrierFailed:
        del self._open[barrier.name]
        return BarrierFailed(job_id=self._job_id, to=tuple(barrier.arrivals), name=barrier.name, error=error)


def _size_bytes(released: BarrierReleased) -> int:
    return sum(map(len, released.payloads))
