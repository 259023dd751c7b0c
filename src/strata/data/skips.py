"""What of a dataset could not be read and was left out, so that nobody has to guess later."""

from __future__ import annotations

import threading
from dataclasses import dataclass


@dataclass(frozen=True, order=True, slots=True)
class SkippedRows:
    """Rows [first_row, first_row + num_rows) of a file that could not be read, and why.

    The first of them is sample ``first_sample`` of the dataset, and the others follow it.
    """

    file: str
    first_row: int
    num_rows: int
    first_sample: int
    reason: str


class Skips:
    """The rows that were skipped, each stretch once, however often it was tried. Threads may share it."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._rows: set[SkippedRows] = set()

    def note(self, rows: SkippedRows) -> None:
        """Keep that these rows could not be read."""
        with self._lock:
            self._rows.add(rows)

    def listed(self) -> list[SkippedRows]:
        """Return all that was skipped so far, by file and row."""
        with self._lock:
            return sorted(self._rows)
