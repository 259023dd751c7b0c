"""The feed: what the dispatcher did, handed to another thread. It costs the coordinator's loop a microsecond."""

from __future__ import annotations

from bisect import bisect_left
from collections import deque
from collections.abc import Sequence
from typing import NamedTuple

from strata.cluster import commands as c
from strata.cluster.events import Effect, Event
from strata.cluster.replies import Reply, RestorePoint
from strata.errors import StrataError

# If nobody takes them for long, the oldest are dropped: telemetry never fills the memory.
MAX_ITEMS = 100_000
LATENCY_BOUNDS_S = (0.0001, 0.00025, 0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 10.0)
# The commands that a history is made from, beside heartbeats.
_TOLD = frozenset({c.RegisterWorker, c.Goodbye, c.FailWorkers, c.ReportPart, c.RejectCheckpoint})


class Rewound(NamedTuple):
    """A generation of a job goes on from a step."""

    job_id: str
    generation: int
    step: int


class Replayed(NamedTuple):
    """What happened before this coordinator took over, as far as the journal tells."""

    events: tuple[Event, ...]


Item = tuple[float, c.Command | Effect | Event | Rewound | Replayed]


class Latencies:
    """How long the commands of one kind took until they were answered, and how many were refused."""

    __slots__ = ("counts", "refused", "sum_s")

    def __init__(self) -> None:
        self.counts = [0] * (len(LATENCY_BOUNDS_S) + 1)
        self.sum_s = 0.0
        self.refused = 0

    @property
    def total(self) -> int:
        """How many there were."""
        return sum(self.counts)


class Feed:
    """Written by the coordinator's loop, and read by one other thread. Everything in it is durable."""

    def __init__(self) -> None:
        self._items: deque[Item] = deque(maxlen=MAX_ITEMS)
        self.latencies: dict[type[c.Command], Latencies] = {}
        self.changes = 0
        """Grows with every command, so that a reader knows whether anything can have changed."""

    @property
    def requests(self) -> int:
        """How many commands were answered."""
        return sum(latencies.total for latencies in list(self.latencies.values()))

    def note(
        self,
        command: c.Command,
        at_s: float,
        took_s: float,
        reply: Reply | StrataError,
        effects: Sequence[Effect],
        events: Sequence[Event],
    ) -> None:
        """Note a command that was answered, and what came of it."""
        self.changes += 1
        kind = type(command)
        latencies = self.latencies.get(kind)
        if latencies is None:
            latencies = self.latencies[kind] = Latencies()
        latencies.counts[bisect_left(LATENCY_BOUNDS_S, took_s)] += 1
        latencies.sum_s += took_s
        if isinstance(reply, StrataError):
            latencies.refused += 1
            return
        items = self._items
        if isinstance(command, c.Heartbeat):
            if command.account is not None:
                items.append((at_s, command))
            return
        if kind in _TOLD:
            items.append((at_s, command))
        elif isinstance(reply, RestorePoint):
            assert isinstance(command, c.AskRestorePoint)
            step = 0 if reply.checkpoint is None else reply.checkpoint.step
            items.append((at_s, Rewound(command.job_id, command.generation, step)))
        for effect in effects:
            items.append((at_s, effect))
        for event in events:
            items.append((event.at_s, event))

    def tell(self, event: Event) -> None:
        """Note an event that no command caused."""
        self.changes += 1
        self._items.append((event.at_s, event))

    def replay(self, events: Sequence[Event]) -> None:
        """Note that this coordinator took over, with the events that it knows."""
        self.changes += 1
        self._items.append((0.0, Replayed(tuple(events))))

    def take(self, most: int | None = None) -> list[Item]:
        """Return what was noted since the last call, in its order; at most so many of it."""
        items = self._items
        return [items.popleft() for _ in range(len(items) if most is None else min(most, len(items)))]
