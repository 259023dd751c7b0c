"""When a run saves, and when it is over: decided so that all workers come to the same answer."""

from __future__ import annotations

import time

from strata.cluster.values import RankInfo
from strata.run.loop.cadence import Cadence, SaveTimer
from strata.run.loop.votes import Decision, Vote, agree, steps_apart
from strata.run.team.protocol import Team

# About how often the workers agree.
AGREE_S = 1.0


class Schedule:
    """The saves of one worker's run. Where a save does not follow from the step alone, the workers meet in `decide`."""

    def __init__(self, team: Team, cadence: Cadence, rank_info: RankInfo) -> None:
        self._team = team
        self._cadence = cadence
        self._rank_info = rank_info
        self._timer = SaveTimer(cadence, world_size=rank_info.world_size, now_s=time.monotonic())
        self._stepped_s = time.monotonic()
        self._next_meeting = 0
        self._last = Decision(saves=False, is_over=False, apart=1)
        self._steps = 0
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

    def enter(self, rank_info: RankInfo) -> None:
        """Begin in another generation."""
        if rank_info != self._rank_info:
            cause = None if self._team.client is None else self._team.client.cause_changed
            self._timer.changed_world(
                rank_info.world_size, failed=cause is not None and cause.is_failure, now_s=time.monotonic()
            )
        self._rank_info = rank_info
        self._last = Decision(saves=False, is_over=False, apart=1)
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
        self._steps += 1
        self.step_s += max(0.1, 1 / self._steps) * (now_s - self._stepped_s - self.step_s)
        self._stepped_s = now_s

    def decide(self, step: int, *, is_leaving: bool) -> bool:
        """Return whether to save the state after this step; raise Reconfigure if the generation ends meanwhile."""
        is_due = self._timer.is_due(step, now_s=time.monotonic())
        if not self.meets:
            return is_due
        if step < self._next_meeting:
            return is_due and self._cadence.every_steps is not None
        word = Vote(
            wants_save=is_due,
            is_leaving=is_leaving,
            is_out=self.is_out,
            apart=steps_apart(self.step_s, aim_s=AGREE_S),
        )
        said = self._team.exchange(self._rank_info, f"agree/{step}", word.to_bytes(), timeout_s=None)
        self._last = agree([Vote.from_bytes(each) for each in said])
        self._next_meeting = step + self._last.apart
        self.may_leave = is_leaving
        return self._last.saves
