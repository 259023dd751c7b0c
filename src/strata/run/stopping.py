"""Being told to stop: SIGTERM asks a training loop to end after its step, instead of ending the process."""

from __future__ import annotations

import signal
import threading
from collections.abc import Callable
from types import FrameType
from typing import Any


class StopSignal:
    """Whether this process was asked to end. It asks for the signal only when someone looks, or calls :meth:`heed`."""

    def __init__(self) -> None:
        self._told = threading.Event()
        self._is_heeded = False
        self._previous: Callable[[int, FrameType | None], Any] | int | signal.Handlers | None = None

    def is_told(self) -> bool:
        """Whether SIGTERM came since it is heeded."""
        return self._told.is_set()

    def heed(self) -> None:
        """Let SIGTERM ask from now on; a handler that was there before is called too."""
        # Only the main thread may set a handler; in others the process ends as it would.
        if self._is_heeded or threading.current_thread() is not threading.main_thread():
            return
        self._is_heeded = True
        self._previous = signal.signal(signal.SIGTERM, self._note)

    def release(self) -> None:
        """Let SIGTERM do again what it did before, unless someone else has asked for it meanwhile."""
        if threading.current_thread() is threading.main_thread() and signal.getsignal(signal.SIGTERM) == self._note:
            signal.signal(signal.SIGTERM, self._previous or signal.SIG_DFL)
            self._is_heeded = False

    def _note(self, number: int, frame: FrameType | None) -> None:
        self._told.set()
        if callable(self._previous):
            self._previous(number, frame)
