"""Being told to stop: SIGTERM asks a training loop to end after its step, instead of ending the process."""

from __future__ import annotations

import os
import signal
import threading
import time
from collections.abc import Callable
from types import FrameType
from typing import Any


class StopSignal:
    """Whether this process was asked to end. The handler is installed when someone looks, or by :meth:`install`."""

    def __init__(self) -> None:
        self._told = threading.Event()
        self._told_s = 0.0
        self._is_installed = False
        self._previous: Callable[[int, FrameType | None], Any] | int | signal.Handlers | None = None

    def is_set(self) -> bool:
        """Whether SIGTERM came since this process handles it."""
        return self._told.is_set()

    def waited_s(self) -> float:
        """How long ago it came; 0 if it did not."""
        return time.monotonic() - self._told_s if self._told.is_set() else 0.0

    def install(self) -> None:
        """Let SIGTERM ask from now on; a handler that was there before is called too."""
        # Only the main thread may set a handler; in others the process ends as it would.
        if self._is_installed or threading.current_thread() is not threading.main_thread():
            return
        self._is_installed = True
        self._previous = signal.signal(signal.SIGTERM, self._note)
        # A child that ignored it could not be ended by those who made it, such as a pool of processes.
        os.register_at_fork(after_in_child=self.release)

    def release(self) -> None:
        """Let SIGTERM do again what it did before, unless someone else has asked for it meanwhile."""
        if threading.current_thread() is threading.main_thread() and signal.getsignal(signal.SIGTERM) == self._note:
            signal.signal(signal.SIGTERM, self._previous or signal.SIG_DFL)
            self._is_installed = False

    def _note(self, number: int, frame: FrameType | None) -> None:
        self._told_s = self._told_s or time.monotonic()
        self._told.set()
        if callable(self._previous):
            self._previous(number, frame)
