"""What of a dataset could not be read and was left out, so that nobody has to guess later."""

from __future__ import annotations

import copy
import threading
from dataclasses import dataclass

from strata.errors import CorruptFileError


@dataclass(frozen=True, order=True, slots=True)
class SkippedRows:
    """Rows [first_row, first_row + num_rows) of a file that could not be read, and why; ``start`` in the dataset."""

    start: int
    file: str
    first_row: int
    num_rows: int
    reason: str


class Skips:
    """The rows that were skipped, each stretch once, however often it was tried. Threads may share it."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._rows: set[SkippedRows] = set()
        self._offset = 0

    def after(self, start: int) -> Skips:
        """Return a face of this one for rows that are counted from ``start`` on."""
        face = copy.copy(self)
        face._offset = self._offset + start
        return face

    def note(self, start: int, file: str, first_row: int, num_rows: int, error: CorruptFileError) -> None:
        """Keep that these rows could not be read."""
        with self._lock:
            self._rows.add(SkippedRows(self._offset + start, file, first_row, num_rows, str(error)))

    def listed(self) -> list[SkippedRows]:
        """Return all that was skipped so far, in the order of the dataset."""
        with self._lock:
            return sorted(self._rows)
