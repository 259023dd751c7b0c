"""Who says what a loader reads next."""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Protocol

import numpy as np

from strata.data.position import Position, Row
from strata.sharding.arrangement import Arrangement
from strata.sharding.cursor import GlobalCursor, Spans, StickyCursor, span_ranges, spans_of
from strata.sharding.order import EpochOrder
from strata.sharding.permutation import Ints
from strata.sharding.ranges import RangeSet

# How many global batches are cut at a time: enough that arrays pay, few enough that the first comes at once.
_CHUNK_BATCHES = 512


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


@dataclass(frozen=True, kw_only=True)
class Share:
    """Which part of a dataset a loader gets: one of ``world_size`` ranks, and in it one of ``num_workers`` workers."""

    rank: int = 0
    world_size: int = 1
    worker: int = 0
    num_workers: int = 1

    def __post_init__(self) -> None:
        if not 0 <= self.rank < self.world_size:
            raise ValueError(f"rank is {self.rank} of world_size {self.world_size}; use 0 to world_size - 1")
        if not 0 <= self.worker < self.num_workers:
            raise ValueError(f"worker is {self.worker} of {self.num_workers}; use 0 to num_workers - 1")

    @property
    def part(self) -> int:
        """The number of this loader among all."""
        return self.rank * self.num_workers + self.worker

    @property
    def parts(self) -> int:
        """How many loaders there are."""
        return self.world_size * self.num_workers


class LocalDealer:
    """Deals what a position leaves, as the coordinator would, without asking anyone.

    Each rank deals for itself and all agree, as long as they began at the same state.
    """

    def __init__(
        self,
        arrangement: Arrangement,
        position: Position,
        share: Share,
        *,
        global_batch_size: int,
        drop_last: bool = False,
    ) -> None:
        self._arrangement = arrangement
        self._position = position
        self._share = share
        self._global_batch_size = global_batch_size
        self._drop_last = drop_last

    def deal(self, epoch: int) -> Iterator[Spans]:
        """Yield what is left of the epoch for this share."""
        cursor, order, share = self._position.cursor(epoch), self._arrangement.order(epoch=epoch), self._share
        origin = self._position.origin(epoch)
        if isinstance(cursor, GlobalCursor):
            assert isinstance(origin, GlobalCursor)
            # Workers take turns counted from where all began, whoever of them is ahead now.
            start = origin.position if share.num_workers > 1 else cursor.position
            yield from cut_global(
                start,
                order.total_samples,
                global_batch_size=self._global_batch_size,
                share=share,
                drop_last=self._drop_last,
                skip=-(-(cursor.position - start) // self._global_batch_size),
            )
        elif share.parts == 1:
            yield spans_of(order, cursor.remaining(order))
        else:
            # Dealt is what was left for all when they began together: of the others' progress since, this one knows
            # nothing. Of its own part it then leaves out what it delivered.
            assert isinstance(origin, StickyCursor)
            names = [f"{part:08d}" for part in range(share.parts)]
            hand = origin.deal(order, "shared", names)[names[share.part]]
            yield _without(hand, cursor, order)


def cut_global(
    start: int, stop: int, *, global_batch_size: int, share: Share, drop_last: bool = False, skip: int = 0
) -> Iterator[Spans]:
    """Yield the share's part of each global batch of positions [start, stop), a row for each batch, in chunks.

    The first ``skip`` global batches are left out, and still count for whose turn it is.
    A global batch is cut among ranks in sequence, evenly to within one; workers of a rank take turns by whole batches.
    So the sequence of global batches is the same for any number of ranks and workers. Of a last batch with fewer
    samples than ranks, the last ranks get none.
    """
    left = max(stop - start, 0)
    batches = left // global_batch_size if drop_last else -(-left // global_batch_size)
    begin = skip + (share.worker - skip) % share.num_workers
    for first in range(begin, batches, _CHUNK_BATCHES * share.num_workers):
        last = min(first + _CHUNK_BATCHES * share.num_workers, batches)
        begins = start + np.arange(first, last, share.num_workers, dtype=np.int64) * global_batch_size
        ends = np.minimum(begins + global_batch_size, stop)
        rows = slice_batches(begins, ends, rank=share.rank, world_size=share.world_size)
        yield rows[rows[:, 2] > rows[:, 1]]


def slice_batches(begins: Ints, ends: Ints, *, rank: int, world_size: int, block_size: int = 1) -> Spans:
    """Return a rank's row (0, start, stop) of each global batch [begin, end), empty where it gets none of it.

    A batch is cut into blocks of ``block_size``, the last one may be shorter, and the blocks go to the ranks in
    sequence, evenly to within one.
    """
    small, extra = np.divmod(-(-(ends - begins) // block_size), world_size)
    first = rank * small + np.minimum(rank, extra)
    last = first + small + (rank < extra)
    starts = np.minimum(begins + first * block_size, ends)
    stops = np.minimum(begins + last * block_size, ends)
    return np.stack((np.zeros_like(starts), starts, stops), axis=1)


class SharedDealer:
    """Deals shards on demand to several loaders of one process, so that a slow one takes fewer; each shard once.

    A loader that begins to iterate again first gets back what it had been dealt and did not deliver.
    """

    def __init__(self, arrangement: Arrangement, position: Position) -> None:
        """``position`` is where all of them begin; each then keeps its own."""
        self._arrangement = arrangement
        self._origin = position
        self._lock = threading.Lock()
        self._left: dict[int, deque[Row]] = {}

    def member(self, position: Position) -> Dealer:
        """Return the face of this dealer for one loader."""
        return _Member(self, self._arrangement, position)

    def take(self, epoch: int) -> Row | None:
        """Take the next shard of the epoch, or None when there is no more."""
        with self._lock:
            if epoch not in self._left:
                cursor = self._origin.cursor(epoch)
                order = self._arrangement.order(epoch=epoch)
                spans = spans_of(order, cursor.remaining(order))
                self._left[epoch] = deque(tuple(row) for row in spans.tolist())
            left = self._left[epoch]
            return left.popleft() if left else None


class _Member:
    """One loader of a :class:`SharedDealer`."""

    def __init__(self, shared: SharedDealer, arrangement: Arrangement, position: Position) -> None:
        self._shared = shared
        self._arrangement = arrangement
        self._position = position
        self._dealt: dict[int, list[Row]] = {}

    def deal(self, epoch: int) -> Iterator[Spans]:
        """Yield one shard at a time, each when it is asked for."""
        dealt = self._dealt.setdefault(epoch, [])
        if dealt:
            cursor = self._position.cursor(epoch)
            assert isinstance(cursor, StickyCursor)
            rows = np.array(dealt, dtype=np.int64)
            yield _without(rows, cursor, self._arrangement.order(epoch=epoch))
        while (row := self._shared.take(epoch)) is not None:
            dealt.append(row)
            yield np.array([row], dtype=np.int64)


def _without(spans: Spans, cursor: StickyCursor, order: EpochOrder) -> Spans:
    """Return what of the spans the cursor leaves."""
    return spans_of(order, RangeSet(*span_ranges(order, spans)).intersection(cursor.remaining(order)))
