"""Being told to stop: SIGTERM asks a training loop to end after its step, instead of ending the process."""

from __future__ import annotations

import signal
import threading
from types import FrameType


class StopSignal:
    """Whether this process was asked to end. It asks for the signal only when someone looks, or calls :meth:`heed`."""

    def __init__(self) -> None:
        self._told = threading.Event()
        self._is_heeded = False

    def is_told(self) -> bool:
        """Whether SIGTERM came since it is heeded."""
        return self._told.is_set()

    def heed(self) -> None:
        """Let SIGTERM ask from now on; a handler that was there before is called too."""
        # Only the main thread may set a handler; in others the process ends as it would.
        if self._is_heeded or threading.current_thread() is not threading.main_thread():
            return
        self._is_heeded = True
        previous = signal.getsignal(signal.SIGTERM)

        def note(number: int, frame: FrameType | None) -> None:
            self._told.set()
            if callable(previous):
                previous(number, frame)

        signal.signal(signal.SIGTERM, note)
