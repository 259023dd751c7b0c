"""Decoded blocks that will be wanted again soon: of a block that is read in pieces, all but the first are free."""

from __future__ import annotations

import threading
from collections import OrderedDict
from typing import TYPE_CHECKING

from strata.data.single_flight import SingleFlight

if TYPE_CHECKING:
    from collections.abc import Callable, Hashable

    from strata.data.rows.columns import Columns


class BlockMemory:
    """Keeps blocks up to a limit of bytes, but always the last one; of many threads that want one, one decodes it."""

    def __init__(self, limit_bytes: int) -> None:
        self.limit_bytes = limit_bytes
        self._size_bytes = 0
        self._blocks: OrderedDict[Hashable, Columns] = OrderedDict()
        self._lock = threading.Lock()
        self._loading: SingleFlight[Hashable, Columns] = SingleFlight()

    def peek(self, key: Hashable) -> Columns | None:
        """Return the block if it is here."""
        with self._lock:
            return self._blocks.get(key)

    def get(self, key: Hashable, load: Callable[[], Columns]) -> Columns:
        """Return the block; call ``load`` only if no one has and no one does."""
        found = self._find(key)
        return self._loading.get(key, lambda: self._load(key, load)) if found is None else found

    def _find(self, key: Hashable) -> Columns | None:
        with self._lock:
            if (found := self._blocks.get(key)) is not None:
                self._blocks.move_to_end(key)
            return found

    def _load(self, key: Hashable, load: Callable[[], Columns]) -> Columns:
        # Once more: another thread may have been done just before this one became the owner.
        if (found := self._find(key)) is not None:
            return found
        columns = load()
        with self._lock:
            self._blocks[key] = columns
            self._size_bytes += columns.size_bytes
            while self._size_bytes > self.limit_bytes and len(self._blocks) > 1:
                _, oldest = self._blocks.popitem(last=False)
                self._size_bytes -= oldest.size_bytes
        return columns
