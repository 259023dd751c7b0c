"""Leadership: whether this coordinator may answer now, and who leads if it may not."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

from strata.clock import Clock
from strata.errors import NotLeaderError


@dataclass(frozen=True, slots=True)
class Leader:
    """Where the leading coordinator is; empty if none is known."""

    grpc: str = ""
    http: str = ""
    term: int = 0


class Leadership:
    """What a coordinator knows of who leads. Written by the coordinator's loop; any thread may ask.

    A leader answers until a moment of its own monotonic clock, which each renewal of its lease moves. So it stops in
    time even if nothing runs that could tell it to stop: after SIGSTOP, or when the machine was starved.

    From then on it is in doubt for a moment: the renewal is overdue, and nothing says that the lease was lost. Commands
    that come meanwhile may be held, until a renewal says that it leads, or the doubt is over and they are refused.
    """

    def __init__(self, clock: Clock, leader: Leader = Leader(), *, until_s: float = -math.inf) -> None:  # noqa: B008 - Leader is frozen
        self._clock = clock
        # One value, so that a thread that reads it never sees half of a change: who leads, until when this coordinator
        # answers, and until when it may hold what it cannot answer.
        self._state = leader, until_s, until_s
        self.on_step_down: Callable[[], None] = lambda: None
        self.on_certain: Callable[[], None] = lambda: None
        """Called when a doubt is over: this coordinator leads again, or has lost the leadership."""
        self.applied = 0
        """The last entry of the journal that this replica knows."""
        self.problem = ""
        """Why this replica could not lead; empty if it could, or does."""
        self.replicas: tuple[str, ...] = ()
        """Where gRPC of all replicas is, this one's among them."""

    @property
    def leader(self) -> Leader:
        """Who leads, as far as is known: this one, another, or nobody."""
        return self._state[0]

    @property
    def is_leader(self) -> bool:
        """Whether this coordinator may answer commands now."""
        return self._clock.monotonic_s() < self._state[1]

    @property
    def is_alone(self) -> bool:
        """Whether there are no replicas, so that nobody else could lead."""
        return self._state[1] == math.inf

    @property
    def is_in_doubt(self) -> bool:
        """Whether this coordinator cannot know now if it still leads, and will know in a moment."""
        _, until_s, hold_until_s = self._state
        return until_s <= self._clock.monotonic_s() < hold_until_s

    def refusal(self, monotonic_s: float | None = None) -> NotLeaderError | None:
        """Return the refusal of every command, also in doubt, for callers that cannot hold commands.

        None while this coordinator leads. A caller that has read the clock passes the time.
        """
        leader, until_s, _ = self._state
        if (self._clock.monotonic_s() if monotonic_s is None else monotonic_s) < until_s:
            return None
        # Whoever led and could not renew does not send anyone to itself.
        known = "" if until_s > -math.inf else leader.grpc
        return NotLeaderError(known, term=leader.term)

    def lead(self, leader: Leader, *, until_s: float, hold_until_s: float = -math.inf) -> None:
        """Answer until ``until_s``, as this leader, and hold until ``hold_until_s`` what comes after that."""
        led = self.is_leader
        self._state = leader, until_s, hold_until_s
        if not led and self.is_leader:
            self.on_certain()

    def follow(self, leader: Leader) -> None:
        """Answer nothing; say who leads."""
        self._state = leader, -math.inf, -math.inf
        self.on_certain()

    def step_down(self) -> None:
        """Answer nothing from now on: a write was refused, because another one leads or will."""
        self.follow(Leader(term=self.leader.term))
        self.on_step_down()


def lead_alone(clock: Clock) -> Leadership:
    """Return the leadership of a coordinator that has no replicas: it always leads."""
    return Leadership(clock, until_s=math.inf)
