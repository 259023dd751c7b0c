"""What was left of an epoch when a generation began on it, and who gets which of it.

A deal is remembered by what had been consumed before it: who holds what follows from that, so a snapshot stays small
however many shards there are.
"""

from __future__ import annotations

from typing import Any, Protocol

import numpy as np

from strata.errors import OutOfOrderError
from strata.sharding import Assignment, DataOrder, DatasetParams, EpochOrder, RangeSet, StickyCursor, spans_of
from strata.sharding.cursor import Spans

NOTHING: Spans = np.empty((0, 3), dtype=np.int64)


class Deal(Protocol):
    """The samples of one epoch among the workers of one generation.

    A worker takes its hand with ticket 1, 2, 3 and so on until it gets nothing; the same ticket gives the same again.
    """

    def take(self, worker_id: str, ticket: int) -> Spans:
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


class WholeDeal:
    """Everything is dealt at once, with the first ticket.

    In the sticky order hands are disjoint. In the global one all get the same: what is left of the one sequence, of
    which each takes its slice of every batch.
    """

    def __init__(self, consumed: RangeSet, workers: tuple[str, ...], hands: dict[str, Spans]) -> None:
        self._consumed = consumed
        self._workers = workers
        self._hands = hands

    def take(self, worker_id: str, ticket: int) -> Spans:
        """Return the worker's hand."""
        return self._hands[worker_id] if ticket == 1 else NOTHING

    def record(self) -> dict[str, Any]:
        """Return what must survive a restart of the coordinator."""
        return {"consumed": self._consumed.to_runs(), "workers": list(self._workers)}


class LeasedDeal:
    """Each ticket gets the next shard that nobody has, for as long as the generation lasts."""

    def __init__(self, order: EpochOrder, consumed: RangeSet) -> None:
        self._order = order
        self._consumed = consumed
        self._left = consumed.complement(order.total_samples)
        # Shards go in the order of the epoch, so one position tells which are gone.
        self._next = 0
        self._last: dict[str, tuple[int, Spans]] = {}

    def take(self, worker_id: str, ticket: int) -> Spans:
        """Lease the next shard to the worker."""
        last, spans = self._last.get(worker_id, (0, NOTHING))
        if ticket == last:
            return spans
        if ticket != last + 1:
            raise OutOfOrderError(worker_id, what="ticket", expected=last + 1, sent=ticket)
        left = self._left.within(self._next, self._order.total_samples)
        spans = NOTHING
        if left.count:
            rank = self._order.ranks_at(left.starts[:1])
            end = int((self._order.begins_of(rank) + self._order.lengths_of(self._order.shards_at(rank)))[0])
            spans = spans_of(self._order, left.within(int(left.starts[0]), end))
            self._next = end
        self._last[worker_id] = ticket, spans
        return spans

    def record(self) -> dict[str, Any]:
        """Return what must survive a restart of the coordinator."""
        last = {worker: [ticket, spans.tolist()] for worker, (ticket, spans) in sorted(self._last.items())}
        return {"consumed": self._consumed.to_runs(), "workers": [], "next": self._next, "last": last}

    def restore(self, record: dict[str, Any]) -> None:
        """Take over who holds what from :meth:`record`."""
        self._next = record["next"]
        self._last = {
            worker: (ticket, np.array(rows, dtype=np.int64).reshape(-1, 3))
            for worker, (ticket, rows) in record["last"].items()
        }
