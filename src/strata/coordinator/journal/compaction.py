"""When the journal is compacted: a snapshot in place of its entries, so that a restart replays few. Pure."""

from __future__ import annotations

from collections.abc import Iterable

from strata.coordinator.journal.entries import encode_entry
from strata.coordinator.journal.protocol import Entry

# A snapshot is due after so many entries. A large one counts once more for each of these bytes.
SNAPSHOT_ENTRIES = 10_000
ENTRY_BYTES = 4 << 10
# All wait while a large state is copied for one, so it takes at most a two-hundredth of the time.
SHARE = 200
# Above so many entries a restart would take long, and it is due whatever it costs.
MAX_ENTRIES = 200_000


class Compaction:
    """How many entries there are since the last snapshot, and when the next one is due."""

    def __init__(self) -> None:
        self._entries = 0
        self._is_wanted = False
        self._not_before_s = 0.0

    def begin(self, entries: int) -> None:
        """The journal was read: it holds so many entries after its snapshot."""
        self._entries = entries

    def want(self) -> None:
        """Compact with the next write, because that may free what a tenant needs."""
        self._is_wanted = True

    def note_written(self, entries: Iterable[Entry]) -> None:
        """Count entries."""
        self._entries += _weigh(entries)

    def is_due(self, now_s: float, *, writing: Iterable[Entry]) -> bool:
        """Whether the entries that are about to be written should be followed by a snapshot."""
        entries = self._entries + _weigh(writing)
        if self._is_wanted or entries >= MAX_ENTRIES:
            return True
        return entries >= SNAPSHOT_ENTRIES and now_s >= self._not_before_s

    def began(self, now_s: float, *, took_s: float) -> None:
        """Note that the state was copied for a snapshot, and how long all waited for that."""
        self._entries = 0
        self._is_wanted = False
        self._not_before_s = now_s + SHARE * took_s


def _weigh(entries: Iterable[Entry]) -> int:
    return sum(1 + len(encode_entry(entry)) // ENTRY_BYTES for entry in entries)
