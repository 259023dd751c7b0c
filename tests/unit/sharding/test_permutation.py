"""The computed shuffle is a bijection that cannot be told from chance."""

from __future__ import annotations

import itertools
import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from strata.sharding import permute, unpermute
from strata.sharding.hashing import mix_integers

KEYS = st.integers(0, 2**64 - 1)


def chi_squared(observed: np.ndarray, expected: np.ndarray | float) -> float:
    """The distance of a chi-squared statistic from its mean, in standard deviations."""
    freedom = len(observed) - 1
    return float((((observed - expected) ** 2 / expected).sum() - freedom) / math.sqrt(2 * freedom))


@given(count=st.integers(1, 3_000), key=KEYS)
def test_every_item_has_its_own_place_and_finds_its_way_back(count: int, key: int) -> None:
    items = np.arange(count)
    places = permute(items, count, key)
    assert np.array_equal(np.sort(places), items)
    assert np.array_equal(unpermute(places, count, key), items)


@given(count=st.integers(1, 2**62), key=KEYS, data=st.data())
def test_any_item_of_any_count_is_computed_without_the_others(count: int, key: int, data: st.DataObject) -> None:
    items = np.array(data.draw(st.lists(st.integers(0, count - 1), min_size=1, max_size=20)))
    places = permute(items, count, key)
    assert ((places >= 0) & (places < count)).all()
    assert np.array_equal(unpermute(places, count, key), items)


@given(count=st.integers(1, 500), keys=st.lists(KEYS, min_size=1, max_size=5))
def test_one_key_per_item_is_the_same_as_one_key_at_a_time(count: int, keys: list[int]) -> None:
    items = np.tile(np.arange(count), len(keys))
    together = permute(items, count, np.repeat(np.array(keys, dtype=np.uint64), count))
    apart = np.concatenate([permute(np.arange(count), count, key) for key in keys])
    assert np.array_equal(together, apart)


@pytest.mark.parametrize(
    ("count", "first"),
    [
        (63, [25, 50, 43, 22, 20, 53, 10, 36]),
        (64, [28, 44, 15, 49, 40, 2, 22, 32]),
        (65, [24, 17, 53, 42, 14, 20, 4, 7]),
    ],
)
def test_the_shuffle_is_the_same_in_every_version(count: int, first: list[int]) -> None:
    """Another one would skip and repeat samples of every run that was begun before. Up to 63 it has more rounds."""
    assert permute(np.arange(8), count, 7).tolist() == first


def test_long_arrays_are_shuffled_like_their_slices() -> None:
    items = np.arange(100_000)
    whole = permute(items, 100_000, 5)
    assert np.array_equal(whole[70_000:70_010], permute(items[70_000:70_010], 100_000, 5))


@pytest.mark.parametrize("count", [2, 3, 5, 10, 63, 64, 1_000])
def test_over_many_keys_an_item_is_anywhere_equally_often_and_its_neighbour_too(count: int) -> None:
    trials = 6_000
    keys = np.array([mix_integers(trial) for trial in range(trials)], dtype=np.uint64)
    first, second = (permute(np.full(trials, item), count, keys) for item in (0, 1))
    for places in (first, second):
        assert chi_squared(np.bincount(places, minlength=count), trials / count) < 5
    if count > 2:
        distance = np.bincount((second - first) % count, minlength=count)[1:]
        assert chi_squared(distance, trials / (count - 1)) < 5


@pytest.mark.parametrize("count", [3, 4, 5])
def test_every_order_of_a_few_items_comes_up_equally_often(count: int) -> None:
    trials = 12_000
    keys = np.repeat(np.array([mix_integers(trial) for trial in range(trials)], dtype=np.uint64), count)
    orders = permute(np.tile(np.arange(count), trials), count, keys).reshape(trials, count)
    seen = dict.fromkeys(itertools.permutations(range(count)), 0)
    for order in orders.tolist():
        seen[tuple(order)] += 1
    assert chi_squared(np.array(list(seen.values())), trials / len(seen)) < 5


def test_two_keys_give_unrelated_orders() -> None:
    count = 20_000
    orders = [permute(np.arange(count), count, key).astype(float) for key in range(8)]
    for first, second in itertools.combinations([np.arange(count, dtype=float), *orders], 2):
        # Spearman's rank correlation: of two unrelated orders its standard deviation is 1 / sqrt(count - 1).
        assert abs(np.corrcoef(first, second)[0, 1]) < 4.5 / math.sqrt(count - 1)


def test_golden_values_guard_the_order_of_running_epochs() -> None:
    assert permute(np.arange(6), 6, 42).tolist() == [4, 2, 1, 3, 5, 0]
    assert permute(np.array([0, 1, 9_999_999_999]), 10_000_000_000, 42).tolist() == [4166896273, 1330877446, 9838724487]


@pytest.mark.parametrize("count", [0, -1, 2**62 + 1])
def test_a_count_that_cannot_be_shuffled_is_refused(count: int) -> None:
    with pytest.raises(ValueError, match=f"a shuffle of {count} items; use 1 to"):
        permute(np.array([0]), count, 1)
