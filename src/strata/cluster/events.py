"""What happened and what must happen next, as values.

An *event* is told to people: it feeds the log, the dashboard and the audit trail. An *effect* is told to workers: the
coordinator sends it to those it is addressed to, after what caused it is durable.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass

from strata.errors import StrataError

MAX_EVENTS = 10_000


@dataclass(frozen=True, slots=True)
class Event:
    """One change: when, in which job, of whom, what, and why."""

    at_s: float
    job_id: str
    worker_id: str | None
    kind: str
    reason: str


class EventLog:
    """The newest events, at most :data:`MAX_EVENTS`; older ones are forgotten."""

    def __init__(self) -> None:
        self._events: deque[Event] = deque(maxlen=MAX_EVENTS)
        self._first = 0

    def append(self, event: Event) -> None:
        """Add an event."""
        self._first += len(self._events) == MAX_EVENTS
        self._events.append(event)

    def since(self, number: int) -> tuple[int, list[Event]]:
        """Return the events from ``number`` on that are still known, and the number to ask for next."""
        skip = max(0, number - self._first)
        return self._first + len(self._events), list(self._events)[skip:]


@dataclass(frozen=True, slots=True, kw_only=True)
class Effect:
    """Something that the named workers must be told."""

    job_id: str
    to: tuple[str, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class GenerationChanged(Effect):
    """The membership is another one; what belongs to the old one is void."""

    generation: int
    reason: str


@dataclass(frozen=True, slots=True, kw_only=True)
class BarrierReleased(Effect):
    """Everyone is there. ``payloads`` are in the order of ranks, and empty for a plain barrier."""

    name: str
    generation: int
    payloads: tuple[bytes, ...]
    waited_s: float


@dataclass(frozen=True, slots=True, kw_only=True)
class BarrierFailed(Effect):
    """The barrier will not be released for those who wait at it now."""

    name: str
    error: StrataError


@dataclass(frozen=True, slots=True, kw_only=True)
class ManifestWanted(Effect):
    """All parts of a step are in: the addressed worker is to write its manifest with put-if-absent."""

    step: int
    epoch: int
    generation: int
    parts: tuple[tuple[str, int, str], ...]
    cursors: str


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
