"""A journal in memory that is as slow, and refuses as much, as a test wants."""

from __future__ import annotations

import threading
from collections.abc import Sequence

from strata.coordinator.journal import Entry, MemoryJournal
from strata.errors import JournalUnavailableError
from tests.testbed.pace import stretch


class SlowJournal(MemoryJournal):
    """A journal that waits to be told, and can refuse."""

    def __init__(self) -> None:
        super().__init__()
        self.gate = threading.Event()
        self.gate.set()
        self.full = False
        self.batches: list[int] = []

    def append(self, entries: Sequence[Entry]) -> None:
        assert self.gate.wait(stretch(10))
        if self.full:
            raise JournalUnavailableError("/state", "disk is full")
        self.batches.append(len(entries))
        super().append(entries)

    def snapshot(self, state: bytes) -> None:
        if self.full:
            raise JournalUnavailableError("/state", "disk is full")
        super().snapshot(state)
