"""A mixture draws by weight, the same for any number of ranks, and resumes at the very next sample."""

from __future__ import annotations

import itertools
import json
import pickle
import random
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from strata import Mixture, open_dataset
from strata.data import merge_states
from strata.data.draws import BLOCK_SAMPLES, Draws, Stage, apportion
from strata.errors import DamagedRecordError, PositionMismatchError
from tests.testbed.data.rows import MemoryRows, refuse_row


class Numbered(MemoryRows):
    """Rows that also say which dataset they are of."""

    def __init__(self, num_rows: int, number: int) -> None:
        super().__init__(num_rows)
        self.number = number

    def __reduce__(self) -> tuple[object, ...]:
        return Numbered, (self.num_rows, self.number)

    def read(self, start: int, stop: int, columns: Any = None) -> Any:
        read = super().read(start, stop, ["id"])
        return type(read)({"id": read["id"] + 10_000 * self.number})

    @property
    def names(self) -> tuple[str, ...]:
        return ("id",)


def mixture(
    sizes: list[int], weights: list[float], *, seed: int = 0, when: Any = "stop", stages: Any = None, **options: Any
) -> Mixture:
    datasets = [
        open_dataset(Numbered(size, number), **{"batch_size": 8, "order": "global", "shard_size": 9, **options})
        for number, size in enumerate(sizes)
    ]
    return Mixture(datasets, weights, seed=seed, when_exhausted=when, stages=stages)


def ids(batches: Any) -> list[int]:
    return [number for batch in batches for number in batch["id"].tolist()]


MIXES = st.lists(st.tuples(st.integers(1, 200), st.floats(0.05, 5)), min_size=1, max_size=4)


