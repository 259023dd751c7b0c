"""Open files, to be used again: opening one costs more than reading a few rows from it."""

from __future__ import annotations

import threading
from collections import OrderedDict
from contextlib import contextmanager
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from strata.data.formats.protocol import Reader


class ReaderPool:
    """Readers by the number of their file; each is lent to one thread at a time. At most ``limit`` lie idle."""

    def __init__(self, open_reader: Callable[[int], Reader], *, limit: int) -> None:
        self._open = open_reader
        self._limit = limit
        self._idle: OrderedDict[int, list[Reader]] = OrderedDict()
        self._count = 0
        self._lock = threading.Lock()

    @contextmanager
    def lend(self, number: int) -> Iterator[Reader]:
        """Lend a reader of the file; after an error it is not used again."""
        with self._lock:
            idle = self._idle.pop(number, None)
            reader = idle.pop() if idle else None
            if reader is not None:
                self._count -= 1
            if idle:
                self._idle[number] = idle
        if reader is None:
            reader = self._open(number)
        yield reader
        with self._lock:
            self._idle.setdefault(number, []).append(reader)
            self._idle.move_to_end(number)
            self._count += 1
            while self._count > self._limit:
                _, dropped = self._idle.popitem(last=False)
                self._count -= len(dropped)
