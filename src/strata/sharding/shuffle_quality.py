"""How random an order is, beside a full shuffle of the same samples: 1 is as random, 0 is not shuffled at all."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from strata.sharding.permutation import Ints, permute

# So many batches, evenly spread over the epoch, say what all of them are like.
_BATCHES = 64
# A batch is looked at by which of so many equal stretches of the dataset its samples are from.
_STRETCHES = 64
_REFERENCE_KEY = 0x5EED


@dataclass(frozen=True, slots=True)
class ShuffleQuality:
    """``displacement``: how far samples stand from their own place; ``mixing``: how varied each batch is.

    Both are ratios to a full shuffle. Data that is sorted by class or by source needs ``mixing``: an order that
    shuffles shards and then samples within each has a displacement near 1, and still batches from one place.
    """

    displacement: float
    mixing: float


def measure_shuffle(samples_at: Callable[[Ints], Ints], total: int, *, batch_size: int) -> ShuffleQuality:
    """Measure an order from some of its batches; ``samples_at`` returns the samples at positions of the epoch."""
    size = min(batch_size, total)
    begins = np.unique(np.linspace(0, total - size, min(_BATCHES, total // size)).astype(np.int64))
    positions = begins[:, None] + np.arange(size)
    flat = positions.ravel()
    found = samples_at(flat).reshape(positions.shape)
    full = permute(flat, total, _REFERENCE_KEY).reshape(positions.shape)
    return ShuffleQuality(
        displacement=_ratio(np.abs(found - positions).mean(), np.abs(full - positions).mean()),
        mixing=_ratio(_entropy(found, total), _entropy(full, total)),
    )


def _entropy(batches: Ints, total: int) -> float:
    """Return the mean entropy of where in the dataset the samples of a batch are from."""
    stretches = batches * _STRETCHES // total
    entropies = []
    for batch in stretches:
        shares = np.unique(batch, return_counts=True)[1] / len(batch)
        entropies.append(float(-(shares * np.log(shares)).sum()))
    return float(np.mean(entropies))


def _ratio(found: float, full: float) -> float:
    return 1.0 if full == 0 else float(found / full)
