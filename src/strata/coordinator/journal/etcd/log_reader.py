"""The log reader: from keys of etcd, as read or as watched, to entries in their order, each once. Pure."""

from __future__ import annotations

from strata.coordinator.journal.etcd.records import Keys, decode_batch, decode_head, join_pieces
from strata.coordinator.journal.protocol import Entry
from strata.errors import JournalDamagedError
from strata.wire._generated import journal_pb2 as jp


class LogReader:
    """Reads a journal on from an entry that is known: what lies beyond the head is not told.

    ``where`` names the journal in errors.
    """

    def __init__(self, keys: Keys, *, applied: int, where: str) -> None:
        self._keys = keys
        self._where = where
        self.applied = applied
        """The number of the last entry that was told."""
        self.head: jp.Head | None = None
        self._pieces: dict[int, dict[int, bytes]] = {}

    def note(self, key: bytes, value: bytes) -> None:
        """Take one key as it was read, or as it was changed."""
        if key == self._keys.head:
            self.head = decode_head(value, where=self._where)
        elif key.startswith(self._keys.batches):
            number, _, piece = key.removeprefix(self._keys.batches).partition(b".")
            first = int(number, 16)
            # What was told is not needed, though it may be read again: watch and read may overlap.
            if first > self.applied:
                self._pieces.setdefault(first, {})[int(piece, 16)] = value

    def take(self) -> list[Entry]:
        """Return the entries up to the head that were not told; raise JournalDamagedError if one is missing."""
        entries: list[Entry] = []
        while self.head is not None and self.applied < self.head.last:
            first = self.applied + 1
            data = join_pieces(self._pieces.pop(first, {}))
            if data is None:
                raise JournalDamagedError(self._where, f"entry {first} is missing or damaged")
            number, batch = decode_batch(data, where=self._where)
            if number != first or not batch or self.applied + len(batch) > self.head.last:
                raise JournalDamagedError(self._where, f"the batch of entry {first} does not fit to its head")
            self.applied += len(batch)
            entries += batch
        return entries
