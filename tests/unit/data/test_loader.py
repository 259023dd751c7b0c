"""The loader delivers each sample once an epoch, in the order that was asked for, wherever it was stopped."""

from __future__ import annotations

import itertools
import json
import pickle
import threading
import time
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from strata import open_dataset
from strata.data import Dataset, merge_states
from strata.data.loading.position import Position
from strata.data.loading.shares import BatchCut, Share
from strata.errors import CorruptFileError, DamagedRecordError, PositionMismatchError
from strata.sharding.ranges import RangeSet
from strata.sharding.shard_layout import ShardLayout
from tests.testbed.data.rows import MemoryRows, refuse_row
from tests.testbed.pace import stretch

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

ORDERS = st.sampled_from(["sticky", "global", "dynamic"])


@st.composite
def settings_of_a_dataset(draw: st.DrawFn) -> dict[str, Any]:
    return {
        "order": draw(ORDERS),
        "shuffle": draw(st.booleans()),
        "seed": draw(st.integers(0, 2**40)),
        "shard_size": draw(st.integers(1, 60)),
    }


def ids(batches: Iterable[dict[str, Any]]) -> list[int]:
    return [number for batch in batches for number in batch["id"].tolist()]


def take(dataset: Dataset, count: int) -> list[int]:
    return ids(itertools.islice(dataset, count))


def eventually(is_so: Callable[[], bool]) -> bool:
    """Whether it comes true, in a time that only a machine at a standstill would need."""
    deadline_s = time.monotonic() + stretch(20)
    while not is_so() and time.monotonic() < deadline_s:
        time.sleep(0.005)
    return is_so()


def reload(state: dict[str, Any]) -> dict[str, Any]:
    loaded: dict[str, Any] = json.loads(json.dumps(state))
    return loaded


