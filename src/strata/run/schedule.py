"""When a run saves, and when it is over: decided so that all workers come to the same answer."""

from __future__ import annotations

import time

from strata.cluster.seat import Seat
from strata.run.agreement import Agreement, Word, agree, steps_apart
from strata.run.cadence import Cadence, SaveTimer
from strata.run.team import Team

# About how often the workers agree, and how long one waits for the others then.
AGREE_S = 1.0
MEET_TIMEOUT_S = 300.0


class Schedule:
    """The saves of one worker's run. Where a save does not follow from the step alone, the workers meet in `decide`."""

    def __init__(self, team: Team, cadence: Cadence, seat: Seat) -> None:
        self._team = team
        self._cadence = cadence
        self._seat = seat
        self._timer = SaveTimer(cadence, world_size=seat.world_size, now_s=time.monotonic())
        self._stepped_s = time.monotonic()
        self._next_meeting = 0
        self._last = Agreement(saves=False, is_over=False, apart=1)
        self.step_s = 0.0
        """How long a step takes, on average."""
        self.is_out = False
        """Whether this worker has no more data; it tells the others."""
        self.is_uneven = False
        """Whether workers have different numbers of batches, so that they must agree on the end."""
        self.may_leave = False
        """Whether this worker said that it leaves, and all have saved for it."""

    @property
    def is_over(self) -> bool:
        """Whether all workers are out of data."""
        return self._last.is_over

    @property
    def meets(self) -> bool:
        """Whether the workers must agree, on when to save or on when they are done."""
        return self._team.client is not None and (self._cadence.every_steps is None or self.is_uneven)

    def enter(self, seat: Seat) -> None:
        """Begin in another generation."""
        if seat != self._seat:
            lost = self._team.client is not None and " failed: " in self._team.client.why_changed
            self._timer.changed_world(seat.world_size, failed=lost, now_s=time.monotonic())
        self._seat = seat
        self._last = Agreement(saves=False, is_over=False, apart=1)
        self.is_out = self.may_leave = False

    def restored(self, step: int) -> None:
        """Go on from a checkpoint; the first meeting is after the first step, as for everyone."""
        self._next_meeting = step + 1
        self._stepped_s = time.monotonic()
        self._timer.restored(step, now_s=self._stepped_s)

    def saved(self, step: int, *, cost_s: float) -> None:
        """A save was begun, and held training up for so long."""
        self._timer.saved(step, cost_s=cost_s, now_s=time.monotonic())

    def tick(self) -> None:
        """A step is done."""
        now_s = time.monotonic()
        self.step_s = 0.9 * self.step_s + 0.1 * (now_s - self._stepped_s)
        self._stepped_s = now_s

    def decide(self, step: int, *, is_leaving: bool) -> bool:
        """Return whether to save the state after this step; raise Reconfigure if the generation ends meanwhile."""
        is_due = self._timer.is_due(step, now_s=time.monotonic())
        if not self.meets:
            return is_due
        if step < self._next_meeting:
            return is_due and self._cadence.every_steps is not None
        word = Word(
            wants_save=is_due,
            is_leaving=is_leaving,
            is_out=self.is_out,
            apart=steps_apart(self.step_s, aim_s=AGREE_S),
        )
        said = self._team.exchange(self._seat, f"agree/{step}", word.to_bytes(), timeout_s=MEET_TIMEOUT_S)
        self._last = agree([Word.from_bytes(each) for each in said])
        self._next_meeting = step + self._last.apart
        self.may_leave = is_leaving
        return self._last.saves
