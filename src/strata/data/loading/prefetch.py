"""Reading ahead: threads read the next pages while the training loop uses this one."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator
from concurrent.futures import Future

from strata.data.loading.dealer import Dealer
from strata.data.loading.pages import Page, PageSource
from strata.data.loading.threads import Threads
from strata.sharding.cursor import Spans

# More pages than this keep no thread busier, however small they are.
_PAGES_PER_THREAD = 4


class Prefetch:
    """The pages of an epoch, in the order dealt, read ahead by threads.

    What waits to be used is bounded by ``limit_bytes`` and by a few pages, but each thread may always read one; the
    page in use comes on top. An error of reading a page comes out where that page would. Closing this ends the threads.
    """

    def __init__(self, dealer: Dealer, source: PageSource, epoch: int, *, threads: int, limit_bytes: int) -> None:
        self._source = source
        self.epoch = epoch
        self._threads = threads
        self._limit_bytes = limit_bytes
        self._readers = Threads(threads, name="strata-read")
        # Dealing may wait for a coordinator, so it has a thread of its own, and one chunk is asked for ahead.
        self._dealing = Threads(1, name="strata-deal")
        self._chunks = dealer.deal(epoch)
        self._next_chunk: Future[Spans | None] | None = self._ask()
        self._planned: Iterator[Spans] = iter(())
        self._pending: deque[tuple[Spans, int, Future[Page]]] = deque()
        self._row_bytes = 0.0
        self._dealt_rows = 0

    def count_dealt(self) -> int | None:
        """Return how many rows were dealt, once the dealer has said that there are no more; never waits for it."""
        chunk = self._next_chunk
        if chunk is None:
            return self._dealt_rows
        is_answered = chunk.done() and not chunk.cancelled() and chunk.exception() is None
        return self._dealt_rows if is_answered and chunk.result() is None else None

    def __iter__(self) -> Iterator[tuple[Spans, Page]]:
        try:
            while True:
                self._fill()
                if not self._pending:
                    return
                spans, num_rows, future = self._pending.popleft()
                page = future.result()
                self._row_bytes = page.size_bytes / max(1, num_rows)
                # Before this page is used, so that the threads are busy meanwhile.
                self._fill()
                yield spans, page
                # A page is freed before the next one is waited for.
                del future, page
        finally:
            self.close()

    def close(self) -> None:
        """Let the threads end; one that is in the middle of a read ends with it."""
        self._readers.close()
        self._dealing.close()

    def _fill(self) -> None:
        while self._has_room():
            spans = next(self._planned, None)
            if spans is not None:
                num_rows = int((spans[:, 2] - spans[:, 1]).sum())
                self._pending.append((spans, num_rows, self._readers.submit(self._source.read, self.epoch, spans)))
                continue
            # Wait for the dealer only when there is nothing else to do.
            if self._next_chunk is None or (self._pending and not self._next_chunk.done()):
                return
            chunk = self._next_chunk.result()
            self._next_chunk = None if chunk is None else self._ask()
            self._dealt_rows += 0 if chunk is None else int((chunk[:, 2] - chunk[:, 1]).sum())
            self._planned = iter(()) if chunk is None else self._source.plan(chunk)

    def _ask(self) -> Future[Spans | None]:
        return self._dealing.submit(next, self._chunks, None)

    def _has_room(self) -> bool:
        if len(self._pending) < self._threads:
            return True
        # Until a page is there, nobody knows how large they are.
        waiting_bytes = sum(num_rows for _, num_rows, _ in self._pending) * self._row_bytes
        return 0 < waiting_bytes < self._limit_bytes and len(self._pending) < self._threads * _PAGES_PER_THREAD
