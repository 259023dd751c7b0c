"""What a worker says when it leaves: the cause, and why in words, from what ended its program. Pure."""

from __future__ import annotations

import signal

from strata.cluster.events import Cause
from strata.errors import Reconfigure

MAX_REASON = 300
# What programs exit with by convention that were told to end by a signal, and obeyed.
_TOLD = {128 + signal.SIGTERM: Cause.PREEMPTED, 128 + signal.SIGINT: Cause.STOPPED}


def goodbye_of(error: BaseException | None) -> tuple[Cause, str]:
    """Return what became of a worker, and why, from what ended its block; None if nothing did."""
    match error:
        case None | SystemExit(code=None | 0):
            return Cause.FINISHED, ""
        case SystemExit(code=int(code)) if code in _TOLD:
            return _TOLD[code], f"exited with code {code}"
        case KeyboardInterrupt():
            return Cause.STOPPED, "interrupted"
        case Reconfigure():
            # With recover=False all workers end then, and start again together.
            return Cause.REGROUPED, error.reason
        case _:
            return Cause.CRASHED, " ".join(f"{type(error).__name__}: {error}".split())[:MAX_REASON]
