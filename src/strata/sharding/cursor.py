"""Where a job is in its data: cursors that name no rank, so that they mean the same for any number of workers.

Both are values in the position space of an :class:`~strata.sharding.order.EpochOrder`. What was consumed is a set of
positions; what is left is its complement, and can be dealt to whoever is there now.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt

from strata.errors import DamagedRecordError, NoWorkersError
from strata.sharding.assignment import Assignment, assign_some
from strata.sharding.order import EpochOrder
from strata.sharding.permutation import Ints
from strata.sharding.ranges import RangeSet

# Rows of (shard, start, stop): positions [start, stop) of the shard, counted in the epoch's order of that shard.
# Where a window is more than one shard, a sample's shard says nothing of its position: rows are (0, start, stop) there,
# positions of the whole epoch.
Spans: TypeAlias = npt.NDArray[np.int64]


@dataclass(frozen=True)
class GlobalCursor:
    """The first ``position`` samples of the epoch's one order are consumed, and no others."""

    epoch: int = 0
    position: int = 0

    def __post_init__(self) -> None:
        if self.epoch < 0 or self.position < 0:
            raise ValueError(f"epoch {self.epoch}, position {self.position}; use 0 or more for both")

    def advance(self, samples: int) -> GlobalCursor:
        """Return the cursor after ``samples`` more samples were consumed by all workers together."""
        if samples < 0:
            raise ValueError(f"a cursor cannot go back by {-samples} samples; restore an earlier one")
        return GlobalCursor(self.epoch, self.position + samples)

    def merge(self, other: GlobalCursor) -> GlobalCursor:
        """Return what either has seen: the further of two cursors of one epoch."""
        _check_same_epoch(self.epoch, other.epoch)
        return GlobalCursor(self.epoch, max(self.position, other.position))

    def remaining(self, order: EpochOrder) -> RangeSet:
        """Return the positions that are left of the epoch."""
        _check_order(self.epoch, order)
        if self.position > order.total_samples:
            raise ValueError(f"position {self.position} of an epoch of {order.total_samples} samples")
        return RangeSet([self.position], [order.total_samples])

    def deal(self, order: EpochOrder, workers: Sequence[str]) -> dict[str, range]:
        """Return the positions that each worker gets of what is left, in the order of ``workers``, one by one in turn.

        However many workers take part, their next n positions together are the next n of the epoch.
        """
        _check_workers(workers)
        self.remaining(order)
        return {
            worker: range(self.position + turn, order.total_samples, len(workers))
            for turn, worker in enumerate(workers)
        }

    @property
    def consumed(self) -> RangeSet:
        """The positions that were consumed."""
        return RangeSet([0], [self.position])

    def to_json(self) -> dict[str, Any]:
        """Return the cursor as values that JSON can hold."""
        return {"order": "global", "epoch": self.epoch, "position": self.position}


@dataclass(frozen=True)
class StickyCursor:
    """What was consumed of each shard, as one set of positions of the epoch.

    Positions and not samples are recorded, because a worker consumes them in sequence: the set has about as many runs
    as there are workers, however many samples it holds.
    """

    epoch: int = 0
    consumed: RangeSet = field(default_factory=RangeSet)

    def __post_init__(self) -> None:
        if self.epoch < 0:
            raise ValueError(f"epoch is {self.epoch}; use 0 or more")

    def advance(self, order: EpochOrder, spans: Spans | Sequence[tuple[int, int, int]]) -> StickyCursor:
        """Return the cursor after the spans (shard, start, stop) were consumed; a sample cannot be consumed twice."""
        _check_order(self.epoch, order)
        added = span_positions(order, np.asarray(spans, dtype=np.int64).reshape(-1, 3))
        total = self.consumed.union(added)
        if total.count != self.consumed.count + added.count:
            again = next(both for start, stop in added for both in self.consumed.within(start, stop))
            raise ValueError(f"{_named(order, *again)} of epoch {self.epoch} were consumed before")
        return StickyCursor(self.epoch, total)

    def merge(self, other: StickyCursor) -> StickyCursor:
        """Return what either has seen."""
        _check_same_epoch(self.epoch, other.epoch)
        return StickyCursor(self.epoch, self.consumed.union(other.consumed))

    def remaining(self, order: EpochOrder) -> RangeSet:
        """Return the positions that are left of the epoch."""
        _check_order(self.epoch, order)
        if len(self.consumed.stops) and self.consumed.stops[-1] > order.total_samples:
            raise ValueError(f"position {self.consumed.stops[-1]} of an epoch of {order.total_samples} samples")
        return self.consumed.complement(order.total_samples)

    def deal(
        self,
        order: EpochOrder,
        dataset_id: str,
        workers: Sequence[str],
        previous: Assignment | None = None,
        *,
        weights: Mapping[str, int] | None = None,
    ) -> dict[str, Spans]:
        """Return the spans (shard, start, stop) that each worker gets of what is left, in the epoch's order.

        Shards that are not finished are dealt whole and evenly, to within one; with ``previous``, each stays with its
        owner where balance lets it.
        """
        _check_workers(workers)
        spans = spans_of(order, self.remaining(order))
        shards = np.unique(spans[:, 0])
        owners = assign_some(dataset_id, shards, workers, previous, weights=weights)
        owner_of_span = owners[np.searchsorted(shards, spans[:, 0])]
        by_owner = spans[np.argsort(owner_of_span, kind="stable")]
        ends = np.cumsum(np.bincount(owner_of_span, minlength=len(workers)))
        return dict(zip(sorted(workers), np.split(by_owner, ends[:-1]), strict=True))

    def to_json(self) -> dict[str, Any]:
        """Return the cursor as values that JSON can hold."""
        return {"order": "sticky", "epoch": self.epoch, "consumed": self.consumed.to_runs()}


