"""SaveProgress: where a save is. Whoever does the work writes it; the handle of the save shows it."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Literal

if TYPE_CHECKING:
    from collections.abc import Callable

Phase = Literal["staging", "staged", "writing", "written", "committing", "committed", "failed", "skipped"]


class SaveProgress:
    """The phase and the bytes of one save, readable from any thread; ``moments`` are when each phase and event came.

    The ``observer`` is called with each phase and each event in between, before the work goes on; a test stops or kills
    a process there.
    """

    __slots__ = ("_observer", "bytes_done", "bytes_total", "moments", "phase", "waits_for")

    def __init__(self, bytes_total: int = 0, *, observer: Callable[[str], None] | None = None) -> None:
        self.phase: Phase = "staging"
        self.bytes_total = bytes_total
        self.bytes_done = 0
        self.waits_for: tuple[str, ...] = ()
        self.moments: dict[str, float] = {}
        self._observer = observer

    def enter(self, phase: Phase) -> None:
        """Begin a phase."""
        self.phase = phase
        self.mark(phase)

    def mark(self, event: str) -> None:
        """Note an event within a phase."""
        self.moments[event] = time.monotonic()
        if self._observer is not None:
            self._observer(event)

    def note_bytes(self, done: int) -> None:
        """Note how many bytes went to storage; from any thread, in any order."""
        self.bytes_done = max(self.bytes_done, done)
