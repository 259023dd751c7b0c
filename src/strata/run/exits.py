"""How a worker's process ends, other than by finishing: the exit codes that launchers tell apart, and ``Stopped``."""

from __future__ import annotations

import signal
import sys

from strata.client.worker import goodbye
from strata.cluster.events import Cause
from strata.errors import GroupRestart

PREEMPTED = 128 + signal.SIGTERM
"""The process was told to end (SIGTERM) before the training was over; start it again to go on."""
HUNG = 87
"""The watchdog ended the process, because it made no progress while others waited for it."""


REGROUPED = GroupRestart.code
"""The membership changed in a script with ``recover=False``: the process ended so that all workers start again."""


class Stopped(SystemExit):
    """SIGTERM ended the training loop before the training was over. The process exits with code 143.

    ``step`` is the last step that was done, and ``is_saved`` says whether a checkpoint of it is committed. It is a
    SystemExit, so that code after the loop does not run on a half-trained model. A script that catches it exits with
    143 all the same, unless it calls :meth:`mark_handled`.
    """

    def __init__(self, step: int, *, is_saved: bool) -> None:
        self.step = step
        self.is_saved = is_saved
        self.is_handled = False
        super().__init__(PREEMPTED)

    def mark_handled(self) -> None:
        """Let the script choose the exit code of the process; with 0, launchers take the training for finished."""
        self.is_handled = True

    def __str__(self) -> str:
        saved = "which is saved" if self.is_saved else "which is not saved; the next start goes on from the one before"
        return f"stopped by SIGTERM after step {self.step}, {saved}"


def goodbye_at_exit(stopped: Stopped | GroupRestart | None, *, is_finished: bool) -> tuple[Cause, str]:
    """Return the same for a script that ended without closing its run, as far as the interpreter knows.

    ``is_finished`` says that its loop over the steps came to the end.
    """
    error = getattr(sys, "last_value", None) or stopped
    if error is None and not is_finished:
        return Cause.LEFT, "exited without close"
    return goodbye_of(error)


def goodbye_of(error: BaseException | None) -> tuple[Cause, str]:
    """Return what became of a worker, and why, from what ended its block; None if nothing did."""
    if isinstance(error, Stopped):
        return Cause.PREEMPTED, str(error)
    return goodbye.goodbye_of(error)
