"""The mark beside a journal: the number of the last entry that anyone was told of.

It is written after the journal's own fsync and before the reply, so it is never ahead of the journal. It is not synced
itself: it survives the death of the process, and after a power cut it may be older, which only makes it tell less.
"""

from __future__ import annotations

import logging
import os
from pathlib import Path

import xxhash

log = logging.getLogger(__name__)

_SIZE_BYTES = 64


class JournalMark:
    """A file of one line beside a journal."""

    def __init__(self, journal: Path) -> None:
        self.path = journal.with_name(journal.name + "-mark")
        self._file: int | None = None

    def read(self) -> int | None:
        """Return the number, or None if there is no mark, or none that can be read."""
        try:
            line = self.path.read_bytes()
        except FileNotFoundError:
            return None
        number = line.partition(b" ")[0]
        if not number.isdigit() or _line(int(number)) != line:
            log.warning("%s is damaged and is ignored", self.path)
            return None
        return int(number)

    def write(self, number: int) -> None:
        """Set the mark; raise OSError if the disk does not take it."""
        if self._file is None:
            self._file = os.open(self.path, os.O_WRONLY | os.O_CREAT | os.O_CLOEXEC, 0o600)
        os.pwrite(self._file, _line(number), 0)

    def close(self) -> None:
        """Let go of the file."""
        if self._file is not None:
            os.close(self._file)
            self._file = None


def _line(number: int) -> bytes:
    digest = xxhash.xxh3_64_hexdigest(f"strata journal {number}".encode())
    return f"{number} {digest}".encode().ljust(_SIZE_BYTES - 1) + b"\n"
