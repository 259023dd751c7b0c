"""A mixture draws by weight, the same for any number of ranks, and resumes at the very next sample."""

from __future__ import annotations

import itertools
import json
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from strata.data.dataset import open_dataset
from strata.data.mixture import Draws, Mixture
from strata.errors import DamagedRecordError, PositionMismatchError
from tests.testbed.rows import MemoryRows


class Numbered(MemoryRows):
    """Rows that also say which dataset they are of."""

    def __init__(self, num_rows: int, number: int) -> None:
        super().__init__(num_rows)
        self.number = number

    def read(self, start: int, stop: int, columns: Any = None) -> Any:
        read = super().read(start, stop, ["id"])
        return type(read)({"id": read["id"] + 10_000 * self.number})

    @property
    def names(self) -> tuple[str, ...]:
        return ("id",)


def mixture(sizes: list[int], weights: list[float], *, seed: int = 0, when: Any = "stop", **options: Any) -> Mixture:
    datasets = [
        open_dataset(Numbered(size, number), **{"batch_size": 8, "order": "global", "shard_size": 9, **options})
        for number, size in enumerate(sizes)
    ]
    return Mixture(datasets, weights, seed=seed, when_exhausted=when)


def ids(batches: Any) -> list[int]:
    return [number for batch in batches for number in batch["id"].tolist()]


MIXES = st.lists(st.tuples(st.integers(1, 200), st.floats(0.05, 5)), min_size=1, max_size=4)


@given(mix=MIXES, seed=st.integers(0, 99))
def test_no_sample_comes_twice_and_the_mixture_stops_when_a_dataset_has_no_more(
    mix: list[tuple[int, float]], seed: int
) -> None:
    sizes, weights = [size for size, _ in mix], [weight for _, weight in mix]
    seen = ids(mixture(sizes, weights, seed=seed))
    assert len(set(seen)) == len(seen)
    given_by = np.bincount(np.array(seen, dtype=np.int64) // 10_000, minlength=len(sizes)).tolist() if seen else []
    following = int(Draws(seed, tuple(weights)).sources_at(0, len(seen), len(seen) + 1)[0])
    if seen:
        assert given_by[following] == sizes[following]
    assert all(count <= size for count, size in zip(given_by, sizes, strict=False))


@settings(max_examples=20)
@given(mix=MIXES, seed=st.integers(0, 99), when=st.sampled_from(["stop", "repeat"]), drop_last=st.booleans())
def test_batches_are_the_same_for_any_number_of_ranks(
    mix: list[tuple[int, float]], seed: int, when: str, drop_last: bool
) -> None:
    sizes, weights = [size for size, _ in mix], [weight for _, weight in mix]

    def batches(world_size: int) -> list[list[int]]:
        ranks = [
            mixture(
                sizes,
                weights,
                seed=seed,
                when=when,
                global_batch_size=12,
                drop_last=drop_last,
                rank=rank,
                world_size=world_size,
            )
            for rank in range(world_size)
        ]
        steps = itertools.islice(itertools.zip_longest(*ranks), 12)
        return [ids(filter(None, step)) for step in steps]

    assert batches(1) == batches(3)


@settings(max_examples=25)
@given(
    mix=MIXES,
    when=st.sampled_from(["stop", "repeat"]),
    stop=st.integers(0, 12),
    before=st.integers(1, 4),
    after=st.integers(1, 4),
)
def test_a_mixture_resumes_at_the_next_sample_with_another_number_of_ranks(
    mix: list[tuple[int, float]], when: str, stop: int, before: int, after: int
) -> None:
    sizes, weights = [size for size, _ in mix], [weight for _, weight in mix]

    def ranks(count: int) -> list[Mixture]:
        return [
            mixture(sizes, weights, when=when, global_batch_size=12, rank=rank, world_size=count)
            for rank in range(count)
        ]

    def steps(parts: list[Mixture], count: int) -> list[list[int]]:
        return [ids(filter(None, step)) for step in itertools.islice(itertools.zip_longest(*parts), count)]

    whole = steps(ranks(1), 12)
    first = ranks(before)
    begun = steps(first, min(stop, len(whole)))
    state = json.loads(json.dumps(first[0].state_dict()))
    assert state == json.loads(json.dumps(first[-1].state_dict())) or len(begun) == len(whole)
    resumed = ranks(after)
    for each in resumed:
        each.load_state_dict(state)
    assert begun + steps(resumed, 12 - len(begun)) == whole if len(begun) < len(whole) else begun == whole


def test_weights_are_shares_of_the_samples() -> None:
    counts = Draws(7, (1.0, 2.0, 5.0)).counts(0, 0, 80_000)
    assert np.abs(counts - [10_000, 20_000, 50_000]).max() < 600


def test_a_dataset_that_repeats_begins_its_next_epoch() -> None:
    mixed = iter(mixture([5, 50], [1, 1], when="repeat", batch_size=10))
    small = [number for number in ids(itertools.islice(mixed, 10)) if number < 10_000]
    passes = [small[at : at + 5] for at in range(0, len(small) - 5, 5)]
    assert len(passes) > 4
    assert all(sorted(each) == [0, 1, 2, 3, 4] for each in passes)
    assert len({tuple(each) for each in passes}) > 1


def test_each_epoch_of_a_mixture_draws_anew() -> None:
    mixed = mixture([100, 100], [1, 1])
    first, second = ids(mixed), ids(mixed)
    assert mixed.epoch == 2
    assert first[:20] != second[:20]
    mixed.set_epoch(1)
    assert ids(mixed) == second


def test_a_position_far_into_a_mixture_is_reached_without_reading_what_came_before() -> None:
    far = mixture([2_000_000, 2_000_000], [1, 3], when="repeat", shard_size=100)
    drawn = Draws(0, (1.0, 3.0)).counts(0, 0, 10_000_000).tolist()
    state = far.state_dict() | {"position": 10_000_000, "drawn": drawn}
    far.load_state_dict(state)
    batch = next(iter(far))
    assert len(batch["id"]) == 8
    assert far.state_dict()["position"] == 10_000_008


def test_a_state_of_another_mixture_is_refused() -> None:
    state = mixture([10, 10], [1, 1]).state_dict()
    for other in (mixture([10, 10], [1, 2]), mixture([10, 11], [1, 1]), mixture([10, 10], [1, 1], seed=1)):
        with pytest.raises(PositionMismatchError):
            other.load_state_dict(state)
    for damaged in ({**state, "drawn": [1]}, {**state, "position": 5}, {**state, "version": 9}):
        with pytest.raises(DamagedRecordError):
            mixture([10, 10], [1, 1]).load_state_dict(damaged)


def test_what_cannot_be_mixed_is_refused() -> None:
    dataset = open_dataset(MemoryRows(10), batch_size=2, order="global")
    for datasets, weights, message in (
        ([dataset], [1, 2], "1 datasets and 2 weights"),
        ([dataset], [0], "greater than 0"),
        ([open_dataset(MemoryRows(10), batch_size=2)], [1], "need order='global'"),
        ([dataset, open_dataset(MemoryRows(10), batch_size=3, order="global")], [1, 1], "the same batch size"),
        ([dataset, open_dataset(Numbered(10, 0), batch_size=2, order="global")], [1, 1], "choose the same"),
    ):
        with pytest.raises(ValueError, match=message):
            Mixture(datasets, weights)
    with pytest.raises(ValueError, match="when_exhausted is 'cry'"):
        Mixture([dataset], [1], when_exhausted="cry")
