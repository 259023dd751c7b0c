"""Which part of a dataset a loader gets, and which samples of each global batch that is."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from strata.data.option_checks import check_whole
from strata.sharding.cursor import Spans, StickyCursor
from strata.sharding.order import EpochOrder
from strata.sharding.permutation import Ints
from strata.sharding.shard_layout import ShardLayout

# How many global batches are cut at a time: enough that arrays pay, few enough that the first comes at once.
_CHUNK_BATCHES = 512


@dataclass(frozen=True, kw_only=True)
class Share:
    """Which part of a dataset a loader gets: one of ``world_size`` ranks, and in it one of ``num_workers`` workers."""

    rank: int = 0
    world_size: int = 1
    worker: int = 0
    num_workers: int = 1

    def __post_init__(self) -> None:
        check_whole("world_size", self.world_size, least=1)
        check_whole("rank", self.rank, least=0)
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


@dataclass(frozen=True, kw_only=True)
class BatchCut:
    """How the samples of an epoch become global batches, and these a share's batches."""

    global_batch_size: int
    share: Share
    drop_last: bool = False

    @property
    def batch_size(self) -> int:
        """How many samples of a batch one rank gets; in ``global`` order, about so many."""
        return self.global_batch_size // self.share.world_size

    def end(self, start: int, total: int) -> int:
        """Return the position at which an epoch is over whose batches are counted from ``start``."""
        return total - (total - start) % self.global_batch_size if self.drop_last else total

    def count(self, start: int, stop: int) -> int:
        """Return how many global batches positions [start, stop) are; every rank gets a part of each."""
        return -(-max(self.end(start, stop) - start, 0) // self.global_batch_size)

    def cut(self, start: int, stop: int, *, skip: int = 0, turn: int = 0) -> Iterator[Spans]:
        """Yield the share's part of each global batch of positions [start, stop), a row for each batch, in chunks.

        Workers take turns by whole batches; ``turn`` is the worker that gets the first. The first ``skip`` global
        batches are left out, and still count for whose turn it is. A global batch is cut among ranks in sequence,
        evenly to within one. So the sequence of global batches is the same for any number of ranks and workers. Of a
        last batch with fewer samples than ranks, the last ranks get an empty row: all ranks take equal steps.
        """
        share, size = self.share, self.global_batch_size
        batches = self.count(start, stop)
        begin = skip + (share.worker - turn - skip) % share.num_workers
        for first in range(begin, batches, _CHUNK_BATCHES * share.num_workers):
            last = min(first + _CHUNK_BATCHES * share.num_workers, batches)
            begins = start + np.arange(first, last, share.num_workers, dtype=np.int64) * size
            ends = np.minimum(begins + size, stop)
            yield slice_batches(begins, ends, rank=share.rank, world_size=share.world_size)


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


def lease_of(origin: StickyCursor, order: EpochOrder, part: int, parts: int) -> Spans:
    """Return the rows (shard, start, stop) that a part gets of what is left at ``origin``; all parts agree on it."""
    names = [f"{number:08d}" for number in range(parts)]
    return origin.deal(order, "shared", names)[names[part]]


def count_sticky_batches(layout: ShardLayout, cut: BatchCut) -> int:
    """Return how many batches a share gets of a whole epoch where each shard is read by one part."""
    share = cut.share
    lease = lease_of(StickyCursor(), layout.order(epoch=0), share.part, share.parts)
    samples = int((lease[:, 2] - lease[:, 1]).sum())
    return samples // cut.batch_size if cut.drop_last else -(-samples // cut.batch_size)
