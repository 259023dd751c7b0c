"""Being told to stop: SIGTERM asks a training loop to end after its step, instead of ending the process.

After the loop there is no step to finish, and the checkpoint is committed: what follows, such as an export, goes on, so
that the process exits as one that has finished. A second SIGTERM ends it, as it would have without Strata.
"""

from __future__ import annotations

import logging
import os
import signal
import threading
import time
from collections.abc import Callable
from types import FrameType
from typing import Any

log = logging.getLogger(__name__)


class StopSignal:
    """Whether this process was asked to end. The handler is installed when someone looks, or by :meth:`install`."""

    def __init__(self) -> None:
        self._told = threading.Event()
        self._told_s = 0.0
        self._is_installed = False
        self._is_over = False
        self._previous: Callable[[int, FrameType | None], Any] | int | signal.Handlers | None = None
        self._fork = threading.local()
        self._is_guarding_forks = False

    def is_set(self) -> bool:
        """Whether SIGTERM came since this process handles it."""
        return self._told.is_set()

    def waited_s(self) -> float:
        """How long ago it came; 0 if it did not."""
        return time.monotonic() - self._told_s if self._told.is_set() else 0.0

    def install(self) -> None:
        """Let SIGTERM ask from now on; a handler that was there before is called too."""
        self._is_over = False
        # Only the main thread may set a handler; in others the process ends as it would.
        if self._is_installed or threading.current_thread() is not threading.main_thread():
            return
        self._is_installed = True
        self._previous = _before_finished_runs(signal.signal(signal.SIGTERM, self._note))
        if not self._is_guarding_forks:
            self._is_guarding_forks = True
            os.register_at_fork(before=self._block, after_in_parent=self._unblock, after_in_child=self._leave_to_child)

    def leave_loop(self) -> None:
        """Let SIGTERM stop nothing from now on, as the training is over, and a second one end the process."""
        if not self._is_over:
            self._is_over = True
            if self._told.is_set():
                self._tell_that_it_goes_on()

    def release(self) -> None:
        """Let SIGTERM do again what it did before, unless someone else has asked for it meanwhile, or it is over."""
        if self._is_over:
            return
        self._restore()

    def _restore(self) -> None:
        if threading.current_thread() is threading.main_thread() and signal.getsignal(signal.SIGTERM) == self._note:
            signal.signal(signal.SIGTERM, self._previous or signal.SIG_DFL)
            self._is_installed = False

    def _block(self) -> None:
        """Hold SIGTERM back from the thread that forks until the child has its own handler.

        A child that ignored it could not be ended by the process that made it, such as a pool of processes; and Python
        drops a signal that arrives while it prepares the child.
        """
        self._fork.mask = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGTERM}) if self._is_installed else None

    def _unblock(self) -> None:
        if self._fork.mask is not None:
            signal.pthread_sigmask(signal.SIG_SETMASK, self._fork.mask)

    def _leave_to_child(self) -> None:
        self._restore()
        self._unblock()

    def _note(self, number: int, frame: FrameType | None) -> None:
        is_first = not self._told.is_set()
        self._told_s = self._told_s or time.monotonic()
        self._told.set()
        if callable(self._previous):
            self._previous(number, frame)
        elif self._is_over and not is_first:
            signal.signal(number, self._previous or signal.SIG_DFL)
            signal.raise_signal(number)
        if self._is_over and is_first:
            self._tell_that_it_goes_on()

    def _tell_that_it_goes_on(self) -> None:
        log.warning(
            "SIGTERM came when the training loop was over: what follows it goes on, such as an export; "
            "a second SIGTERM ends the process"
        )


def _before_finished_runs(handler: Any) -> Any:
    """Return the handler that was there before those of runs whose training is over; a new run takes their place."""
    while isinstance(owner := getattr(handler, "__self__", None), StopSignal) and owner._is_over:
        handler = owner._previous
    return handler
