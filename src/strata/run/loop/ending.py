"""How a loop over steps ends: the data is over, the last step is committed, or this worker was told to stop."""

from __future__ import annotations

import logging
import time
from collections.abc import Iterator
from contextlib import suppress
from typing import TYPE_CHECKING, NoReturn

from strata.errors import CheckpointError, GroupRestart, Reconfigure
from strata.run.exits import Stopped
from strata.run.team.protocol import MEET_TIMEOUT_S

if TYPE_CHECKING:
    from strata.checkpoint import SaveHandle
    from strata.run.data.run_dataset import RunDataset
    from strata.run.exit_code import ExitCode
    from strata.run.loop.run import Run
    from strata.run.loop.schedule import Schedule
    from strata.run.loop.state import State
    from strata.run.loop.steps import Step
    from strata.run.loop.stopping import StopSignal
    from strata.run.team.protocol import Team
    from strata.run.watchdog.waits import Waits

log = logging.getLogger(__name__)


class Ending:
    """Decides for one loop when it is over, and sees its last save through."""

    def __init__(
        self, run: Run, schedule: Schedule, team: Team, waits: Waits, stop: StopSignal, exit_code: ExitCode
    ) -> None:
        self._run = run
        self._schedule = schedule
        self._team = team
        self._waits = waits
        self._stop = stop
        self._exit_code = exit_code
        self.stopped: Stopped | None = None
        """What ended the loop, also where the script has caught it."""
        self.is_finished = False
        """Whether all steps of the last loop are done."""
        self.group_restart: GroupRestart | None = None
        """The change of the membership that ended a loop with ``recover=False``."""
        self._is_over = False
        self._generation: int | None = None
        self._handed_out: Step | None = None

    def enter_loop(self) -> None:
        """Let SIGTERM stop this worker after its step: it trains, or is about to."""
        self._stop.install()
        self.is_finished = False
        if self._is_over:
            self._is_over = False
            self._exit_code.discard_over()

    def leave_loop(self, *, is_finished: bool = False) -> None:
        """Let SIGTERM stop nothing more, and the process exit as one that has finished: the training is over.

        ``is_finished`` says that all steps are done; a loop that the script has left may have been left because of it.
        """
        self._stop.leave_loop()
        self.is_finished |= is_finished
        if not self._is_over:
            self._is_over = True
            self._exit_code.note_over(is_finished=is_finished)

    def begin(self) -> None:
        """A loop goes on from here in the present generation."""
        self._generation, self._handed_out = self._run.generation, None

    def hand_out(self, step: Step) -> Iterator[Step]:
        """Yield a step, and note whether the loop asks for more; say so if it is left with steps that are not saved."""
        self._handed_out = step
        try:
            yield step
        except GeneratorExit:
            run = self._run
            saved = run.restored_step if run.last_save is None else run.last_save.step
            if run.step_number > saved and step.failure is None:
                log.warning(
                    "the loop was left in step %d, which does not count, and the last save is of step %d; to end with "
                    "a save of the last step, use run.steps(..., until=%d)",
                    *(step.number, saved, step.number),
                )
            raise
        self._handed_out = None

    def follows_another_loop(self) -> bool:
        """Whether this loop goes on where one before it ended, because the membership is still the same.

        In one generation all restore what that began with, so to restore again would be to do its steps again.
        """
        run, left = self._run, self._handed_out
        if self._generation != run.generation or not run.is_current():
            return False
        if left is not None and left.failure is not None:
            if self._team.client is None:
                # Alone, it goes back to its last checkpoint, which may still be on its way.
                if run.last_save is not None:
                    with suppress(CheckpointError):
                        self._wait(run.last_save)
                return False
            name = type(left.failure).__name__
            raise RuntimeError(
                f"the loop before this one was left in step {left.number} by {name}, so the state may be that of half "
                "a step; let the process end, and its next start restores the last checkpoint"
            ) from left.failure
        run.go_on()
        return True

    def is_told_to_stop(self) -> bool:
        """Whether SIGTERM came."""
        return self._stop.is_set()

    def check_stop(self) -> None:
        """Raise Stopped if SIGTERM came: for a worker that waits and has no step to finish."""
        if self._stop.is_set():
            self.stop()

    def is_over_without_data(self, dataset: RunDataset) -> bool:
        """Whether all workers are without data, now that this one is."""
        schedule = self._schedule
        schedule.is_out = True
        return dataset.is_even or schedule.is_over or self._run.world_size == 1 or not schedule.meets

    def leave_group(self, change: Reconfigure) -> GroupRestart:
        """Return what ends a loop that cannot change its membership, and log it: the process ends with it."""
        self.group_restart = GroupRestart(change.generation, change.reason)
        log.warning("%s", self.group_restart)
        return self.group_restart

    def stop(self) -> NoReturn:
        """Wait until the last step is committed, if all workers saved it, and raise Stopped."""
        run = self._run
        is_saved = False
        if self._is_saved():
            assert run.last_save is not None
            try:
                self._wait(run.last_save)
                is_saved = True
            except CheckpointError as error:
                log.warning("the last save before the stop failed: %s", error)
        is_saved = is_saved or run.step_number == run.restored_step
        self.stopped = Stopped(run.step_number, is_saved=is_saved)
        log.warning("%s", self.stopped)
        self._exit_code.note_stop(self.stopped)
        raise self.stopped

    def finish(self, state: State) -> None:
        """Return when the last step is committed; raise why it is not."""
        run = self._run
        if not self._is_saved():
            if run.step_number == run.restored_step:
                # Nothing was left to do. One that leaves before the others have seen it would disturb them.
                run.barrier("strata: nothing is left to do")
                return
            run.save(state)
        assert run.last_save is not None
        try:
            self._wait(run.last_save)
            self._waits.account.finished(time.monotonic())
        except CheckpointError:
            # If it was given up because a worker was lost, the others do the last steps again.
            if not run.is_current():
                raise Reconfigure(run.generation, "a worker was lost during the last save") from None
            raise

    def _is_saved(self) -> bool:
        return self._run.last_save is not None and self._run.last_save.step == self._run.step_number

    def _wait(self, save: SaveHandle) -> None:
        with self._waits.waiting(
            f"the checkpoint of step {save.step} is committed",
            whom=lambda: name_committers(self._team, save.step),
            timeout_s=MEET_TIMEOUT_S,
            part="save",
        ):
            save.result(MEET_TIMEOUT_S)


def name_committers(team: Team, step: int) -> str:
    """Say whose parts of a checkpoint are missing."""
    view = team.look()
    return "" if view is None else view.name(view.commits.get(step, ()))
