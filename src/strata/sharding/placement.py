"""Deciding who gets which shard: balanced to within one shard, moving no shard that need not move.

A worker's share is its weight's part of all shards, rounded down or up. Whoever holds more must give, whoever holds
less must get, and orphans (shards that nobody holds) must go somewhere. How many shards move is least when as many as
possible of those who hold enough may round up; the rest may only round down. *Which* shards move, and who rounds up
among equals, is left to the hash ring: a worker claims first the shards that the ring says are its own, so that a
worker that returns gets its warm shards back.
"""

from __future__ import annotations

from typing import TypeAlias

import numpy as np
import numpy.typing as npt

from strata.sharding.hashing import Domain, hash_text, mix_integers, spread
from strata.sharding.ring import Ring

Ints: TypeAlias = npt.NDArray[np.int64]
Shards: TypeAlias = npt.NDArray[np.int32]
Owners: TypeAlias = npt.NDArray[np.int32]
Mask: TypeAlias = npt.NDArray[np.bool_]

NOBODY = -1
# How many nodes a shard asks on the ring, one after the other, before it is dealt to whoever has room.
_LEVELS = 4
# Shards are hashed and looked up in slices that fit the processor's cache, however many there are.
_SLICE = 1 << 16
# Above this part of all workers, asking the ring who owns a shard is cheaper than first asking if it can matter.
_MANY_NEEDY = 0.1


def place(dataset_id: str, shard_ids: npt.NDArray[np.integer], owners: Owners, ring: Ring, weights: Ints) -> None:
    """Change ``owners`` (of each shard: an index into the ring's nodes, or NOBODY) to a balanced placement.

    Each worker ends with its weight's share of the shards, rounded down or up: with equal weights, the largest and
    the smallest number differ by at most one. No other such placement moves fewer shards.
    """
    placement = _Placement(dataset_id, shard_ids, owners, ring, weights)
    for level in range(_LEVELS):
        if placement.is_done():
            return
        placement.claim_by_ring(level)
    placement.deal_rest()


class _Placement:
    """Shares that are not yet met: what workers still need to get, and what others have to give."""

    def __init__(
        self,
        dataset_id: str,
        shard_ids: npt.NDArray[np.integer],
        owners: Owners,
        ring: Ring,
        weights: Ints,
    ) -> None:
        self._owners = owners
        self._shard_ids = shard_ids
        self._ring = ring
        self._dataset_hash = hash_text(dataset_id, Domain.DATASET)
        self._orphans = _where(owners == NOBODY)

        held = _count(owners, len(weights))
        total = int(weights.sum())
        lower = len(owners) * weights // total
        upper = lower + (len(owners) * weights % total != 0)
        rounds_up = (held >= upper) & (upper > lower)
        ups_left = len(owners) - int(lower.sum()) - int(np.count_nonzero(rounds_up))
        # Either there are workers left that may round up, or too many hold enough to do so and some must give one.
        self._get = _Quota(np.maximum(lower - held, 0), (upper > lower) & ~rounds_up, max(ups_left, 0))
        self._give = _Quota(np.maximum(held - upper, 0), rounds_up, max(-ups_left, 0))

    def is_done(self) -> bool:
        """Whether every share is met."""
        return self._get.is_met()

    def claim_by_ring(self, level: int) -> None:
        """Let workers that need shards claim those that name them as their ``level``-th node on the ring."""
        # A shard with an owner is warm there: only the first node that it names may claim it.
        shards, claimants = self._claims(self._orphans if level else self._free_shards(), level)
        while len(shards):
            taken = self._take(shards, claimants)
            # Each claimant may still get one and each owner may still give one, so every round moves a shard.
            assert taken.any()
            left = ~taken & self._get.open()[claimants] & self._is_free(self._owners[shards])
            shards, claimants = shards[left], claimants[left]
        self._orphans = self._orphans[self._owners[self._orphans] == NOBODY]

    def deal_rest(self) -> None:
        """Meet what is still open, in a fixed order: each giver's last shards go to whoever needs some."""
        # Another order for each dataset, so that no worker rounds up in all of them.
        order = np.argsort(spread(self._dataset_hash, np.arange(len(self._ring.nodes))), kind="stable")
        self._give.spend_budget(order)
        self._get.spend_budget(order)
        held = _where(np.append(self._give.firm > 0, False)[self._owners])[::-1]
        given = held[self._give.admit(self._owners[held])]
        shards = np.concatenate((self._orphans, np.sort(given)))
        self._owners[shards] = np.repeat(order, self._get.firm[order])

    def _claims(self, shards: Shards, level: int) -> tuple[Shards, Owners]:
        """Return which of ``shards`` are claimed at this level, and the worker that claims each."""
        ring, needy = self._ring, self._get.open()
        base = mix_integers(self._dataset_hash, level) if level else self._dataset_hash
        few = np.count_nonzero(needy) < _MANY_NEEDY * len(needy)
        claimed, claimants, count = np.empty_like(shards), np.empty(len(shards), dtype=np.int32), 0
        for start in range(0, len(shards), _SLICE):
            part = shards[start : start + _SLICE]
            keys = spread(base, self._shard_ids[part])
            if few:
                possible = ring.may_own(needy, keys)
                part, keys = part[possible], keys[possible]
            nodes = ring.lookup(keys)
            wanted = needy[nodes]
            end = count + int(np.count_nonzero(wanted))
            claimed[count:end], claimants[count:end] = part[wanted], nodes[wanted]
            count = end
        return claimed[:count], claimants[:count]

    def _take(self, shards: Shards, claimants: Owners) -> Mask:
        """Move as many of the claimed shards as both sides allow, the first ones first; return which."""
        taken = self._get.admit(claimants)
        givers = self._owners[shards]
        owned = np.flatnonzero(taken & (givers != NOBODY))
        taken[owned] = self._give.admit(givers[owned])
        self._get.settle(claimants[taken])
        self._give.settle(givers[taken])
        self._owners[shards[taken]] = claimants[taken]
        return taken

    def _is_free(self, owners: Owners) -> Mask:
        # Index -1 (NOBODY) of the table means an orphan, which is always free to go.
        return np.append(self._give.open(), True)[owners]

    def _free_shards(self) -> Shards:
        return self._orphans if self._give.is_met() else _where(self._is_free(self._owners))


