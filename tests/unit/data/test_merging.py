"""The states of ranks that made equal steps become one position, wherever the end of an epoch is between them."""

from __future__ import annotations

import itertools
import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from strata import open_dataset
from strata.data import Dataset, merge_states
from strata.errors import PositionMismatchError
from tests.testbed.data.rows import MemoryRows

EPOCHS = 6


def ranks_of(world_size: int, total: int, **options: Any) -> list[Dataset]:
    return [
        open_dataset(MemoryRows(total), rank=rank, world_size=world_size, epochs=None, threads=1, **options)
        for rank in range(world_size)
    ]


def reload(state: dict[str, Any]) -> dict[str, Any]:
    loaded: dict[str, Any] = json.loads(json.dumps(state))
    return loaded


@given(
    total=st.integers(1, 60),
    batch_size=st.integers(1, 9),
    world_size=st.integers(1, 5),
    drop_last=st.booleans(),
    data=st.data(),
)
def test_in_global_order_equal_steps_are_equal_states_at_every_step(
    total: int, batch_size: int, world_size: int, drop_last: bool, data: st.DataObject
) -> None:
    if drop_last and total < batch_size * world_size:
        return
    options = {"batch_size": batch_size, "order": "global", "shard_size": 7, "drop_last": drop_last}
    ranks = ranks_of(world_size, total, **options)
    stop = data.draw(st.integers(1, 3 * (total // (batch_size * world_size) + 1)))
    for _ in itertools.islice(zip(*ranks, strict=True), stop):
        states = [rank.state_dict() for rank in ranks]
        assert merge_states(states) == states[0]


@given(
    total=st.integers(1, 60),
    shard_size=st.integers(1, 20),
    batch_size=st.integers(1, 9),
    world_size=st.integers(2, 5),
    steps=st.integers(1, 25),
    after=st.integers(1, 3),
)
def test_in_sticky_order_ranks_may_be_epochs_apart(
    total: int, shard_size: int, batch_size: int, world_size: int, steps: int, after: int
) -> None:
    options = {"batch_size": batch_size, "order": "sticky", "shard_size": shard_size}
    seen: dict[int, list[int]] = {}

    def take(ranks: list[Dataset], most: int, *, until: int) -> None:
        for rank in ranks:
            if not rank.num_batches:
                continue  # a rank without shards would search for them through all epochs
            batches = iter(rank)
            for _ in range(most):
                seen.setdefault(rank.epoch, []).extend(next(batches)["id"].tolist())
                if rank.epoch >= until:
                    break

    first = ranks_of(world_size, total, **options)
    take(first, steps, until=10**9)
    state = merge_states([reload(rank.state_dict()) for rank in first if rank.num_batches] + idle_states(first))
    last = max(seen)
    resumed = ranks_of(after, total, **options)
    for rank in resumed:
        rank.load_state_dict(state)
        assert rank.epoch == state["epoch"] or total == sum(state["consumed"][1::2])
        epoch = rank.epoch
        for until in range(epoch + 1, last + 2):
            for batch in rank.resume(until_epoch=until):
                seen.setdefault(until - 1, []).extend(batch["id"].tolist())
    assert all(sorted(seen[epoch]) == list(range(total)) for epoch in range(last + 1))


def idle_states(ranks: list[Dataset]) -> list[dict[str, Any]]:
    """Return the states of ranks without shards, which have ended as many epochs as the furthest."""
    furthest = max((rank.epoch for rank in ranks if rank.num_batches), default=0)
    states = []
    for rank in ranks:
        if not rank.num_batches:
            assert list(rank.resume(until_epoch=furthest)) == []
            states.append(reload(rank.state_dict()))
    return states


def test_with_drop_last_a_rank_that_has_ended_and_one_at_its_last_batch_are_at_the_same_place() -> None:
    ranks = [
        open_dataset(MemoryRows(45), batch_size=4, order="global", drop_last=True, rank=rank, world_size=2)
        for rank in range(2)
    ]
    iterators = [iter(rank) for rank in ranks]
    for _, each in itertools.product(range(5), iterators):
        next(each)
    assert next(iterators[0], None) is None
    merged = merge_states([rank.state_dict() for rank in ranks])
    assert (merged["epoch"], merged["position"]) == (1, 0)


def test_loaders_that_take_shards_on_demand_and_are_far_apart_are_told_to_meet() -> None:
    parts = open_dataset(MemoryRows(100), batch_size=10, order="dynamic", shard_size=10, epochs=None).split(2)
    behind, ahead = iter(parts[0]), iter(parts[1])
    next(behind)
    while parts[1].epoch < 4:
        next(ahead)
    with pytest.raises(ValueError, match="let loaders that take shards on demand meet"):
        merge_states([part.state_dict() for part in parts])


def test_loaders_that_take_shards_on_demand_may_be_one_epoch_apart() -> None:
    def opened() -> Dataset:
        return open_dataset(MemoryRows(100), batch_size=10, order="dynamic", shard_size=10, epochs=None)

    parts = opened().split(2)
    first = next(iter(parts[0]))["id"].tolist()
    second: list[int] = []
    batches = iter(parts[1])
    while not second:
        taken = next(batches)["id"].tolist()
        (first if parts[1].epoch == 0 else second).extend(taken)
    merged = merge_states([reload(part.state_dict()) for part in parts])
    assert merged["epoch"] == 0
    resumed = opened()
    resumed.load_state_dict(merged)
    for until, seen in ((1, first), (2, second)):
        for batch in resumed.resume(until_epoch=until):
            seen.extend(batch["id"].tolist())
    assert sorted(first) == sorted(second) == list(range(100))


def test_states_that_are_not_of_one_job_are_not_merged() -> None:
    def state(rank: int, world_size: int, **options: Any) -> dict[str, Any]:
        options = {"batch_size": 5, "shard_size": 10, **options}
        return open_dataset(MemoryRows(100), rank=rank, world_size=world_size, **options).state_dict()

    with pytest.raises(ValueError, match="there are no states to merge; give that of each rank"):
        merge_states([])
    with pytest.raises(ValueError, match="the states are of 2, 3 loaders; merge those of one moment"):
        merge_states([state(0, 3), state(1, 2)])
    for option, value in (("seed", 1), ("order", "global")):
        with pytest.raises(PositionMismatchError, match=rf"{option} was {value!r} and is"):
            merge_states([state(0, 2), state(1, 2, **{option: value})])
