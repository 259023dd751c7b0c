"""Meeting points: named, bounded in time, released exactly once, and with a reason for everyone who waits in vain."""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, field, replace

from strata.cluster.commands import ArriveAtBarrier, BringRelease, OfferReleases
from strata.cluster.events import BarrierFailed, BarrierReleased, Effect, ReleaseWanted
from strata.cluster.membership import Membership
from strata.cluster.values import Meeting
from strata.errors import (
    BarrierCancelledError,
    BarrierTimeoutError,
    GenerationChangedError,
    MissingWorker,
    PayloadTooLargeError,
    QuotaExceededError,
    StrataError,
)

MAX_PAYLOAD_BYTES = 1 << 20
# What all workers bring to one meeting: its release is one frame, and clients take none above 64 MiB.
MAX_MEETING_BYTES = 48 << 20
# What waits at all open barriers of a job.
MAX_WAITING_BYTES = 256 << 20
# So many released barriers are kept, and so many bytes of what was exchanged at them, for arrivals whose reply was
# lost. A worker that meets the others once more has heard of the last time, so a few are enough, however large.
MAX_RELEASED = 1_024
MAX_RELEASED_BYTES = 64 << 20
MIN_RELEASED = 4


@dataclass(slots=True)
class Barrier:
    """Who has arrived at one meeting of one generation, in the order of arrival."""

    meeting: Meeting
    expected: int
    deadline_s: float
    arrivals: dict[str, tuple[float, bytes | None]] = field(default_factory=dict)
    size_bytes: int = 0
    """How much those who arrived have brought."""

    @property
    def name(self) -> str:
        """The name that the workers gave it."""
        return self.meeting.name


@dataclass(frozen=True, slots=True)
class Release:
    """How a meeting went: who came, in the order of arrival, and how long the first one waited for the last."""

    name: str
    arrivals: tuple[str, ...]
    waited_s: float
    at_s: float