@given(
    total=st.integers(1, 400),
    settings=settings_of_a_dataset(),
    worlds=st.lists(st.integers(1, 8), min_size=1, max_size=3) | st.just([4, 3, 7]),
    data=st.data(),
)
def test_each_sample_is_delivered_once_through_any_stops_and_changes_of_world_size(
    total: int, settings: dict[str, Any], worlds: list[int], data: st.DataObject
) -> None:
    rows, seen, state = MemoryRows(total), [], None
    for number, world_size in enumerate(worlds):
        batch_size = data.draw(st.integers(1, 40))
        steps = st.integers(0, total // batch_size // 2 + 1)
        # In global order all ranks take the same steps; otherwise each may stop where it likes.
        same = data.draw(steps) if settings["order"] == "global" else None
        states = []
        for rank in range(world_size):
            dataset = open_dataset(rows, batch_size=batch_size, rank=rank, world_size=world_size, **settings)
            if state is not None:
                dataset.load_state_dict(reload(state))
                if dataset.epoch:
                    continue
            if number == len(worlds) - 1:
                seen += ids(dataset)
            else:
                seen += take(dataset, data.draw(steps) if same is None else same)
                states.append(dataset.state_dict())
        if states:
            state = merge_states(map(reload, states))
    assert sorted(seen) == list(range(total))


@given(total=st.integers(1, 300), batch=st.integers(8, 50), seed=st.integers(0, 99), drop_last=st.booleans())
def test_global_order_gives_the_same_batches_for_any_number_of_ranks(
    total: int, batch: int, seed: int, drop_last: bool
) -> None:
    def global_batches(world_size: int) -> list[list[int]]:
        ranks = [
            open_dataset(
                MemoryRows(total),
                batch_size=1,
                order="global",
                seed=seed,
                shard_size=7,
                drop_last=drop_last,
                global_batch_size=batch,
                rank=rank,
                world_size=world_size,
            )
            for rank in range(world_size)
        ]
        return [ids(filter(None, parts)) for parts in itertools.zip_longest(*ranks)]

    expected = global_batches(1)
    assert [len(each) for each in expected[:-1]] == [batch] * (len(expected) - 1)
    assert sum(map(len, expected)) == (total // batch * batch if drop_last else total)
    for world_size in (2, 3, 8):
        assert global_batches(world_size) == expected


@given(
    total=st.integers(1, 300),
    settings=settings_of_a_dataset(),
    batch_size=st.integers(1, 30),
    drop_last=st.booleans(),
    stop=st.integers(0, 40),
)
def test_a_resumed_run_equals_one_that_was_never_interrupted(
    total: int, settings: dict[str, Any], batch_size: int, drop_last: bool, stop: int
) -> None:
    def opened() -> Dataset:
        return open_dataset(MemoryRows(total), batch_size=batch_size, drop_last=drop_last, epochs=3, **settings)

    whole = [batch["vector"].tobytes() for batch in opened()]
    first, second = opened(), opened()
    begun = [batch["vector"].tobytes() for batch in itertools.islice(first, stop)]
    second.load_state_dict(reload(first.state_dict()))
    resumed = [batch["vector"].tobytes() for batch in itertools.islice(second, len(whole) - len(begun))]
    assert begun + resumed == whole


@given(total=st.integers(1, 300), settings=settings_of_a_dataset(), batch_size=st.integers(1, 30))
def test_epochs_have_the_same_samples_in_orders_of_their_own(
    total: int, settings: dict[str, Any], batch_size: int
) -> None:
    dataset = open_dataset(MemoryRows(total), batch_size=batch_size, **settings)
    first, second = ids(dataset), ids(dataset)
    assert dataset.epoch == 2
    assert sorted(first) == sorted(second) == list(range(total))
    if settings["shuffle"] and total > 50:
        assert (first != second) == (settings["shard_size"] > 1 or total > 1)
    dataset.set_epoch(1)
    assert ids(dataset) == second


def test_a_loop_that_was_left_goes_on_with_the_very_next_sample() -> None:
    dataset = open_dataset(MemoryRows(100), batch_size=7, shard_size=30)
    whole = ids(open_dataset(MemoryRows(100), batch_size=7, shard_size=30))
    assert take(dataset, 2) + take(dataset, 3) + ids(dataset) == whole


def test_what_was_read_ahead_and_not_delivered_is_not_in_the_state() -> None:
    rows = MemoryRows(1_000)
    dataset = open_dataset(rows, batch_size=10, shard_size=10, prefetch_bytes=1 << 20)
    batches = iter(dataset)
    for count in range(1, 20):
        next(batches)
        state = dataset.state_dict()
        assert sum(state["consumed"][1::2]) == 10 * count
    assert eventually(lambda: len(rows.reads) > 19)


def test_reading_ahead_is_bounded() -> None:
    rows = MemoryRows(10_000)
    # A row has 24 bytes, so that a shard has 240.
    dataset = open_dataset(rows, batch_size=10, shard_size=10, prefetch_bytes=1_000, threads=2)
    for delivered, _ in enumerate(dataset, start=1):
        assert len(rows.reads) <= delivered + 6


def test_work_is_reported_as_it_is_delivered() -> None:
    dealt: list[Any] = []

    class FixedDealer:
        def deal(self, epoch: int) -> Any:
            dealt.append(epoch)
            yield np.array([[3, 0, 10], [1, 5, 10]])
            yield np.array([[0, 0, 2]])

    dataset = open_dataset(
        MemoryRows(40), batch_size=8, shard_size=10, shuffle=False, dealer=lambda plan: FixedDealer()
    )
    batches = iter(dataset)
    assert next(batches)["id"].tolist() == [30, 31, 32, 33, 34, 35, 36, 37]
    assert [(epoch, rows.tolist()) for epoch, rows in dataset.delivered()] == [(0, [[3, 0, 8]])]
    assert dataset.delivered() == []
    assert next(batches)["id"].tolist() == [38, 39, 15, 16, 17, 18, 19, 0]
    assert next(batches)["id"].tolist() == [1]
    assert next(batches, None) is None
    assert [(epoch, rows.tolist()) for epoch, rows in dataset.delivered()] == [(0, [[3, 8, 10], [1, 5, 10], [0, 0, 2]])]
    assert dataset.epoch == 1
    with pytest.raises(TypeError, match="work is dealt by a coordinator cannot be sent to another process"):
        pickle.dumps(dataset)


def test_loaders_that_share_shards_on_demand_deliver_each_sample_once() -> None:
    dataset = open_dataset(MemoryRows(500), batch_size=7, order="dynamic", shard_size=10)
    before = take(dataset, 9)
    parts = dataset.split(3)
    slow = take(parts[0], 2)
    seen: list[list[int]] = [[], []]
    threads = [threading.Thread(target=lambda at=at: seen[at].extend(ids(parts[at + 1]))) for at in (0, 1)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    # The slow one goes on with what it was dealt, and finds nothing else left.
    slow += ids(parts[0])
    assert sorted(before + slow + seen[0] + seen[1]) == list(range(500))
    assert len(slow) < 500 // 3
    merged = merge_states([part.state_dict() for part in parts])
    assert (merged["epoch"], merged["consumed"]) == (1, [])


def test_resuming_mid_epoch_reads_only_what_is_needed() -> None:
    rows = MemoryRows(10_000_000)
    first = open_dataset(rows, batch_size=100, shard_size=1_000, shuffle=False)
    state = first.state_dict() | {"consumed": [0, 9_999_000 - 50]}
    resumed = open_dataset(rows, batch_size=100, shard_size=1_000, shuffle=False)
    resumed.load_state_dict(state)
    assert ids(resumed) == list(range(9_998_950, 10_000_000))
    assert sorted(rows.reads) == [(9_998_950, 9_999_000), (9_999_000, 10_000_000)]


def test_the_position_is_exact_after_thousands_of_scattered_samples() -> None:
    layout = ShardLayout(total_samples=12_000, shard_size=2, shuffle=False)
    position = Position(layout, {}, BatchCut(global_batch_size=1_000, share=Share()))
    # One sample of each shard, so that no two join: more than are gathered before they are counted.
    for start in range(0, 6_000, 1_000):
        position.record(0, [(shard, 0, 1) for shard in range(start, start + 1_000)])
    left = position.cursor(0).remaining(layout.order(epoch=0))
    assert left == RangeSet.from_runs([1] * 12_000)


def test_only_in_global_order_is_a_number_of_batches_a_place() -> None:
    dataset = open_dataset(MemoryRows(100), batch_size=10, order="global")
    expected = ids(dataset)[30:]
    dataset.seek(0, 3)
    assert ids(dataset) == expected
    with pytest.raises(ValueError, match="batches is 11; use at most 10"):
        dataset.seek(0, 11)
    for order in ("sticky", "dynamic"):
        with pytest.raises(
            ValueError, match=rf"seek\(\) is for order='global', not for '{order}'; load a state instead"
        ):
            open_dataset(MemoryRows(100), batch_size=10, order=order).seek(0, 3)


@pytest.mark.parametrize("order", ["sticky", "global"])
def test_an_error_of_reading_comes_out_at_its_batch(order: str) -> None:
    rows = MemoryRows(100, before_read=refuse_row(57))
    dataset = open_dataset(rows, batch_size=10, shard_size=20, order=order, shuffle=False)
    batches = iter(dataset)
    assert [ids([next(batches)])[0] for _ in range(4)] == [0, 10, 20, 30]
    with pytest.raises(CorruptFileError, match="row 57 is torn"):
        ids(batches)


@pytest.mark.parametrize("shuffle", [True, False])
@pytest.mark.parametrize("order", ["sticky", "global"])
def test_rows_that_cannot_be_read_may_be_skipped_and_are_named(order: str, shuffle: bool) -> None:
    rows = MemoryRows(100, before_read=refuse_row(57))
    dataset = open_dataset(rows, batch_size=10, shard_size=10, order=order, shuffle=shuffle, on_error="skip")
    assert sorted(ids(dataset)) == [*range(50), *range(60, 100)]
    (skipped,) = dataset.skipped()
    assert (skipped.file, skipped.first_row, skipped.num_rows, skipped.start) == ("part-0.bin", 50, 10, 50)
    assert "row 57 is torn" in skipped.reason
    # They count as delivered: the epoch is over.
    assert dataset.state_dict()["epoch"] == 1


def test_threads_end_when_the_loop_is_left() -> None:
    others = set(threading.enumerate())

    def mine() -> set[threading.Thread]:
        return set(threading.enumerate()) - others

    def none_left() -> bool:
        return eventually(lambda: not mine())

    dataset = open_dataset(MemoryRows(1_000), batch_size=10, shard_size=10, filter=lambda batch: batch["id"] >= 0)
    for _ in dataset:
        break
    assert none_left()
    with pytest.raises(KeyboardInterrupt):
        for _ in dataset:
            raise KeyboardInterrupt
    assert none_left()
    held = iter(dataset)
    next(held)
    assert mine()
    dataset.close()
    assert none_left()


def test_an_iteration_that_was_overtaken_says_so() -> None:
    dataset = open_dataset(MemoryRows(100), batch_size=10)
    old = iter(dataset)
    next(old)
    take(dataset, 1)
    with pytest.raises(RuntimeError, match="this iteration is over"):
        next(old)


def test_a_state_of_other_data_or_settings_is_refused() -> None:
    state = open_dataset(MemoryRows(100), batch_size=10, shard_size=10).state_dict()
    for rows, changed in ((101, {}), (100, {"seed": 1}), (100, {"shuffle": False}), (100, {"order": "global"})):
        dataset = open_dataset(MemoryRows(rows), batch_size=10, shard_size=10, **changed)
        with pytest.raises(PositionMismatchError, match=r"was .* and is"):
            dataset.load_state_dict(state)
    dataset = open_dataset(MemoryRows(100), batch_size=10, shard_size=10)
    for damaged in ({}, {**state, "version": 2}, {**state, "consumed": [1]}, {**state, "others": 3}):
        with pytest.raises(DamagedRecordError):
            dataset.load_state_dict(damaged)


def test_the_state_of_one_rank_alone_is_not_taken_for_that_of_the_job() -> None:
    def rank(number: int, *, world_size: int = 3) -> Dataset:
        return open_dataset(MemoryRows(100), batch_size=5, shard_size=10, rank=number, world_size=world_size)

    ranks = [rank(number) for number in range(3)]
    seen = [take(each, 2) for each in ranks]
    states = [each.state_dict() for each in ranks]
    with pytest.raises(ValueError, match="position of 1 of 3 loaders"):
        rank(0, world_size=1).load_state_dict(states[0])
    with pytest.raises(ValueError, match="position of 2 of 3 loaders"):
        rank(0).load_state_dict(merge_states(states[:2]))
    # Each may go on with its own, as long as all do.
    again = [rank(number) for number in range(3)]
    for each, state in zip(again, states, strict=True):
        each.load_state_dict(reload(state))
    assert sorted(itertools.chain(*seen, *(ids(each) for each in again))) == list(range(100))


def test_a_state_taken_while_ranks_are_in_different_epochs_is_whole() -> None:
    ranks = [
        open_dataset(MemoryRows(100), batch_size=5, shard_size=10, epochs=2, rank=number, world_size=3)
        for number in range(3)
    ]
    # One ends its epoch and begins the next, the others are in the first.
    ahead = iter(ranks[0])
    early = []
    while ranks[0].epoch == 0:
        early.append(ids([next(ahead)]))
    first = [number for batch in early for number in batch]
    second = ids([next(ahead)])
    first += take(ranks[1], 3) + take(ranks[2], 1)
    merged = merge_states([rank.state_dict() for rank in ranks])
    assert merged["epoch"] == 0
    alone = open_dataset(MemoryRows(100), batch_size=5, shard_size=10)
    alone.load_state_dict(reload(merged))
    first += ids(alone)
    second += ids(alone)
    assert sorted(first) == sorted(second) == list(range(100))


def test_ranks_of_global_order_at_different_steps_are_not_merged() -> None:
    ranks = [
        open_dataset(MemoryRows(100), batch_size=5, order="global", rank=number, world_size=2) for number in range(2)
    ]
    take(ranks[0], 2)
    take(ranks[1], 3)
    with pytest.raises(ValueError, match=r"different \(epoch, position\): \(0, 20\), \(0, 30\)"):
        merge_states([rank.state_dict() for rank in ranks])


@pytest.mark.parametrize("shard_size", [100, 1_000, None])
@pytest.mark.parametrize("world_size", [1, 2, 8])
def test_the_state_of_a_million_samples_in_sticky_order_is_below_ten_kilobytes(
    shard_size: int | None, world_size: int
) -> None:
    rows = {"x": np.arange(1_000_000, dtype=np.int32)}
    with open_dataset(rows, batch_size=5_000, shard_size=shard_size, rank=0, world_size=world_size) as dataset:
        sizes = [len(json.dumps(dataset.state_dict())) for _ in dataset]
    assert max(sizes) < 10_000


def test_the_window_of_the_shuffle_is_part_of_the_order_and_of_the_position() -> None:
    def opened(window_shards: int | None) -> Dataset:
        return open_dataset(
            MemoryRows(640), batch_size=16, shard_size=8, order="global", seed=3, window_shards=window_shards
        )

    orders = {window: [row for batch in opened(window) for row in batch["id"].tolist()] for window in (2, 4, 16, None)}
    assert all(sorted(order) == list(range(640)) for order in orders.values())
    assert orders[16] == orders[None]
    # Each run of a window's rows is of so many shards, and of as many as there are rows for.
    for window in (2, 4, 16):
        runs = [orders[window][at : at + 8 * window] for at in range(0, 640, 8 * window)]
        assert all(len({row // 8 for row in run}) == window for run in runs)
    dataset = opened(4)
    batches = iter(dataset)
    head = [next(batches)["id"].tolist() for _ in range(7)]
    again = opened(4)
    again.load_state_dict(dataset.state_dict())
    assert [row for batch in head for row in batch] + [row for batch in again for row in batch["id"]] == orders[4]
    for other in (2, None):
        with pytest.raises(PositionMismatchError, match="window_shards was 4 and is"):
            opened(other).load_state_dict(dataset.state_dict())
    with pytest.raises(PositionMismatchError, match="window_shards was None and is 4"):
        opened(4).load_state_dict(opened(None).state_dict())
