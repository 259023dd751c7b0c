"""Hashes that are the same in every process, on every platform and in every version.

A text is hashed once with XXH3; what is numbered below it (a node's points, a dataset's shards) is spread from there
by an arithmetic mix, on whole arrays. Golden values in the tests guard both: changing either would move every shard
of every running job.
"""

from __future__ import annotations

from enum import IntEnum
from typing import TypeAlias

import numpy as np
import numpy.typing as npt
import xxhash

U64: TypeAlias = npt.NDArray[np.uint64]

_GOLDEN = np.uint64(0x9E3779B97F4A7C15)
_FIRST = np.uint64(0xBF58476D1CE4E5B9)
_SECOND = np.uint64(0x94D049BB133111EB)


class Domain(IntEnum):
    """What a text names; equal texts of different domains have unrelated hashes."""

    NODE = 1
    DATASET = 2
    KEY = 3


def hash_text(text: str, domain: Domain) -> int:
    """Return the 64-bit hash of ``text`` within ``domain``."""
    # surrogatepass: any Python string has a hash, also one that came from a badly encoded file name.
    return xxhash.xxh3_64_intdigest(text.encode("utf-8", "surrogatepass"), seed=domain)


def mix(values: U64) -> U64:
    """Return ``values`` with every input bit spread over all output bits; a bijection on 64 bits."""
    mixed = values ^ (values >> np.uint64(30))
    mixed *= _FIRST
    mixed ^= mixed >> np.uint64(27)
    mixed *= _SECOND
    mixed ^= mixed >> np.uint64(31)
    return mixed


def mix_integers(*integers: int) -> int:
    """Return one 64-bit hash of all ``integers`` in their order."""
    state = np.zeros(1, dtype=np.uint64)
    for integer in integers:
        state = mix((state ^ np.uint64(integer & 0xFFFF_FFFF_FFFF_FFFF)) + _GOLDEN)
    return int(state[0])


def spread(base: U64 | int, numbers: npt.NDArray[np.integer]) -> U64:
    """Return one hash for each of ``numbers`` below the hash ``base``; the two broadcast."""
    steps = numbers.astype(np.uint64)
    steps += np.uint64(1)
    steps *= _GOLDEN
    return mix(steps + np.asarray(base, dtype=np.uint64))
