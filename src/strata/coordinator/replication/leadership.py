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
    """

    def __init__(self, clock: Clock, leader: Leader = Leader(), *, until_s: float = -math.inf) -> None:  # noqa: B008 - Leader is frozen
        self._clock = clock
        # One value, so that a thread that reads it never sees half of a change.
        self._state = leader, until_s
        self.on_step_down: Callable[[], None] = lambda: None
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

    def refusal(self, monotonic_s: float | None = None) -> NotLeaderError | None:
        """Return what every command is answered with; None while this coordinator leads. Who read the clock says so."""
        leader, until_s = self._state
        if (self._clock.monotonic_s() if monotonic_s is None else monotonic_s) < until_s:
            return None
        # Whoever led and could not renew does not send anyone to itself.
        known = "" if until_s > -math.inf else leader.grpc
        return NotLeaderError(known, term=leader.term)

    def lead(self, leader: Leader, *, until_s: float) -> None:
        """Answer until then, as this leader."""
        self._state = leader, until_s

    def follow(self, leader: Leader) -> None:
        """Answer nothing; say who leads."""
        self._state = leader, -math.inf

    def step_down(self) -> None:
        """Answer nothing from now on: a write was refused, because another one leads or will."""
        self.follow(Leader(term=self.leader.term))
        self.on_step_down()


def lead_alone(clock: Clock) -> Leadership:
    """Return the leadership of a coordinator that has no replicas: it always leads."""
    return Leadership(clock, until_s=math.inf)
