"""The measure of a shuffle tells orders apart as their rules would have it, beside those of other loaders."""

from __future__ import annotations

import numpy as np
import pytest

from strata.sharding import EpochOrder
from strata.sharding.permutation import Ints
from strata.sharding.shuffle_quality import ShuffleQuality, measure_shuffle

TOTAL, SHARD, BATCH, WINDOW = 1 << 18, 1 << 10, 256, 16


def of_list(order: Ints) -> ShuffleQuality:
    return measure_shuffle(lambda positions: order[positions], len(order), batch_size=BATCH)


def of_strata(*, window_shards: int) -> ShuffleQuality:
    order = EpochOrder(TOTAL, SHARD, seed=3, epoch=1, window_shards=window_shards)
    return measure_shuffle(order.samples_at, TOTAL, batch_size=BATCH)


def shuffle_as_litdata(chance: np.random.Generator) -> Ints:
    """LitData's rule: chunks in random order, and the items within each chunk in random order."""
    chunks = chance.permutation(TOTAL // SHARD)
    return np.concatenate([chunk * SHARD + chance.permutation(SHARD) for chunk in chunks])


def shuffle_as_py1e(chance: np.random.Generator, *, block_size: int) -> Ints:
    """The rule of MosaicML's py1e: each sample of a shard moves by chance within a block around the shard's place."""
    base = shuffle_as_litdata(chance)
    room = max(0, block_size - SHARD) / 2
    return base[np.argsort(np.arange(TOTAL) + chance.uniform(-room, room, TOTAL), kind="stable")]


def test_a_full_shuffle_is_one_and_no_shuffle_is_zero() -> None:
    full = of_list(np.random.default_rng(1).permutation(TOTAL))
    assert (full.displacement, full.mixing) == pytest.approx((1, 1), abs=0.03)
    none = of_list(np.arange(TOTAL))
    assert none.displacement == 0
    assert none.mixing < 0.05


def test_larger_windows_are_more_random() -> None:
    mixing = [of_strata(window_shards=window).mixing for window in (1, 2, 4, 16, 64, 256)]
    assert mixing == sorted(mixing)
    assert mixing[0] < 0.05
    assert mixing[-1] == pytest.approx(1, abs=0.02)


def test_sticky_order_is_as_random_as_litdata_and_global_order_as_py1e_that_holds_as_much() -> None:
    chance = np.random.default_rng(2)
    litdata, py1e = of_list(shuffle_as_litdata(chance)), of_list(shuffle_as_py1e(chance, block_size=WINDOW * SHARD))
    sticky, globally = of_strata(window_shards=1), of_strata(window_shards=WINDOW)
    assert sticky.mixing == pytest.approx(litdata.mixing, abs=0.02)
    assert globally.mixing == pytest.approx(py1e.mixing, abs=0.06)
    assert all(abs(each.displacement - 1) < 0.15 for each in (litdata, py1e, sticky, globally))


def test_a_dataset_of_three_batches_is_measured_by_each_of_them_once() -> None:
    asked: list[int] = []

    def samples_at(positions: Ints) -> Ints:
        asked.extend(positions.tolist())
        return positions

    measure_shuffle(samples_at, 3 * BATCH, batch_size=BATCH)
    assert asked == list(range(3 * BATCH))


def test_a_dataset_of_one_sample_can_be_measured() -> None:
    assert measure_shuffle(lambda positions: positions, 1, batch_size=8) == ShuffleQuality(1.0, 1.0)