def cursor_from_json(record: object) -> GlobalCursor | StickyCursor:
    """Return the cursor that ``to_json`` wrote, or raise DamagedRecordError."""
    match record:
        case {"order": "global", "epoch": int(epoch), "position": int(position)} if epoch >= 0 and position >= 0:
            return GlobalCursor(epoch, position)
        case {"order": "sticky", "epoch": int(epoch), "consumed": runs} if epoch >= 0:
            return StickyCursor(epoch, RangeSet.from_runs(runs))
    raise DamagedRecordError("cursor", f"{str(record)[:80]!r} has not the fields of a global or a sticky cursor")


def check_spans(order: EpochOrder, spans: Iterable[tuple[int, int, int]]) -> None:
    """Raise ValueError unless each span (shard, start, stop) lies in its shard.

    Numbers and not arrays, because every report of a worker is checked, and has one span or two.
    """
    # Positions of the whole epoch are those of one shard that has all samples.
    size = order.shard_size if order.window_shards == 1 else order.total_samples
    for shard, start, stop in spans:
        if not 0 <= shard * size < order.total_samples:
            raise ValueError(f"shard {shard} of a dataset that has 0 to {-(-order.total_samples // size) - 1}")
        length = min(size, order.total_samples - shard * size)
        if not 0 <= start <= stop <= length:
            raise ValueError(f"samples {start} to {stop} of shard {shard}, which has {length}")


def span_ranges(order: EpochOrder, spans: Spans) -> tuple[Ints, Ints]:
    """Return where each of the rows (shard, start, stop) starts and stops in the epoch."""
    begins = order.begins_of(order.ranks_of(spans[:, 0])) if order.window_shards == 1 else 0
    return begins + spans[:, 1], begins + spans[:, 2]


def span_positions(order: EpochOrder, spans: Spans) -> RangeSet:
    """Return the positions of rows (shard, start, stop), which must lie in their shards and not overlap."""
    check_spans(order, spans.tolist())
    starts, stops = span_ranges(order, spans)
    positions = RangeSet(starts, stops)
    if positions.count != (stops - starts).sum():
        raise ValueError("the spans overlap; give each sample once")
    return positions


def spans_of(order: EpochOrder, positions: RangeSet) -> Spans:
    """Return the runs as rows (shard, start, stop), in the order of the epoch."""
    if len(positions.starts) == 0:
        return np.empty((0, 3), dtype=np.int64)
    if order.window_shards > 1:
        return np.stack((np.zeros_like(positions.starts), positions.starts, positions.stops), axis=1)
    first, last = order.ranks_at(positions.starts), order.ranks_at(positions.stops - 1)
    pieces = last - first + 1
    run = np.repeat(np.arange(len(pieces)), pieces)
    ranks = first[run] + np.arange(len(run)) - np.repeat(np.cumsum(pieces) - pieces, pieces)
    shards, begins = order.shards_at(ranks), order.begins_of(ranks)
    starts = np.maximum(positions.starts[run] - begins, 0)
    stops = np.minimum(positions.stops[run] - begins, order.lengths_of(shards))
    return np.stack((shards, starts, stops), axis=1)


def _named(order: EpochOrder, start: int, stop: int) -> str:
    shard, first, last = spans_of(order, RangeSet([start], [stop]))[0].tolist()
    return f"samples {first} to {last} of shard {shard}"


def _check_order(epoch: int, order: EpochOrder) -> None:
    if order.epoch != epoch:
        raise ValueError(f"a cursor of epoch {epoch} with the order of epoch {order.epoch}; use that epoch's order")


def _check_same_epoch(first: int, second: int) -> None:
    if first != second:
        raise ValueError(f"cursors of epochs {first} and {second} cannot be merged; keep the later one")


def _check_workers(workers: Sequence[str]) -> None:
    if not workers:
        raise NoWorkersError("what is left of the epoch")
    if len(set(workers)) != len(workers):
        raise ValueError(f"a worker is given twice among {len(workers)}; give each once")
