"""A keyed shuffle of [0, count) that is computed, not stored: where an item goes costs no memory, at any count.

It is a Feistel network. An item is split into a digit of base ``high`` and one of base ``low``, both near the square
root of ``count``; each round adds a keyed hash of one digit to the other, which can always be undone by subtracting it.
``high * low`` is a little more than ``count``: what lands beyond it is sent through again until it does not (cycle
walking), which about one item in a square root of ``count`` needs.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import TypeAlias

import numpy as np
import numpy.typing as npt

from strata.sharding.hashing import U64, mix

Ints: TypeAlias = npt.NDArray[np.int64]

MAX_COUNT = 2**62
# Enough that tests of position, neighbours and whole orders see no difference from chance; the digits of a small
# count have few values, so that each round moves little.
_ROUNDS = 8
_ROUNDS_OF_SMALL = 16
_SMALL = 64
_HALF = np.uint64(32)
_ODD = np.uint64(0xD1342543DE82EF95)
_MULTIPLIER = np.uint64(0xBF58476D1CE4E5B9)
# Items are shuffled in slices whose working set stays in the processor's cache.
_SLICE = 1 << 15


def permute(items: Ints, count: int, keys: U64 | int) -> Ints:
    """Return where the shuffle puts each of ``items``; a bijection on [0, ``count``) for every key.

    ``keys`` is one key for all, or one for each item.
    """
    return _walk(items, count, keys, _Network.forward)


def unpermute(places: Ints, count: int, keys: U64 | int) -> Ints:
    """Return which items the shuffle puts at ``places``: the inverse of :func:`permute`."""
    return _walk(places, count, keys, _Network.backward)


class _Network:
    """The rounds of one shuffle; ``round_keys`` has a row per round, of one key for all items or one for each."""

    def __init__(self, count: int, round_keys: U64) -> None:
        high = math.isqrt(count - 1) + 1
        self._high = np.uint64(high)
        self._low = np.uint64(-(-count // high))
        self._rounds = list(enumerate(round_keys))

    def forward(self, items: U64) -> U64:
        high, low = self._split(items)
        for number, key in self._rounds:
            if number % 2 == 0:
                high += self._hash(low, key, self._high)
                high -= self._high * (high >= self._high)
            else:
                low += self._hash(high, key, self._low)
                low -= self._low * (low >= self._low)
        return high * self._low + low

    def backward(self, items: U64) -> U64:
        high, low = self._split(items)
        for number, key in reversed(self._rounds):
            if number % 2 == 0:
                high += self._high - self._hash(low, key, self._high)
                high -= self._high * (high >= self._high)
            else:
                low += self._low - self._hash(high, key, self._low)
                low -= self._low * (low >= self._low)
        return high * self._low + low

    def _split(self, items: U64) -> tuple[U64, U64]:
        high = items // self._low
        return high, items - high * self._low

    @staticmethod
    def _hash(digit: U64, key: U64, base: np.uint64) -> U64:
        hashed = digit * _ODD + key
        hashed ^= hashed >> np.uint64(29)
        hashed *= _MULTIPLIER
        # The upper half scaled to the base: as even as a remainder, without a division.
        return ((hashed >> _HALF) * base) >> _HALF


def _walk(items: Ints, count: int, keys: U64 | int, step: Callable[[_Network, U64], U64]) -> Ints:
    if not 1 <= count <= MAX_COUNT:
        raise ValueError(f"a shuffle of {count} items; use 1 to {MAX_COUNT}")
    rounds = np.arange(_ROUNDS_OF_SMALL if count < _SMALL else _ROUNDS, dtype=np.uint64)
    shared = mix(rounds + np.uint64(keys)) if isinstance(keys, int) else None
    result = np.empty(len(items), dtype=np.int64)
    for start in range(0, len(items), _SLICE):
        part = slice(start, start + _SLICE)
        round_keys = mix(np.add.outer(rounds, np.asarray(keys)[part])) if shared is None else shared
        walked = step(_Network(count, round_keys), items[part].astype(np.uint64))
        beyond = np.flatnonzero(walked >= np.uint64(count))
        while len(beyond):
            some_keys = round_keys[:, beyond] if shared is None else shared
            walked[beyond] = step(_Network(count, some_keys), walked[beyond])
            beyond = beyond[walked[beyond] >= np.uint64(count)]
        result[part] = walked
    return result
