"""Decoded blocks that will be wanted again soon: of a block that is read in pieces, all but the first are free."""

from __future__ import annotations

import threading
from collections import OrderedDict
from concurrent.futures import Future
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable, Hashable

    from strata.data.columns import Columns


class BlockMemory:
    """Keeps blocks up to a limit of bytes, but always the last one; of many threads that want one, one decodes it."""

    def __init__(self, limit_bytes: int) -> None:
        self.limit_bytes = limit_bytes
        self._size_bytes = 0
        self._blocks: OrderedDict[Hashable, Columns] = OrderedDict()
        self._loading: dict[Hashable, Future[Columns]] = {}
        self._lock = threading.Lock()

    def peek(self, key: Hashable) -> Columns | None:
        """Return the block if it is here."""
        with self._lock:
            return self._blocks.get(key)

    def get(self, key: Hashable, load: Callable[[], Columns]) -> Columns:
        """Return the block; call ``load`` only if no one has and no one does."""
        with self._lock:
            if (found := self._blocks.get(key)) is not None:
                self._blocks.move_to_end(key)
                return found
            loading = self._loading.get(key)
            if loading is None:
                mine = self._loading[key] = Future()
        if loading is not None:
            return loading.result()
        try:
            columns = load()
        except BaseException as error:
            with self._lock:
                del self._loading[key]
            mine.set_exception(error)
            raise
        with self._lock:
            del self._loading[key]
            self._blocks[key] = columns
            self._size_bytes += columns.size_bytes
            while self._size_bytes > self.limit_bytes and len(self._blocks) > 1:
                _, oldest = self._blocks.popitem(last=False)
                self._size_bytes -= oldest.size_bytes
        mine.set_result(columns)
        return columns
