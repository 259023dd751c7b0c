"""Who says what a loader reads next."""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Iterator
from typing import Protocol

import numpy as np

from strata.data.loading.position import Position, Row
from strata.data.loading.shares import BatchCut, lease_of
from strata.sharding.cursor import GlobalCursor, Spans, StickyCursor, span_ranges, spans_of
from strata.sharding.order import EpochOrder
from strata.sharding.ranges import RangeSet
from strata.sharding.shard_layout import ShardLayout


class Dealer(Protocol):
    """Where a loader's work comes from.

    It is asked from one thread at a time, beside the training loop, and may block, for a bounded time. It is asked anew
    for each iteration: what was dealt before and was not delivered must be dealt again. In ``global`` order it cuts the
    batches and drops what ``drop_last`` drops, because only it knows the batch of all ranks.
    """

    def deal(self, epoch: int) -> Iterator[Spans]:
        """Yield chunks of rows (shard, start, stop) in reading order, until the epoch has no more for this worker.

        In ``global`` order a row is (0, start, stop), positions of the whole epoch, and each row is one batch.
        """
        ...


class LocalDealer:
    """Deals what a position leaves, as the coordinator would, without asking anyone.

    Each rank deals for itself and all agree, as long as they began at the same state.
    """

    def __init__(self, layout: ShardLayout, position: Position, cut: BatchCut) -> None:
        self._layout = layout
        self._position = position
        self._cut = cut

    def deal(self, epoch: int) -> Iterator[Spans]:
        """Yield what is left of the epoch for this share."""
        cursor, order, share = self._position.cursor(epoch), self._layout.order(epoch=epoch), self._cut.share
        origin = self._position.origin(epoch)
        if isinstance(cursor, GlobalCursor):
            assert isinstance(origin, GlobalCursor)
            # Workers take turns counted from where all began, whoever of them is ahead now.
            start = origin.position if share.num_workers > 1 else cursor.position
            skip = -(-(cursor.position - start) // self._cut.global_batch_size)
            yield from self._cut.cut(start, order.total_samples, skip=skip, turn=self._position.turn)
        elif share.parts == 1:
            yield spans_of(order, cursor.remaining(order))
        else:
            # Dealt is what was left for all when they began together: of the others' progress since, this one knows
            # nothing. Of its own part it then leaves out what it delivered.
            assert isinstance(origin, StickyCursor)
            yield _without(lease_of(origin, order, share.part, share.parts), cursor, order)


class SharedDealer:
    """Deals shards on demand to several loaders of one process, so that a slow one takes fewer; each shard once.

    A loader that begins to iterate again first gets back what it had been dealt and did not deliver.
    """

    def __init__(self, layout: ShardLayout, position: Position) -> None:
        """``position`` is where all of them begin; each then keeps its own."""
        self._layout = layout
        self._origin = position
        self._lock = threading.Lock()
        self._left: dict[int, deque[Row]] = {}

    def member(self, position: Position) -> Dealer:
        """Return the face of this dealer for one loader."""
        return _Member(self, self._layout, position)

    def take(self, epoch: int) -> Row | None:
        """Take the next shard of the epoch, or None when there is no more."""
        with self._lock:
            if epoch not in self._left:
                cursor = self._origin.cursor(epoch)
                order = self._layout.order(epoch=epoch)
                spans = spans_of(order, cursor.remaining(order))
                self._left[epoch] = deque(tuple(row) for row in spans.tolist())
            left = self._left[epoch]
            return left.popleft() if left else None


class _Member:
    """One loader of a :class:`SharedDealer`."""

    def __init__(self, shared: SharedDealer, layout: ShardLayout, position: Position) -> None:
        self._shared = shared
        self._layout = layout
        self._position = position
        self._dealt: dict[int, list[Row]] = {}

    def deal(self, epoch: int) -> Iterator[Spans]:
        """Yield one shard at a time, each when it is asked for."""
        dealt = self._dealt.setdefault(epoch, [])
        if dealt:
            cursor = self._position.cursor(epoch)
            assert isinstance(cursor, StickyCursor)
            rows = np.array(dealt, dtype=np.int64)
            yield _without(rows, cursor, self._layout.order(epoch=epoch))
        while (row := self._shared.take(epoch)) is not None:
            dealt.append(row)
            yield np.array([row], dtype=np.int64)


def _without(spans: Spans, cursor: StickyCursor, order: EpochOrder) -> Spans:
    """Return what of the spans the cursor leaves."""
    return spans_of(order, RangeSet(*span_ranges(order, spans)).intersection(cursor.remaining(order)))
