"""Which dataset each sample of a mixture is from: by weight, in quotas that hold for every block of samples."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from fractions import Fraction
from functools import cached_property, lru_cache

import numpy as np

from strata.sharding.hashing import mix_integers
from strata.sharding.permutation import Ints, permute

# Within so many samples, each dataset has its share to within a few samples, in random order.
BLOCK_SAMPLES = 1 << 12
# More samples than any run takes.
ENDLESS = 1 << 56
# Distinguishes the choice among datasets from the orders that are made of the same seed.
_CHOICE = 3


@dataclass(frozen=True)
class Stage:
    """From position ``start`` on, datasets are drawn by these weights."""

    start: int
    weights: tuple[float, ...]


@dataclass(frozen=True)
class Draws:
    """Which dataset the sample at each position of [0, ``total``) is from; a function of (seed, epoch, position).

    How many samples each dataset has given before a position is computed and not counted, so that any position is
    reached at once; at the ends of blocks it is the same in every epoch.
    """

    seed: int
    stages: tuple[Stage, ...]
    total: int

    def sources_at(self, epoch: int, start: int, stop: int) -> Ints:
        """Return the number of the dataset for each of positions [start, stop)."""
        parts = [
            self._sources_in(epoch, low, high)[max(start - low, 0) : stop - low]
            for low, high in self._blocks(start, stop)
        ]
        return np.concatenate(parts) if parts else np.empty(0, dtype=np.int64)

    def counts_before(self, epoch: int, position: int) -> Ints:
        """Return how many samples each dataset has given before a position."""
        counts = np.array(self._given_before(position), dtype=np.int64)
        for low, high in self._blocks(position, position + 1):
            counts = np.array(self._given_before(low), dtype=np.int64)
            counts += np.bincount(self._sources_in(epoch, low, high)[: position - low], minlength=len(counts))
        return counts

    @cached_property
    def _starts(self) -> list[int]:
        return [stage.start for stage in self.stages]

    @cached_property
    def _given_at_stages(self) -> list[tuple[int, ...]]:
        """How many samples each dataset has given when each stage begins."""
        given = [(0,) * len(self.stages[0].weights)]
        for stage, following in zip(self.stages, self.stages[1:], strict=False):
            quota = apportion(stage.weights, following.start - stage.start)
            given.append(tuple(before + more for before, more in zip(given[-1], quota, strict=True)))
        return given

    def _stage_at(self, position: int) -> int:
        return bisect_right(self._starts, position) - 1

    def _given_before(self, position: int) -> tuple[int, ...]:
        """Return the quotas of [0, position), which hold at the ends of blocks."""
        number = self._stage_at(position)
        stage = self.stages[number]
        quota = apportion(stage.weights, position - stage.start)
        return tuple(before + more for before, more in zip(self._given_at_stages[number], quota, strict=True))

    def _blocks(self, start: int, stop: int) -> Iterator[tuple[int, int]]:
        """Yield the blocks [low, high) that positions [start, stop) are in; none reaches beyond its stage."""
        at, stop = start, min(stop, self.total)
        while at < stop:
            number = self._stage_at(at)
            begin = self.stages[number].start
            end = self.stages[number + 1].start if number + 1 < len(self.stages) else self.total
            low = begin + (at - begin) // BLOCK_SAMPLES * BLOCK_SAMPLES
            high = min(low + BLOCK_SAMPLES, end)
            yield low, high
            at = high

    def _sources_in(self, epoch: int, low: int, high: int) -> Ints:
        stage = self.stages[self._stage_at(low)]
        before = apportion(stage.weights, low - stage.start)
        after = apportion(stage.weights, high - stage.start)
        counts = tuple(more - less for less, more in zip(before, after, strict=True))
        return _shuffled(counts, mix_integers(self.seed, epoch, _CHOICE, low))


def apportion(weights: Sequence[float], count: int) -> list[int]:
    """Return how many of ``count`` samples each dataset gives: its share to within a few, never fewer for a larger one.

    Each dataset in turn takes its part of what those before it leave, rounded. So no count shrinks as ``count`` grows,
    which rounding all shares by themselves would not promise.
    """
    return list(_apportion(tuple(weights), count))


@lru_cache(maxsize=1_024)
def _apportion(weights: tuple[float, ...], count: int) -> tuple[int, ...]:
    left, rest = count, sum(map(Fraction, weights))
    taken = []
    for weight in weights[:-1]:
        share = Fraction(weight) / rest
        taken.append((2 * left * share.numerator + share.denominator) // (2 * share.denominator))
        left -= taken[-1]
        rest -= Fraction(weight)
    return (*taken, left)


def find_total(weights: Sequence[float], sizes: Sequence[int]) -> int:
    """Return how many samples can be drawn before one is drawn from a dataset that has no more."""
    low, high = 0, sum(sizes)
    while low < high:
        middle = (low + high + 1) // 2
        quota = apportion(weights, middle)
        if all(count <= size for count, size in zip(quota, sizes, strict=True)):
            low = middle
        else:
            high = middle - 1
    return low


@lru_cache(maxsize=64)
def _shuffled(counts: tuple[int, ...], key: int) -> Ints:
    """Return so many of each number, in random order."""
    sources = np.repeat(np.arange(len(counts), dtype=np.int64), counts)
    shuffled = sources[permute(np.arange(len(sources)), len(sources), key)]
    shuffled.flags.writeable = False
    return shuffled
