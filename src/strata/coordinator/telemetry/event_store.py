"""Events with positions that a reader can go on from, also after a restart of the coordinator."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Sequence
from typing import NamedTuple

from strata.cluster.events import MAX_EVENTS, Event


class Found(NamedTuple):
    """What a reader asked for. ``is_lost``: there was more after its position that is no longer known."""

    events: list[tuple[str, Event]]
    next: str
    has_more: bool
    is_lost: bool


class EventStore:
    """The newest durable events. A position is the life of the coordinator and a number: "3f2a9c01-17"."""

    def __init__(self, life: str) -> None:
        self._life = life
        self._events: deque[Event] = deque(maxlen=MAX_EVENTS)
        # The first event has the number 1, so that 0 is the position before all of them.
        self._first = 1

    def extend(self, events: Iterable[Event]) -> None:
        """Add events."""
        for event in events:
            self._first += len(self._events) == MAX_EVENTS
            self._events.append(event)

    def resume(self, events: Sequence[Event]) -> None:
        """Add the events of a journal that was followed meanwhile; those that are known already are left out."""
        last = self._events[-1] if self._events else None
        self.extend(events[events.index(last) + 1 :] if last in events else events)

    @property
    def newest(self) -> str:
        """The position of the newest event."""
        return self._position(self._first + len(self._events) - 1)

    def find(
        self,
        *,
        after: str | None,
        job_id: str | None,
        kind: str | None,
        limit: int,
        newest: bool = False,
        is_shown: Callable[[Event], bool] = lambda _: True,
    ) -> Found:
        """Return events after a position; from another life of the coordinator that is the oldest known."""
        begin, is_lost = self._begin(after)
        events = list(self._events)
        numbers = range(begin, self._first + len(events))
        found: list[tuple[str, Event]] = []
        last, has_more = begin - 1, False
        for number in reversed(numbers) if newest else numbers:
            event = events[number - self._first]
            is_wanted = job_id in (None, event.job_id) and kind in (None, event.kind)
            if is_wanted and is_shown(event):
                if len(found) == limit:
                    has_more = True
                    break
                found.append((self._position(number), event))
            last = number
        if newest:
            found.reverse()
            last = self._first + len(events) - 1
        return Found(found, self._position(last), has_more, is_lost)

    def _begin(self, after: str | None) -> tuple[int, bool]:
        if after is None or after == "":
            return self._first, False
        life, dash, number = after.rpartition("-")
        if not dash or not life.isalnum() or not number.isascii() or not number.isdecimal() or len(number) > 18:
            raise ValueError(f"after={after!r} is no position; use one that an answer gave, or leave it out")
        if life != self._life:
            return self._first, True
        begin = int(number) + 1
        if begin > self._first + len(self._events):
            raise ValueError(f"after={after!r} lies in the future; the newest position is {self.newest!r}")
        return max(begin, self._first), begin < self._first

    def _position(self, number: int) -> str:
        return f"{self._life}-{number}"