@given(mix=MIXES, seed=st.integers(0, 99))
def test_no_sample_comes_twice_and_the_mixture_stops_when_a_dataset_has_no_more(
    mix: list[tuple[int, float]], seed: int
) -> None:
    sizes, weights = [size for size, _ in mix], [weight for _, weight in mix]
    mixed = mixture(sizes, weights, seed=seed)
    seen = ids(mixed)
    assert len(set(seen)) == len(seen) == mixed.num_rows > 0
    given_by = np.bincount(np.array(seen, dtype=np.int64) // 10_000, minlength=len(sizes)).tolist()
    assert given_by == apportion(weights, len(seen))
    assert all(count <= size for count, size in zip(given_by, sizes, strict=True))
    assert any(count > size for count, size in zip(apportion(weights, len(seen) + 1), sizes, strict=True))


@given(weights=st.lists(st.floats(1e-6, 1e6), min_size=1, max_size=6), count=st.integers(0, 10**12))
def test_quotas_grow_by_one_sample_at_a_time_and_stay_near_the_weights(weights: list[float], count: int) -> None:
    now, following = apportion(weights, count), apportion(weights, count + 1)
    assert sum(now) == count
    assert sorted(later - before for before, later in zip(now, following, strict=True))[-1] == 1
    assert all(later >= before >= 0 for before, later in zip(now, following, strict=True))
    exact = [weight / sum(weights) * count for weight in weights]
    assert all(abs(have - want) <= len(weights) + 1e-3 for have, want in zip(now, exact, strict=True))


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
    states = [json.loads(json.dumps(each.state_dict())) for each in first]
    assert all(state == states[0] for state in states)
    assert merge_states(states) == states[0]
    resumed = ranks(after)
    for each in resumed:
        each.load_state_dict(states[0])
    assert begun + steps(resumed, 12 - len(begun)) == whole if len(begun) < len(whole) else begun == whole


@pytest.mark.timeout(900)
def test_any_schedule_of_restores_at_changing_worker_counts_delivers_what_one_uninterrupted_run_does() -> None:
    chance = random.Random(330)
    for number in range(min(330, 2 * settings.default.max_examples)):
        when = ("stop", "repeat")[number % 2]
        sizes = [chance.randint(1, 60) for _ in range(chance.randint(1, 4))]
        weights = [chance.uniform(0.05, 5) for _ in sizes]
        options: dict[str, Any] = {"global_batch_size": chance.randint(6, 20), "drop_last": chance.random() < 0.3}
        options |= {"seed": chance.randint(0, 99), "when": when, "threads": 1, "epochs": None, "prefetch_bytes": 1_000}
        if when == "repeat" and chance.random() < 0.5:
            options["stages"] = {chance.randint(1, 9): [chance.uniform(0.05, 5) for _ in sizes]}
        single = mixture(sizes, weights, **options)
        if not single.plan.cut.count(0, single.num_rows):
            continue
        wanted = chance.randint(1, 14)
        whole = [sorted(ids([batch])) for batch in itertools.islice(single, wanted)]
        seen: list[list[int]] = []
        state = None
        while len(seen) < wanted:
            world_size = chance.randint(1, 5)
            ranks = [mixture(sizes, weights, rank=rank, world_size=world_size, **options) for rank in range(world_size)]
            for rank in ranks:
                if state is not None:
                    rank.load_state_dict(state)
            steps = chance.randint(1, wanted - len(seen))
            # Ranks take equal steps, and some batches are empty for some.
            seen += [sorted(ids(step)) for step in itertools.islice(zip(*ranks, strict=True), steps)]
            states = [json.loads(json.dumps(rank.state_dict())) for rank in ranks]
            assert all(each == states[0] for each in states)
            state = merge_states(states)
        assert seen == whole, (sizes, weights, options)


def test_a_mixture_is_the_same_after_it_was_pickled() -> None:
    mixed = mixture([30, 40], [2, 1], batch_size=4)
    begun = ids(itertools.islice(mixed, 3))
    again = pickle.loads(pickle.dumps(mixed))
    assert begun + ids(again) == ids(mixture([30, 40], [2, 1], batch_size=4))


def test_weights_change_at_their_step_and_the_stage_is_in_the_position() -> None:
    def staged() -> Mixture:
        return mixture([500, 500], [1, 1], when="repeat", stages={50: [1, 3], 75: [1, 1e-9]}, batch_size=20)

    batches = [ids([batch]) for batch in itertools.islice(staged(), 100)]
    shares = [np.mean(np.concatenate(batches[low:high]) >= 10_000) for low, high in ((0, 50), (50, 75), (75, 100))]
    assert shares == [0.5, 0.75, 0.0]
    for stop in (49, 50, 51, 74, 75, 76):
        first, second = staged(), staged()
        for _ in itertools.islice(first, stop):
            pass
        second.load_state_dict(json.loads(json.dumps(first.state_dict())))
        assert [ids([batch]) for batch in itertools.islice(second, 100 - stop)] == batches[stop:]
    other = mixture([500, 500], [1, 1], when="repeat", stages={51: [1, 3]}, batch_size=20)
    with pytest.raises(PositionMismatchError, match="stages was"):
        other.load_state_dict(staged().state_dict())


@pytest.mark.parametrize("ranks", [2, 1])
def test_stages_of_another_number_of_ranks_are_refused_with_the_global_batch_that_was_meant(ranks: int) -> None:
    def staged(world_size: int, **options: Any) -> Mixture:
        return mixture(
            [500, 500], [1, 1], when="repeat", stages={50: [1, 3], 75: [3, 1]}, world_size=world_size, **options
        )

    state = staged(4).state_dict()
    with pytest.raises(PositionMismatchError) as caught:
        staged(ranks).load_state_dict(state)
    assert (
        f"if they are the same in steps, it was 32 and is {8 * ranks}, so open the datasets of the mixture with "
        "global_batch_size=32 (by default it is batch_size * world_size)"
    ) in str(caught.value)
    staged(ranks, global_batch_size=32).load_state_dict(state)
    for other in (staged(4, seed=1), mixture([500, 500], [1, 1], when="repeat", stages={50: [1, 3]}, world_size=4)):
        with pytest.raises(PositionMismatchError, match="open the dataset with the options of the save, or start over"):
            other.load_state_dict(state)
    for stages in (None, [], [[0, [1.0, 1.0]], ["a"], []], [[0, [1.0, 1.0]], ["a", []]]):
        with pytest.raises(PositionMismatchError):
            staged(ranks).load_state_dict({**state, "dataset": {**state["dataset"], "stages": stages}})


def test_datasets_for_another_number_of_ranks_are_not_blamed_on_their_global_batch() -> None:
    datasets = [open_dataset(Numbered(9, 0), batch_size=8, order="global", world_size=size) for size in (2, 4)]
    with pytest.raises(ValueError, match=r"world_size is 2 in datasets\[0\] and 4 in datasets\[1\]"):
        Mixture(datasets, [1, 1])


def test_weights_are_shares_of_every_block() -> None:
    draws = Draws(7, (Stage(0, (1.0, 2.0, 5.0)),), 80_000)
    sources = draws.sources_at(0, 0, 80_000)
    for start in range(0, 80_000 - BLOCK_SAMPLES, BLOCK_SAMPLES):
        counts = np.bincount(sources[start : start + BLOCK_SAMPLES])
        assert np.abs(counts - np.array([1, 2, 5]) * BLOCK_SAMPLES / 8).max() <= 2
    # In random order within it: neighbours say nothing of each other.
    follows = np.mean(sources[1:][sources[:-1] == 0] == 0)
    assert abs(follows - 1 / 8) < 0.02
    assert (draws.sources_at(1, 0, 100) != sources[:100]).any()


@given(start=st.integers(0, 40_000), seed=st.integers(0, 9))
def test_how_many_samples_came_before_a_position_is_what_was_drawn_before_it(start: int, seed: int) -> None:
    stages = (Stage(0, (1.0, 2.0)), Stage(5_000, (3.0, 0.001)), Stage(9_001, (0.1, 0.3)))
    draws = Draws(seed, stages, 40_000)
    assert draws.counts_before(3, start).tolist() == np.bincount(draws.sources_at(3, 0, start), minlength=2).tolist()


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
    far.load_state_dict(far.state_dict() | {"position": 10**13})
    batch = next(iter(far))
    assert len(batch["id"]) == 8
    assert far.state_dict()["position"] == 10**13 + 8


def test_a_state_of_another_mixture_is_refused() -> None:
    state = mixture([10, 10], [1, 1]).state_dict()
    for other in (mixture([10, 10], [1, 2]), mixture([10, 11], [1, 1]), mixture([10, 10], [1, 1], seed=1)):
        with pytest.raises(PositionMismatchError):
            other.load_state_dict(state)
    for damaged in ({**state, "position": "5"}, {**state, "position": -1}, {**state, "version": 9}):
        with pytest.raises(DamagedRecordError):
            mixture([10, 10], [1, 1]).load_state_dict(damaged)


def test_a_mixture_knows_how_many_batches_it_has_unless_its_datasets_repeat() -> None:
    mixed = mixture([40, 20], [2, 1])
    assert mixed.num_batches == len(list(mixed)) == 8
    assert mixture([40, 20], [2, 1], when="repeat").num_batches is None


def test_the_rows_of_a_mixture_are_those_of_its_datasets_one_after_the_other() -> None:
    mixed = mixture([4, 3, 2], [1, 1, 1])
    every = [*range(4), *range(10_000, 10_003), *range(20_000, 20_002)]
    rows = mixed.rows
    assert (rows.num_rows, rows.names, mixed.names) == (9, ("id",), ("id",))
    assert mixed.source_starts == [0, 4, 7]
    assert [plan.layout.total_samples for plan in mixed.sources] == [4, 3, 2]
    for start, stop in itertools.combinations_with_replacement(range(10), 2):
        assert rows.read(start, stop)["id"].tolist() == every[start:stop]


def test_rows_of_a_mixture_that_cannot_be_read_are_counted_after_those_of_the_datasets_before() -> None:
    sound, torn = (
        open_dataset(rows, batch_size=4, order="global", shard_size=5, on_error="skip")
        for rows in (MemoryRows(20), MemoryRows(20, before_read=refuse_row(12)))
    )
    mixed = Mixture([sound, torn], [1, 1])
    assert sorted(ids(mixed)) == sorted([*range(20), *range(10), *range(15, 20)])
    assert [(each.start, each.file, each.first_row, each.num_rows) for each in mixed.skipped()] == [
        (mixed.source_starts[1] + 10, "part-0.bin", 10, 5)
    ]


def test_an_error_of_a_transform_names_the_datasets_and_their_rows() -> None:
    def refuse(batch: dict[str, Any]) -> dict[str, Any]:
        if 10_003 in batch["id"]:
            raise LookupError("not this one")
        return batch

    plain, mixed = (
        mixture([12, 6], [2, 1], shuffle=False, batch_size=6, **options) for options in ({}, {"transform": refuse})
    )
    for each in (plain, mixed):
        each.set_epoch(2)
    (refused,) = (found for batch in plain if 10_003 in (found := batch["id"].tolist()))
    with mixed, pytest.raises(LookupError, match="not this one") as caught:
        list(mixed)
    first, second = (
        ", ".join(str(number % 10_000) for number in refused if number // 10_000 == source) for source in (0, 1)
    )
    assert caught.value.__notes__ == [
        f"while filter and transform were run on datasets[0], epoch 2: rows {first} of Numbered; "
        f"datasets[1], epoch 2: rows {second} of Numbered"
    ]


def test_what_cannot_be_mixed_is_refused() -> None:
    dataset = open_dataset(MemoryRows(10), batch_size=2, order="global")
    other = open_dataset(MemoryRows(10), batch_size=3, order="global")
    columns = open_dataset(Numbered(10, 0), batch_size=2, order="global")
    for datasets, weights, options, message in (
        ([dataset], [1, 2], {}, "1 datasets and 2 weights"),
        ([dataset], [0], {}, r"weights\[0\] is 0; use a number greater than 0"),
        ([dataset], [float("nan")], {}, "greater than 0"),
        ([dataset], {"a": 3.9}, {}, "weights is {'a': 3.9}, which is a dict; use a list"),
        ([dataset], ["3"], {}, r"weights\[0\] is '3', which is a str"),
        ([dataset], [True], {}, "which is a bool"),
        ([open_dataset(MemoryRows(10), batch_size=2)], [1], {}, r"datasets\[0\] has order='sticky'"),
        ([dataset, other], [1, 1], {}, r"batch_size is 2 in datasets\[0\] and 3 in datasets\[1\]"),
        ([dataset, columns], [1, 1], {}, r"columns is \('id', 'vector'\)"),
        ([dataset, "more"], [1, 1], {}, r"datasets\[1\] is a str"),
        ([], [], {}, "use a list of what"),
        (dataset, [1], {}, "use a list of what"),
        ([dataset], [1], {"when_exhausted": "cry"}, "when_exhausted is 'cry'; use one of stop, repeat"),
        ([dataset], [1], {"seed": 1.5}, "seed is 1.5, which is a float"),
        ([dataset], [1], {"stages": {5: [1]}}, "stages are for when_exhausted='repeat'"),
        ([dataset], [1], {"stages": {5: [0]}, "when_exhausted": "repeat"}, r"stages\[5\]\[0\] is 0"),
        ([dataset], [1], {"stages": {"x": [1]}, "when_exhausted": "repeat"}, "a step of stages is 'x'"),
        ([dataset], [1], {"stages": [5], "when_exhausted": "repeat"}, "use a dict of weights by step"),
    ):
        with pytest.raises((ValueError, TypeError), match=message):
            Mixture(datasets, weights, **options)
