"""What happened and what must happen next, as values.

An *event* is told to people: it feeds the log, the dashboard and the audit trail. An *effect* is told to workers: the
coordinator sends it to those it is addressed to, after what caused it is durable.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, field, replace
from enum import StrEnum
from itertools import islice

from strata.cluster.values import PartReport
from strata.errors import StrataError

MAX_EVENTS = 10_000


class Cause(StrEnum):
    """What became of a worker, or what else ended a generation."""

    JOINED = "joined"
    """A worker came, or came back in a new incarnation."""
    LEFT = "left"
    """It said goodbye before the run was over, and not why."""
    FINISHED = "finished"
    """It said goodbye because the run was over."""
    CRASHED = "crashed"
    """It said goodbye because of an error."""
    PREEMPTED = "preempted"
    """It said goodbye because it was told to stop (SIGTERM), as when its machine is taken away."""
    STOPPED = "stopped"
    """It said goodbye because a user ended it."""
    REGROUPED = "regrouped"
    """It said goodbye to start again with all others: its generation ended, and it cannot change its members."""
    GIVEN_UP = "given_up"
    """It said goodbye because its launcher gave the job up."""
    CHANNEL_LOST = "channel_lost"
    """Its connection closed without goodbye, and it did not come back: its process died, or the network did."""
    HUNG = "hung"
    """Its connection is open, and nothing came in it for as long as a lease lasts; or its own watchdog ended it."""
    LEASE_ENDED = "lease_ended"
    """Several workers went at once, in different ways."""
    REJECTED = "rejected"
    """The checkpoint that it went on from cannot be restored."""
    REWOUND = "rewound"
    """An operator rewound the job."""

    @property
    def past(self) -> str:
        """What a worker did that said goodbye for this cause."""
        words = {
            Cause.FINISHED: "finished",
            Cause.CRASHED: "crashed",
            Cause.PREEMPTED: "was preempted",
            Cause.STOPPED: "was stopped",
            Cause.REGROUPED: "left to start again",
            Cause.GIVEN_UP: "was ended by its launcher",
            Cause.HUNG: "hung",
        }
        return words.get(self, "left")

    @property
    def is_failure(self) -> bool:
        """Whether a worker was lost without having said so in time."""
        return self in (Cause.CRASHED, Cause.CHANNEL_LOST, Cause.HUNG, Cause.LEASE_ENDED)


@dataclass(frozen=True, slots=True)
class Event:
    """One change: when, in which job, of whom, what, and why."""

    at_s: float
    job_id: str
    worker_id: str | None
    kind: str
    reason: str
    cause: Cause | None = None
    # Not compared: a journal of an older version does not keep them, and an event that was replayed is the same event.
    by: str = field(default="", compare=False)
    """The name of the token whose command caused it; empty for what time did, and where nobody is asked."""
    address: str = field(default="", compare=False)
    """From where that command came."""


NOBODY = ("", "")


class EventLog:
    """The newest events, at most :data:`MAX_EVENTS`; older ones are forgotten."""

    def __init__(self) -> None:
        self._events: deque[Event] = deque(maxlen=MAX_EVENTS)
        self.following = 0
        """The number of the next event."""
        self.by = NOBODY
        """Whose command is being applied: the name of a token and an address."""

    def append(self, event: Event) -> None:
        """Add an event."""
        self.following += 1
        if self.by is not NOBODY:
            event = replace(event, by=self.by[0], address=self.by[1])
        self._events.append(event)

    def since(self, number: int) -> tuple[int, list[Event]]:
        """Return the events from ``number`` on that are still known, and the number to ask for next."""
        count = min(max(0, self.following - number), len(self._events))
        newest = list(islice(reversed(self._events), count))
        return self.following, newest[::-1]


@dataclass(frozen=True, slots=True, kw_only=True)
class Effect:
    """Something that the named workers must be told."""

    job_id: str
    to: tuple[str, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class GenerationChanged(Effect):
    """The membership is another one; what belongs to the old one is discarded."""

    generation: int
    reason: str
    cause: Cause = Cause.JOINED


@dataclass(frozen=True, slots=True, kw_only=True)
class BarrierReleased(Effect):
    """Everyone is there. ``payloads`` are in the order of ranks, and empty for a plain barrier."""

    name: str
    round: int = 1
    generation: int
    payloads: tuple[bytes, ...]
    waited_s: float


@dataclass(frozen=True, slots=True, kw_only=True)
class BarrierFailed(Effect):
    """The barrier will not be released for those who wait at it now."""

    name: str
    round: int = 1
    error: StrataError


@dataclass(frozen=True, slots=True, kw_only=True)
class ReleaseWanted(Effect):
    """Someone waits at a barrier that was released before the coordinator restarted: the addressed worker knows."""

    name: str
    round: int = 1
    generation: int


@dataclass(frozen=True, slots=True, kw_only=True)
class ManifestWanted(Effect):
    """All parts of a step are in: the addressed worker is to write its manifest with put-if-absent."""

    step: int
    epoch: int
    generation: int
    reports: tuple[PartReport, ...]
    cursors: str
    repairs: tuple[PartReport, ...] = ()
    """In the order of the reports, with an empty path where a worker repaired nothing; empty if nobody did."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RepairWanted(Effect):
    """Ask workers to repair a step whose replicas differ: each writes the blocks of which it has a right copy."""

    step: int
    generation: int
    reports: tuple[PartReport, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class CheckpointCommitted(Effect):
    """A checkpoint is committed and stays, whatever dies."""

    step: int
    manifest: str


@dataclass(frozen=True, slots=True, kw_only=True)
class CheckpointAborted(Effect):
    """A checkpoint will not be committed; training goes on, and the last committed one stays."""

    step: int
    reason: str


EFFECTS: tuple[type[Effect], ...] = (
    GenerationChanged,
    BarrierReleased,
    BarrierFailed,
    ReleaseWanted,
    ManifestWanted,
    RepairWanted,
    CheckpointCommitted,
    CheckpointAborted,
)
"""Every kind of effect. The wire derives its table from it."""
