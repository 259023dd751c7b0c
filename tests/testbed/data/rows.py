"""Rows in memory, to load from without files; some may be made unreadable, slow or counted."""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING

import numpy as np

from strata.data.rows.columns import Columns
from strata.errors import CorruptFileError

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence


class MemoryRows:
    """Rows whose column ``id`` is the number of the row and whose ``vector`` follows from it."""

    def __init__(self, num_rows: int, *, before_read: Callable[[int, int], None] | None = None) -> None:
        self._ids = np.arange(num_rows, dtype=np.int64)
        self._before_read = before_read
        self._lock = threading.Lock()
        self.reads: list[tuple[int, int]] = []

    def __reduce__(self) -> tuple[object, ...]:
        return MemoryRows, (self.num_rows,)

    @property
    def num_rows(self) -> int:
        return len(self._ids)

    @property
    def names(self) -> tuple[str, ...]:
        return ("id", "vector")

    def read(self, start: int, stop: int, columns: Sequence[str] | None = None) -> Columns:
        with self._lock:
            self.reads.append((start, stop))
        if self._before_read is not None:
            self._before_read(start, stop)
        ids = self._ids[start:stop]
        every = Columns({"id": ids, "vector": np.stack((ids * 2, ids * 3), axis=1)})
        return every if columns is None else every.select(columns)


def refuse_row(bad: int) -> Callable[[int, int], None]:
    """Return what makes every read of a range with this row fail."""

    def before_read(start: int, stop: int) -> None:
        if start <= bad < stop:
            raise CorruptFileError("part-0.bin", f"row {bad} is torn", kind="test", part="block 0", offset=8 * bad)

    return before_read
