"""An epoch's order has every sample once, stays local to its windows, and follows from (seed, epoch) alone."""

from __future__ import annotations

import itertools
import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from strata.sharding import DataOrder, EpochOrder, ShardLayout

ORDERS = st.builds(
    EpochOrder,
    total_samples=st.integers(1, 400),
    shard_size=st.integers(1, 60),
    seed=st.integers(-(2**70), 2**70),
    epoch=st.integers(0, 5),
    shuffle=st.booleans(),
    window_shards=st.integers(1, 9),
)


@given(ORDERS)
def test_every_sample_has_one_position_and_every_position_one_sample(order: EpochOrder) -> None:
    positions = np.arange(order.total_samples)
    samples = order.samples_at(positions)
    assert np.array_equal(np.sort(samples), positions)
    assert np.array_equal(order.positions_of(samples), positions)


@given(ORDERS)
def test_a_window_reads_its_own_shards_and_no_others(order: EpochOrder) -> None:
    samples = order.samples_at(np.arange(order.total_samples))
    windows = order.ranks_of(samples // order.shard_size) // order.window_shards
    assert (np.diff(windows) >= 0).all()


@given(ORDERS.filter(lambda order: order.window_shards == 1))
def test_a_shard_read_alone_is_the_shard_read_in_the_epoch(order: EpochOrder) -> None:
    whole = order.samples_at(np.arange(order.total_samples))
    parts = [order.samples_of(shard) for shard in order.shuffle_shards().tolist()]
    assert np.array_equal(np.concatenate(parts), whole)
    shard = int(order.shuffle_shards()[0])
    assert np.array_equal(order.samples_of(shard, 1, 3), order.samples_of(shard)[1:3])
    assert set(order.samples_of(shard) // order.shard_size) == {shard}


@given(ORDERS)
def test_only_the_last_shard_is_shorter(order: EpochOrder) -> None:
    lengths = order.lengths_of(np.arange(order.num_shards))
    assert (lengths[:-1] == order.shard_size).all()
    assert 1 <= lengths[-1] <= order.shard_size
    assert lengths.sum() == order.total_samples


def test_without_shuffle_everything_is_in_its_natural_order() -> None:
    order = EpochOrder(95, 10, shuffle=False, epoch=3, window_shards=4)
    assert order.samples_at(np.arange(95)).tolist() == list(range(95))
    assert order.shuffle_shards().tolist() == list(range(10))


@pytest.mark.parametrize("window_shards", [1, 16])
def test_epochs_and_seeds_are_uncorrelated(window_shards: int) -> None:
    total = 20_000
    orders = [
        EpochOrder(total, 64, seed=seed, epoch=epoch, window_shards=window_shards)
        for seed, epoch in itertools.product((0, 1), (0, 1, 2))
    ]
    places = [order.positions_of(np.arange(total)).astype(float) for order in orders]
    # Spearman's correlation of the shards' places, of which there are 313 (or 20 windows) to vary independently.
    independent = total / 64 / window_shards
    for first, second in itertools.combinations([np.arange(total, dtype=float), *places], 2):
        assert abs(np.corrcoef(first, second)[0, 1]) < 4.5 / math.sqrt(independent)


def test_over_the_epochs_a_sample_is_anywhere_in_the_epoch_equally_often() -> None:
    epochs, bins, total = 4_000, 20, 1_000
    places = np.array(
        [EpochOrder(total, 25, epoch=epoch, window_shards=4).positions_of(np.array([7]))[0] for epoch in range(epochs)]
    )
    observed = np.bincount(places * bins // total, minlength=bins)
    statistic = ((observed - epochs / bins) ** 2 / (epochs / bins)).sum()
    assert statistic < (bins - 1) + 5 * math.sqrt(2 * (bins - 1))


@pytest.mark.parametrize("total", [100, 10_000])
def test_no_samples_have_no_positions_and_no_positions_have_no_samples(total: int) -> None:
    order, nothing = EpochOrder(total, 10, window_shards=4), np.empty(0, dtype=np.int64)
    assert order.samples_at(nothing).tolist() == []
    assert order.positions_of(nothing).tolist() == []


def test_ten_billion_samples_need_no_memory() -> None:
    order = EpochOrder(10_000_000_000, 10_000, seed=1, window_shards=16)
    positions = np.random.default_rng(0).integers(0, order.total_samples, 1_000)
    assert np.array_equal(order.positions_of(order.samples_at(positions)), positions)


def test_golden_values_guard_the_order_of_running_epochs() -> None:
    order = EpochOrder(1_281_167, 10_000, seed=42, epoch=1)
    assert order.shuffle_shards()[:6].tolist() == [1, 50, 20, 93, 57, 19]
    assert order.samples_at(np.arange(4)).tolist() == [19660, 13709, 15243, 11424]
    mixed = EpochOrder(1_281_167, 10_000, seed=42, epoch=1, window_shards=16)
    assert mixed.samples_at(np.arange(4)).tolist() == [310169, 1154002, 1136579, 595932]


@pytest.mark.parametrize(
    ("parameters", "message"),
    [
        ({"total_samples": 0, "shard_size": 1}, "total_samples is 0; use 1 to"),
        ({"total_samples": -5, "shard_size": 1}, "total_samples is -5; use 1 to"),
        ({"total_samples": 2**63, "shard_size": 2**40}, "total_samples is 9223372036854775808; use 1 to"),
        ({"total_samples": 5, "shard_size": 0}, "shard_size is 0; use 1 or more"),
        ({"total_samples": 5, "shard_size": -1}, "shard_size is -1; use 1 or more"),
        ({"total_samples": 2**40, "shard_size": 1}, "use a larger shard_size"),
        ({"total_samples": 5, "shard_size": 1, "epoch": -1}, "epoch is -1; use 0 or more"),
        ({"total_samples": 5, "shard_size": 1, "window_shards": 0}, "window_shards is 0; use 1 or more"),
    ],
)
def test_bad_parameters_are_refused(parameters: dict[str, int], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        EpochOrder(**parameters)


def test_a_layout_shuffles_within_two_shards_or_more() -> None:
    with pytest.raises(ValueError, match="window_shards is 1; use 2 or more"):
        ShardLayout(total_samples=100, shard_size=10, window_shards=1)
    assert ShardLayout(total_samples=100, shard_size=10, window_shards=2).num_shards == 10


@pytest.mark.parametrize(("data_order", "window"), [("sticky", 1), ("dynamic", 1), ("global", 4)])
def test_only_the_global_order_shuffles_samples_across_shards(data_order: str, window: int) -> None:
    layout = ShardLayout(total_samples=100, shard_size=10, data_order=DataOrder(data_order), window_shards=4)
    assert layout.order(epoch=0).window_shards == window