class Barriers:
    """The open barriers of a job, and the last released ones; none of it is durable.

    A release reaches everyone or no one, also through a restart of the coordinator: whoever was told offers it when it
    joins again, and it is asked of them for those who still wait.
    """

    def __init__(self, job_id: str) -> None:
        self._job_id = job_id
        self._open: dict[Meeting, Barrier] = {}
        self._waiting_bytes = 0
        self._released: dict[Meeting, BarrierReleased] = {}
        self._released_bytes = 0
        # Which workers say that they were told of a release that this coordinator does not know.
        self._holders: dict[Meeting, dict[str, None]] = {}
        self.history: deque[Release] = deque(maxlen=MAX_RELEASED)

    def open(self) -> list[Barrier]:
        """Return the barriers that someone waits at."""
        return list(self._open.values())

    def is_open(self, command: ArriveAtBarrier) -> bool:
        """Whether an arrival opens no new barrier: someone waits there, or it was released already."""
        meeting = Meeting(command.name, command.round)
        return meeting in self._open or meeting in self._released

    def arrive(self, command: ArriveAtBarrier, membership: Membership, *, now_s: float, limit: int) -> list[Effect]:
        """Note an arrival; the last one releases everyone. The same arrival again changes nothing.

        No more than ``limit`` barriers may be open. A meeting that brings too much together fails for all: a part of
        what was exchanged would be of no use to anyone.
        """
        size_bytes = 0 if command.payload is None else len(command.payload)
        if size_bytes > MAX_PAYLOAD_BYTES:
            raise PayloadTooLargeError(command.name, size_bytes=size_bytes, limit_bytes=MAX_PAYLOAD_BYTES)
        meeting = Meeting(command.name, command.round)
        if (released := self._released.get(meeting)) is not None and command.worker_id in released.to:
            # Its release was sent and may have been lost: it is told again, alone.
            return [replace(released, to=(command.worker_id,))]
        if self._waiting_bytes + size_bytes > MAX_WAITING_BYTES:
            raise QuotaExceededError("bytes that wait at the open barriers of one job", limit=MAX_WAITING_BYTES)
        barrier = self._open.get(meeting)
        if barrier is None:
            if len(self._open) >= limit:
                raise QuotaExceededError("open barriers in one job", limit=limit)
            expected = len(membership.present()) if command.expected is None else command.expected
            barrier = self._open[meeting] = Barrier(meeting, expected, now_s + command.timeout_s)
        if command.worker_id not in barrier.arrivals:
            barrier.arrivals[command.worker_id] = now_s, command.payload
            barrier.size_bytes += size_bytes
            self._waiting_bytes += size_bytes
        if barrier.size_bytes > MAX_MEETING_BYTES:
            too_large = PayloadTooLargeError(
                barrier.name, size_bytes=barrier.size_bytes, limit_bytes=MAX_MEETING_BYTES, share="in all"
            )
            return [self._fail(barrier, too_large)]
        if len(barrier.arrivals) >= barrier.expected:
            return [self._release(barrier, membership, now_s)]
        return self._ask_holder(meeting, membership) if self._holders else []

    def offer(self, command: OfferReleases, membership: Membership) -> list[Effect]:
        """Note which releases a worker was told of, and ask for those that someone waits for."""
        effects: list[Effect] = []
        for meeting in command.meetings:
            if meeting not in self._released:
                self._holders.setdefault(meeting, {})[command.worker_id] = None
                if meeting in self._open:
                    effects += self._ask_holder(meeting, membership)
        while len(self._holders) > MAX_RELEASED:
            del self._holders[next(iter(self._holders))]
        return effects

    def bring(self, command: BringRelease, membership: Membership) -> list[Effect]:
        """Take over a release from before the restart, and tell everyone who waits.

        Only of a worker that has offered it: of any other it would be one that nobody was told of.
        """
        meeting = Meeting(command.name, command.round)
        if command.worker_id not in self._holders.get(meeting, ()):
            return []
        barrier = self._close(meeting)
        released = BarrierReleased(
            job_id=self._job_id,
            to=membership.ids(),
            name=command.name,
            round=command.round,
            generation=command.generation,
            payloads=command.payloads,
            waited_s=command.waited_s,
        )
        self._keep(meeting, released)
        return [] if barrier is None else [replace(released, to=tuple(barrier.arrivals))]

    def overdue(self, *, now_s: float) -> list[Barrier]:
        """Return the barriers whose time is up."""
        return [barrier for barrier in self._open.values() if barrier.deadline_s < now_s]

    def delay(self, seconds: float) -> None:
        """Put all deadlines off, for time in which this coordinator did not run."""
        for barrier in self._open.values():
            barrier.deadline_s += seconds

    def time_out(self, barrier: Barrier, membership: Membership, *, now_s: float) -> Effect:
        """Send everyone away from a barrier whose time is up, with the names of those who are missing."""
        missing = [
            MissingWorker(member.worker_id, member.rank, str(member.state), member.step, now_s - member.last_seen_s)
            for member in membership.present()
            if member.worker_id not in barrier.arrivals
        ]
        arrived = len(barrier.arrivals)
        return self._fail(barrier, BarrierTimeoutError(barrier.name, arrived, barrier.expected, missing))

    def cancel(self, name: str, reason: str) -> list[Effect]:
        """Send everyone away from the barriers of one name."""
        named = [barrier for barrier in self._open.values() if barrier.name == name]
        return [self._fail(barrier, BarrierCancelledError(name, reason)) for barrier in named]

    def change_generation(self, generation: int) -> list[Effect]:
        """Send everyone away from every barrier: those whom they wait for may never come."""
        effects: list[Effect] = [
            self._fail(barrier, GenerationChangedError(barrier.name, generation))
            for barrier in list(self._open.values())
        ]
        self._released.clear()
        self._released_bytes = 0
        self._holders.clear()
        return effects

    def _ask_holder(self, meeting: Meeting, membership: Membership) -> list[Effect]:
        """Ask a worker that was told of a release for it; it is asked again whenever someone arrives again."""
        holder = next(iter(self._holders.get(meeting, ())), None)
        if holder is None:
            return []
        return [
            ReleaseWanted(
                job_id=self._job_id,
                to=(holder,),
                name=meeting.name,
                round=meeting.round,
                generation=membership.generation,
            )
        ]

    def _release(self, barrier: Barrier, membership: Membership, now_s: float) -> BarrierReleased:
        self._close(barrier.meeting)
        rank_of = {member.worker_id: member.rank for member in membership.present()}
        by_rank = sorted(barrier.arrivals, key=lambda worker_id: rank_of[worker_id])
        payloads = [payload for worker_id in by_rank if (payload := barrier.arrivals[worker_id][1]) is not None]
        first_s = min(at_s for at_s, _ in barrier.arrivals.values())
        released = BarrierReleased(
            job_id=self._job_id,
            to=tuple(by_rank),
            name=barrier.name,
            round=barrier.meeting.round,
            generation=membership.generation,
            payloads=tuple(payloads),
            waited_s=now_s - first_s,
        )
        self._keep(barrier.meeting, released)
        self.history.append(Release(barrier.name, tuple(barrier.arrivals), released.waited_s, now_s))
        return released

    def _keep(self, meeting: Meeting, released: BarrierReleased) -> None:
        self._holders.pop(meeting, None)
        self._released[meeting] = released
        self._released_bytes += _size_bytes(released)
        while len(self._released) > MAX_RELEASED or (
            len(self._released) > MIN_RELEASED and self._released_bytes > MAX_RELEASED_BYTES
        ):
            self._released_bytes -= _size_bytes(self._released.pop(next(iter(self._released))))

    def _close(self, meeting: Meeting) -> Barrier | None:
        barrier = self._open.pop(meeting, None)
        self._waiting_bytes -= 0 if barrier is None else barrier.size_bytes
        return barrier

    def _fail(self, barrier: Barrier, error: StrataError) -> BarrierFailed:
        self._close(barrier.meeting)
        return BarrierFailed(
            job_id=self._job_id,
            to=tuple(barrier.arrivals),
            name=barrier.name,
            round=barrier.meeting.round,
            error=error,
        )


def _size_bytes(released: BarrierReleased) -> int:
    return sum(map(len, released.payloads))
