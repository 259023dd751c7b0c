"""The order of one epoch: a bijection between positions in the epoch and samples of the dataset.

Shards are shuffled; then samples are shuffled within windows of consecutive shards, so that reading stays local to a
window. Everything follows from (seed, epoch): no process stores an order, and all agree on it. A window of one shard is
the ``sticky`` order, in which a shard is read by one worker; larger windows make the ``global`` order, one sequence for
any number of workers.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from enum import StrEnum
from functools import cached_property, lru_cache

import numpy as np

from strata.sharding.assignment import MAX_SHARDS
from strata.sharding.hashing import U64, mix_integers, spread
from strata.sharding.permutation import MAX_COUNT, Ints, permute, unpermute

GLOBAL_WINDOW_SHARDS = 16
# Up to this many shards, their order is kept once it was computed: looking a few up costs more to compute. The same
# goes for the samples of a small epoch.
_TABLE_SHARDS = 4_096
_TABLE_SAMPLES = 4_096


class DataOrder(StrEnum):
    """How the samples of an epoch come to the workers."""

    STICKY = "sticky"
    """A worker owns whole shards and keeps them from epoch to epoch: its caches stay warm."""
    GLOBAL = "global"
    """One sequence of samples for any number of workers: training is the same to the bit."""
    DYNAMIC = "dynamic"
    """As sticky, but a shard is leased when a worker has room for it: a slow worker takes fewer."""


@dataclass(frozen=True)
class EpochOrder:
    """Which sample stands at which position of an epoch; the position space is [0, total_samples).

    A *rank* is the place of a shard in the epoch's sequence of shards. With ``shuffle`` off, ranks, positions and
    samples are all in their natural order.
    """

    total_samples: int
    shard_size: int
    seed: int = 0
    epoch: int = 0
    shuffle: bool = True
    window_shards: int = 1

    def __post_init__(self) -> None:
        if not 1 <= self.total_samples <= MAX_COUNT:
            raise ValueError(f"total_samples is {self.total_samples}; use 1 to {MAX_COUNT}")
        if self.shard_size < 1:
            raise ValueError(f"shard_size is {self.shard_size}; use 1 or more")
        if self.num_shards > MAX_SHARDS:
            raise ValueError(
                f"{self.total_samples} samples in shards of {self.shard_size} make {self.num_shards} shards, more than "
                f"{MAX_SHARDS}; use a larger shard_size"
            )
        if self.epoch < 0:
            raise ValueError(f"epoch is {self.epoch}; use 0 or more")
        if self.window_shards < 1:
            raise ValueError(f"window_shards is {self.window_shards}; use 1 or more")

    @property
    def num_shards(self) -> int:
        """How many shards the dataset has; the last one may be shorter than the others."""
        return -(-self.total_samples // self.shard_size)

    def shuffle_shards(self) -> Ints:
        """Return all shards in the order of this epoch."""
        return self.shards_at(np.arange(self.num_shards))

    def shards_at(self, ranks: Ints) -> Ints:
        """Return the shards that have these ranks."""
        if not self.shuffle:
            return ranks
        if self.num_shards <= _TABLE_SHARDS:
            return _shard_table(self.num_shards, self._shard_key)[0][ranks]
        return permute(ranks, self.num_shards, self._shard_key)

    def ranks_of(self, shards: Ints) -> Ints:
        """Return the ranks of these shards."""
        if not self.shuffle:
            return shards
        if self.num_shards <= _TABLE_SHARDS:
            return _shard_table(self.num_shards, self._shard_key)[1][shards]
        return unpermute(shards, self.num_shards, self._shard_key)

    def lengths_of(self, shards: Ints) -> Ints:
        """Return how many samples these shards have."""
        return np.where(shards == self.num_shards - 1, self.shard_size - self._missing, self.shard_size)

    def begins_of(self, ranks: Ints) -> Ints:
        """Return the position at which the shard of each rank begins; only where a window is one shard."""
        assert self.window_shards == 1
        return self._begins(ranks)

    def ranks_at(self, positions: Ints) -> Ints:
        """Return the rank of the shard that each position is in; only where a window is one shard."""
        assert self.window_shards == 1
        return self._windows_at(positions)

    def samples_of(self, shard: int, start: int = 0, stop: int | None = None) -> Ints:
        """Return the samples of a shard in the order of this epoch, or [start, stop) of them; as ``begins_of``."""
        assert self.window_shards == 1
        length = self.shard_size - (self._missing if shard == self.num_shards - 1 else 0)
        places = np.arange(start, length if stop is None else min(stop, length))
        if self.shuffle:
            # A window is this shard: what ``samples_at`` does for any positions is little for these.
            key = spread(self._window_key, self.ranks_of(np.array([shard])))[0]
            places = permute(places, length, int(key))
        return shard * self.shard_size + places

    def samples_at(self, positions: Ints) -> Ints:
        """Return the sample that stands at each position."""
        if not self.shuffle:
            return positions
        return self._compute_samples(positions) if self.total_samples > _TABLE_SAMPLES else self._table[positions]

    def _compute_samples(self, positions: Ints) -> Ints:
        windows = self._windows_at(positions)
        mixed = self._mix(positions - self._begins(windows), windows, permute)
        slots, offsets = np.divmod(mixed, self.shard_size)
        ranks = windows * self.window_shards + self._from_slots(windows, slots)
        return self.shards_at(ranks) * self.shard_size + offsets

    def positions_of(self, samples: Ints) -> Ints:
        """Return the position at which each sample stands."""
        if not self.shuffle:
            return samples
        shards, offsets = np.divmod(samples, self.shard_size)
        windows, places = np.divmod(self.ranks_of(shards), self.window_shards)
        mixed = self._to_slots(windows, places) * self.shard_size + offsets
        return self._begins(windows) + self._mix(mixed, windows, unpermute)

    # A window is a run of ``window_shards`` ranks. In the one that has the short shard, that shard takes the last slot,
    # so that slots are of equal length everywhere and only the end of a window can be missing.

    def _begins(self, windows: Ints) -> Ints:
        return windows * self._window_size - (windows > self._short_window) * self._missing

    def _windows_at(self, positions: Ints) -> Ints:
        # Behind the short window, everything begins earlier by what it lacks.
        behind = positions >= (self._short_window + 1) * self._window_size - self._missing
        return (positions + behind * self._missing) // self._window_size

    def _mix(self, offsets: Ints, windows: Ints, shuffle: Callable[[Ints, int, U64 | int], Ints]) -> Ints:
        """Shuffle offsets within their windows, each window by a key of its own."""
        if len(windows) == 0:
            return offsets
        first, last = int(windows.min()), int(windows.max())
        if first == last:
            return shuffle(offsets, self._length(first), int(spread(self._window_key, windows[:1])[0]))
        mixed = np.empty_like(offsets)
        special = {self._short_window, self._last_window}
        groups = [(windows == window, self._length(window)) for window in sorted(special)]
        groups.append((~np.isin(windows, list(special)), self._window_size))
        for group, length in groups:
            if group.any():
                mixed[group] = shuffle(offsets[group], length, spread(self._window_key, windows[group]))
        return mixed

    def _length(self, window: int) -> int:
        shards = min(self.window_shards, self.num_shards - window * self.window_shards)
        return shards * self.shard_size - (window == self._short_window) * self._missing

    def _from_slots(self, windows: Ints, slots: Ints) -> Ints:
        moved = (windows == self._short_window) & (slots >= self._short_place)
        return np.where(
            moved & (slots == self._short_slot), self._short_place, slots + (moved & (slots < self._short_slot))
        )

    def _to_slots(self, windows: Ints, places: Ints) -> Ints:
        in_short = windows == self._short_window
        return np.where(
            in_short & (places == self._short_place),
            self._short_slot,
            places - (in_short & (places > self._short_place)),
        )

    @cached_property
    def _table(self) -> Ints:
        """The samples of the whole epoch."""
        return self._compute_samples(np.arange(self.total_samples))

    @cached_property
    def _shard_key(self) -> int:
        return mix_integers(self.seed, self.epoch, 1)

    @cached_property
    def _window_key(self) -> int:
        return mix_integers(self.seed, self.epoch, 2)

    @cached_property
    def _window_size(self) -> int:
        return self.window_shards * self.shard_size

    @cached_property
    def _missing(self) -> int:
        """How many samples the last shard lacks."""
        return self.num_shards * self.shard_size - self.total_samples

    @cached_property
    def _short_rank(self) -> int:
        return int(self.ranks_of(np.array([self.num_shards - 1]))[0])

    @cached_property
    def _short_window(self) -> int:
        return self._short_rank // self.window_shards

    @cached_property
    def _short_place(self) -> int:
        return self._short_rank % self.window_shards

    @cached_property
    def _short_slot(self) -> int:
        return min(self.window_shards, self.num_shards - self._short_window * self.window_shards) - 1

    @cached_property
    def _last_window(self) -> int:
        return (self.num_shards - 1) // self.window_shards


@lru_cache(maxsize=64)
def _shard_table(num_shards: int, key: int) -> tuple[Ints, Ints]:
    """Return the shard of each rank and the rank of each shard."""
    ranks = np.arange(num_shards)
    return permute(ranks, num_shards, key), unpermute(ranks, num_shards, key)