class _Quota:
    """How many shards each worker still must get (or give), as counts that only fall.

    Workers marked ``optional`` may get (or give) one more, which is how they round up (or down), as long as the
    budget for that lasts.
    """

    def __init__(self, firm: Ints, optional: Mask, budget: int) -> None:
        self.firm = firm
        self._optional = optional
        self._budget = budget

    def is_met(self) -> bool:
        return self._budget == 0 and not self.firm.any()

    def open(self) -> Mask:
        """Return for which workers the quota is not met."""
        must: Mask = self.firm > 0
        return must | self._optional if self._budget else must

    def admit(self, workers: Owners) -> Mask:
        """Return which items may count, given the worker of each: the first ones of every worker."""
        # NumPy sorts 16-bit integers by radix, several times faster than wider ones.
        narrow = workers.astype(np.uint16 if len(self.firm) <= 1 << 16 else np.uint32)
        order = np.argsort(narrow, kind="stable")
        sizes = _count(workers, len(self.firm))
        starts = np.cumsum(sizes) - sizes
        limits = self.firm.copy()
        if self._budget:
            more = np.flatnonzero(self._optional & (sizes > self.firm))
            extra_items = order[starts[more] + self.firm[more]]
            limits[more[np.argsort(extra_items)[: self._budget]]] += 1
        beyond = np.maximum(sizes - limits, 0)
        refused = np.repeat(starts + limits - (np.cumsum(beyond) - beyond), beyond) + np.arange(beyond.sum())
        admitted = np.ones(len(workers), dtype=np.bool_)
        admitted[order[refused]] = False
        return admitted

    def settle(self, workers: Owners) -> None:
        """Count off admitted items, given the worker of each."""
        counts = _count(workers, len(self.firm))
        used_option = counts > self.firm
        np.maximum(self.firm - counts, 0, out=self.firm)
        self._optional &= ~used_option
        self._budget -= int(np.count_nonzero(used_option))

    def spend_budget(self, order: Ints) -> None:
        """Turn what is left of the budget into firm counts of the first workers in ``order``."""
        self.firm[order[self._optional[order]][: self._budget]] += 1
        self._budget = 0


def _count(workers: Owners, num_workers: int) -> Ints:
    """Return how many items each worker has; those of NOBODY do not count."""
    counts = np.zeros(num_workers, dtype=np.int64)
    # In slices, because bincount makes a copy of what it counts in 64-bit integers.
    for start in range(0, len(workers), _SLICE):
        counts += np.bincount(workers[start : start + _SLICE] + 1, minlength=num_workers + 1)[1:]
    return counts


def _where(mask: Mask) -> Shards:
    return np.flatnonzero(mask).astype(np.int32)
