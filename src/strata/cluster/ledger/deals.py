"""What was left of an epoch when a generation began on it, and who gets which of it.

A deal is remembered by what had been consumed before it: who holds what follows from that, so a snapshot stays small
however many shards there are.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np

from strata.cluster.ledger.epoch_ledger import EpochView
from strata.errors import OutOfOrderError
from strata.sharding import Assignment, DataOrder, DatasetParams, EpochOrder, RangeSet, StickyCursor, assign, spans_of
from strata.sharding.cursor import Spans

NOTHING: Spans = np.empty((0, 3), dtype=np.int64)
# A lease has at most so many rows; the next sequence brings the next ones. So no answer grows with the dataset.
MAX_LEASE_ROWS = 4_096
# Dealing a dataset of more shards takes so long that it is not done between two heartbeats.
LARGE_SHARDS = 50_000


class Deal(Protocol):
    """The samples of one epoch among the workers of one generation.

    A worker asks with sequence 1, 2, 3 and so on until it gets nothing; the same sequence gives the same again.
    """

    def take(self, worker_id: str, sequence: int) -> Spans:
        """Return what a worker is to read next."""

    def record(self) -> dict[str, Any]:
        """Return what must survive a restart of the coordinator."""


def deal(
    params: DatasetParams, epoch: int, consumed: RangeSet, workers: tuple[str, ...], assignment: Assignment
) -> Deal:
    """Deal what is left of an epoch."""
    order = params.order(epoch=epoch)
    if params.data_order is DataOrder.DYNAMIC:
        return LeasedDeal(order, consumed)
    if params.is_global:
        everything = spans_of(order, consumed.complement(order.total_samples))
        return WholeDeal(consumed, workers, dict.fromkeys(workers, everything))
    cursor = StickyCursor(epoch, consumed)
    return WholeDeal(consumed, workers, cursor.deal(order, params.dataset_id, workers, assignment))


@dataclass(frozen=True, eq=False)
class Preparation:
    """What an assignment, and a deal of an epoch, follow from: values that nobody changes, to work on in a thread."""

    params: DatasetParams
    workers: tuple[str, ...]
    previous: Assignment | None
    known: Assignment | None
    """The present generation's assignment, if it was worked out before."""
    view: EpochView | None
    """The epoch that is to be dealt, or None if only the assignment is asked for."""

    def is_same(self, other: Preparation) -> bool:
        """Whether the same would come of both."""
        if self.params != other.params or self.workers != other.workers or self.previous is not other.previous:
            return False
        if self.view is None or other.view is None:
            return self.view is other.view
        return self.view.is_same(other.view)

    def run(self) -> tuple[Assignment, Deal | None]:
        """Work it out; this takes seconds for millions of shards."""
        assignment = self.known
        if assignment is None:
            assignment = assign(self.params.dataset_id, self.params.num_shards, self.workers, self.previous)
        if self.view is None:
            return assignment, None
        consumed, _ = self.view.total()
        return assignment, deal(self.params, self.view.order.epoch, consumed, self.workers, assignment)


class WholeDeal:
    """Everything is dealt at once, and handed out :data:`MAX_LEASE_ROWS` rows at a time.

    In the sticky order leases are disjoint. In the global one all get the same: what is left of the one sequence, of
    which each takes its slice of every batch.
    """

    def __init__(self, consumed: RangeSet, workers: tuple[str, ...], leases: dict[str, Spans]) -> None:
        self._consumed = consumed
        self._workers = workers
        self._shard_leases = leases

    def take(self, worker_id: str, sequence: int) -> Spans:
        """Return the next rows of the worker's shard lease."""
        return self._shard_leases[worker_id][(sequence - 1) * MAX_LEASE_ROWS : sequence * MAX_LEASE_ROWS]

    def record(self) -> dict[str, Any]:
        """Return what must survive a restart of the coordinator."""
        return {"consumed": self._consumed.to_runs(), "workers": list(self._workers)}


class LeasedDeal:
    """Each sequence gets the next shard that nobody has, for as long as the generation lasts."""

    def __init__(self, order: EpochOrder, consumed: RangeSet) -> None:
        self._order = order
        self._consumed = consumed
        self._left = consumed.complement(order.total_samples)
        # Shards go in the order of the epoch, so one position tells which are gone.
        self._next = 0
        self._last: dict[str, tuple[int, Spans]] = {}

    def take(self, worker_id: str, sequence: int) -> Spans:
        """Lease the next shard to the worker."""
        last, spans = self._last.get(worker_id, (0, NOTHING))
        if sequence == last:
            return spans
        if sequence != last + 1:
            raise OutOfOrderError(worker_id, what="sequence", expected=last + 1, sent=sequence)
        left = self._left.within(self._next, self._order.total_samples)
        spans = NOTHING
        if left.count:
            rank = self._order.ranks_at(left.starts[:1])
            end = int((self._order.begins_of(rank) + self._order.lengths_of(self._order.shards_at(rank)))[0])
            spans = spans_of(self._order, left.within(int(left.starts[0]), end))
            self._next = end
        self._last[worker_id] = sequence, spans
        return spans

    def record(self) -> dict[str, Any]:
        """Return what must survive a restart of the coordinator."""
        last = {worker: [sequence, spans.tolist()] for worker, (sequence, spans) in sorted(self._last.items())}
        return {"consumed": self._consumed.to_runs(), "workers": [], "next": self._next, "last": last}

    def restore(self, record: dict[str, Any]) -> None:
        """Take over who holds what from :meth:`record`."""
        self._next = record["next"]
        self._last = {
            worker: (sequence, np.array(rows, dtype=np.int64).reshape(-1, 3))
            for worker, (sequence, rows) in record["last"].items()
        }
