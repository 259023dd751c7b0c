"""Held commands: what came while this coordinator did not know whether it still leads. Pure.

Nothing of it has been applied. It goes on in its order when the lease was renewed, so everything is still decided and
written under the term that this coordinator leads in; or it is refused, when the leadership is lost or the doubt lasts.
"""

from __future__ import annotations

from collections.abc import Callable

from strata.coordinator.replication.leadership import Leadership
from strata.errors import NotLeaderError

# More is refused at once: one heartbeat of each of 10,000 workers, and what else they ask in that moment.
MAX_HELD = 20_000

# Called with None when the command may go on, or with why it may not.
GoOn = Callable[[NotLeaderError | None], None]


class HeldCommands:
    """The commands that a coordinator holds while its leadership is in doubt."""

    def __init__(self, leadership: Leadership) -> None:
        self._leadership = leadership
        self._waiting: list[GoOn] = []
        self.has_refused = False
        """Whether any command was refused since this coordinator was certain to lead."""

    def take(self, go_on: GoOn, monotonic_s: float | None = None) -> bool:
        """Hold or refuse what may not be answered now; return False while this coordinator leads."""
        refusal = self._leadership.refusal(monotonic_s)
        if refusal is None:
            return False
        if self._leadership.is_in_doubt and len(self._waiting) < MAX_HELD:
            self._waiting.append(go_on)
        else:
            self.has_refused = True
            go_on(refusal)
        return True

    def settle(self) -> None:
        """Let go of everything that waits, unless this coordinator is still in doubt."""
        if not self._waiting or self._leadership.is_in_doubt:
            return
        waiting, self._waiting = self._waiting, []
        for go_on in waiting:
            # It may be in doubt again meanwhile: then the rest is held again, in the same order.
            if not self.take(go_on):
                go_on(None)
