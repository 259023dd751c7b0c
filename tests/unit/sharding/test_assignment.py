"""Assignments are balanced to within one shard, move the least possible, and are the same everywhere."""

from __future__ import annotations

import itertools
import json
import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from strata import ConsistentHash
from strata.errors import DamagedRecordError, NoWorkersError, UnknownWorkerError
from strata.sharding import Assignment, assign, assign_some
from strata.sharding import assignment as assignment_module
from strata.sharding import ring as ring_module

WORKERS = st.sets(st.sampled_from([f"w{number}" for number in range(24)]), min_size=1)


def spread(assignment: Assignment) -> int:
    counts = assignment.counts().values()
    return max(counts) - min(counts)


def least_moves(before: Assignment, workers: set[str], weights: dict[str, int] | None = None) -> int:
    """The exact lower bound: all shards, less the most that any balanced placement lets workers keep."""
    weight_of = {worker: (weights or {}).get(worker, 1) for worker in workers}
    total = sum(weight_of.values())
    held = {worker: before.counts().get(worker, 0) for worker in workers}
    lower = {worker: before.num_shards * weight // total for worker, weight in weight_of.items()}
    rounds = [worker for worker, weight in weight_of.items() if before.num_shards * weight % total]
    ups = before.num_shards - sum(lower.values())
    gains = sorted((min(held[w], lower[w] + 1) - min(held[w], lower[w]) for w in rounds), reverse=True)
    return before.num_shards - sum(min(held[w], lower[w]) for w in workers) - sum(gains[:ups])


@given(shards=st.integers(1, 5_000), workers=WORKERS)
def test_every_shard_has_one_owner_and_workers_differ_by_at_most_one(shards: int, workers: set[str]) -> None:
    assignment = assign("d", shards, workers)
    owned = np.concatenate([assignment.shards_of(worker) for worker in workers])
    assert sorted(owned.tolist()) == list(range(shards))
    assert spread(assignment) <= 1
    assert sum(assignment.counts().values()) == shards
    assert all(assignment.owner(shard) == w for w in workers for shard in assignment.shards_of(w)[:3].tolist())


@given(shards=st.integers(1, 5_000), workers=WORKERS, data=st.data())
def test_losing_a_worker_moves_its_shards_and_no_others(shards: int, workers: set[str], data: st.DataObject) -> None:
    workers |= {"stays"}
    lost = data.draw(st.sampled_from(sorted(workers - {"stays"}) or ["stays"]))
    before = assign("d", shards, workers | {lost, "other"})
    after = assign("d", shards, (workers | {"other"}) - {lost}, before)
    assert sorted(after.moved_from(before)) == sorted(before.shards_of(lost))
    assert spread(after) <= 1


@given(shards=st.integers(1, 5_000), workers=WORKERS)
def test_a_new_worker_takes_its_fair_share_and_no_shard_moves_between_others(shards: int, workers: set[str]) -> None:
    before = assign("d", shards, workers)
    after = assign("d", shards, workers | {"new"}, before)
    assert sorted(after.moved_from(before)) == sorted(after.shards_of("new"))
    assert after.counts()["new"] == shards // (len(workers) + 1)
    assert spread(after) <= 1


@given(shards=st.integers(1, 2_000), steps=st.lists(WORKERS, min_size=2, max_size=6))
def test_any_joins_and_leaves_at_once_move_exactly_the_least_possible(shards: int, steps: list[set[str]]) -> None:
    assignment = assign("d", shards, steps[0])
    for workers in steps[1:]:
        changed = assign("d", shards, workers, assignment)
        assert spread(changed) <= 1
        assert len(changed.moved_from(assignment)) == least_moves(assignment, workers)
        assignment = changed


@given(
    shards=st.integers(1, 2_000),
    steps=st.lists(
        st.dictionaries(st.sampled_from("abcdefgh"), st.integers(1, 16), min_size=1), min_size=2, max_size=5
    ),
)
def test_with_weights_shares_are_proportional_to_within_one_and_moves_the_least(
    shards: int, steps: list[dict[str, int]]
) -> None:
    assignment = assign("d", shards, steps[0], weights=steps[0])
    for weights in steps[1:]:
        changed = assign("d", shards, weights, assignment, weights=weights)
        total = sum(weights.values())
        for worker, count in changed.counts().items():
            share = shards * weights[worker]
            assert share // total <= count <= math.ceil(share / total)
        assert len(changed.moved_from(assignment)) == least_moves(assignment, set(weights), weights)
        assignment = changed


@pytest.mark.parametrize("shards", [1, 4, 5, 6])
@pytest.mark.parametrize(("old", "new"), [("ab", "abc"), ("abc", "ab"), ("abc", "bcd"), ("ab", "cd"), ("abc", "a")])
def test_no_balanced_assignment_at_all_moves_fewer_shards(shards: int, old: str, new: str) -> None:
    before = assign("d", shards, old)
    owners = [before.owner(shard) for shard in range(shards)]
    fewest = min(
        sum(was != now for was, now in zip(owners, candidate, strict=True))
        for candidate in itertools.product(new, repeat=shards)
        if max(counts := [candidate.count(worker) for worker in new]) - min(counts) <= 1
    )
    assert len(assign("d", shards, new, before).moved_from(before)) == fewest


@given(shards=st.integers(1, 2_000), workers=WORKERS, order=st.randoms())
def test_the_order_of_workers_does_not_matter(shards: int, workers: set[str], order: object) -> None:
    shuffled = sorted(workers)
    order.shuffle(shuffled)
    assert assign("d", shards, shuffled) == assign("d", shards, workers)


def test_an_unchanged_set_of_workers_moves_nothing() -> None:
    before = assign("d", 1_000, ["a", "b", "c"])
    assert assign("d", 1_000, ["c", "b", "a"], before) == before


def test_first_places_follow_the_ring_as_far_as_balance_allows() -> None:
    workers = [f"w{number}" for number in range(20)]
    ring = ConsistentHash()
    for worker in workers:
        ring.add_node(worker)
    assignment = assign("d", 10_000, workers)
    for worker in workers:
        own = ring.get_shards_for_node(worker, "d", 10_000)
        kept = np.intersect1d(own, assignment.shards_of(worker))
        assert len(kept) == min(len(own), assignment.counts()[worker])


def test_a_new_worker_takes_first_what_the_ring_says_is_its_own() -> None:
    workers = [f"w{number}" for number in range(20)]
    ring = ConsistentHash()
    for worker in [*workers, "new"]:
        ring.add_node(worker)
    own = set(ring.get_shards_for_node("new", "d", 10_000).tolist())
    before = assign("d", 10_000, workers)
    taken = set(assign("d", 10_000, [*workers, "new"], before).shards_of("new").tolist())
    assert len(own & taken) > 0.5 * min(len(own), len(taken))
    # No more of them without a further move: who gave another shard had none of the ring's choice left to give.
    for worker in workers:
        held = set(before.shards_of(worker).tolist())
        assert not (held & taken) - own or held & own <= taken


@pytest.mark.parametrize(("shards", "num_workers"), [(1_000, 10), (10_000, 100), (20_000, 40)])
def test_a_worker_that_returns_gets_nearly_all_its_warm_shards_back(shards: int, num_workers: int) -> None:
    workers = [f"w{number}" for number in range(num_workers)]
    before = assign("d", shards, workers)
    back = 0
    for worker in workers:
        without = assign("d", shards, set(workers) - {worker}, before)
        again = assign("d", shards, workers, without)
        back += len(np.intersect1d(again.shards_of(worker), before.shards_of(worker)))
    assert back >= 0.98 * shards


def test_workers_that_hash_alike_share_evenly_all_the_same(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ring_module, "hash_text", lambda text, domain: 7 if text.startswith("twin") else len(text))
    before = assign("d", 301, ["twin-a", "twin-b", "other"])
    assert spread(before) <= 1
    after = assign("d", 301, ["twin-b", "other"], before)
    assert sorted(after.moved_from(before)) == sorted(before.shards_of("twin-a"))


def test_fewer_shards_than_workers_leaves_some_workers_without() -> None:
    assignment = assign("d", 3, [f"w{number}" for number in range(10)])
    assert sorted(assignment.counts().values()) == [0] * 7 + [1] * 3


def test_more_workers_than_16_bits_can_count() -> None:
    workers = [f"w{number}" for number in range(70_000)]
    assignment = assign("d", 70_001, workers)
    assert spread(assignment) == 1
    assert Assignment.from_bytes(assignment.to_bytes()) == assignment


@given(shards=st.integers(1, 400), workers=WORKERS, some=st.sets(st.integers(0, 399), min_size=1))
def test_some_shards_alone_are_dealt_evenly_and_stay_where_they_can(
    shards: int, workers: set[str], some: set[int]
) -> None:
    chosen = np.array(sorted(some))
    before = assign("d", 400, workers)
    owners = assign_some("d", chosen, workers, before)
    counts = np.bincount(owners, minlength=len(workers))
    assert counts.max() - counts.min() <= 1
    held = np.bincount([sorted(workers).index(before.owner(int(s))) for s in chosen], minlength=len(workers))
    lower, ups = divmod(len(chosen), len(workers))
    kept = np.minimum(held, lower).sum() + min(ups, np.count_nonzero(held > lower))
    stayed = sum(before.owner(int(s)) == sorted(workers)[o] for s, o in zip(chosen, owners, strict=True))
    assert stayed == kept


@given(shards=st.integers(1, 2_000), workers=WORKERS)
def test_bytes_bring_back_an_equal_assignment_that_can_be_built_on(shards: int, workers: set[str]) -> None:
    assignment = assign("d", shards, workers)
    copy = Assignment.from_bytes(assignment.to_bytes())
    assert copy == assignment
    assert copy.digest() == assignment.digest()
    assert assign("d", shards, workers | {"new"}, copy) == assign("d", shards, workers | {"new"}, assignment)


@pytest.mark.parametrize(("workers", "owner_bytes"), [(256, 1), (257, 2)])
def test_an_owner_takes_one_byte_while_all_workers_fit_into_it(workers: int, owner_bytes: int) -> None:
    assignment = assign("d", 1_000, [f"w{number}" for number in range(workers)])
    data = assignment.to_bytes()
    assert json.loads(data.splitlines()[1])["owner_bytes"] == owner_bytes
    assert Assignment.from_bytes(data) == assignment


def test_bytes_are_one_per_shard_for_up_to_256_workers() -> None:
    data = assign("d", 100_000, [f"w{number}" for number in range(200)]).to_bytes()
    assert len(data) < 100_000 + 4_000


@given(position=st.integers(0, 10_000), bit=st.integers(0, 7))
def test_one_flipped_bit_is_found(position: int, bit: int) -> None:
    data = bytearray(assign("d", 500, ["a", "b", "c"]).to_bytes())
    data[position % len(data)] ^= 1 << bit
    with pytest.raises(DamagedRecordError):
        Assignment.from_bytes(bytes(data))


@given(st.binary(max_size=200))
def test_foreign_and_cut_bytes_are_refused(data: bytes) -> None:
    for candidate in (data, assign("d", 50, ["a"]).to_bytes()[: -1 - len(data)]):
        with pytest.raises(DamagedRecordError):
            Assignment.from_bytes(candidate)


def test_golden_digests_guard_the_meaning_of_running_jobs() -> None:
    first = assign("imagenet", 1_000, [f"worker-{number}" for number in range(7)])
    assert first.digest() == "2caef41319c771ba3e30d779a66c8ce0"
    assert assign("imagenet", 1_000, ["worker-0", "worker-9"], first).digest() == "33c584dd6404e3fdffa452f8df66a079"


def test_equal_assignments_are_one_key_and_unequal_ones_are_two() -> None:
    first, copy = assign("d", 10, ["a", "b"]), assign("d", 10, ["b", "a"])
    other = assign("d", 10, ["a", "c"])
    assert {first: "first", copy: "copy", other: "other"} == {first: "copy", other: "other"}
    assert first != first.to_bytes()


def test_an_assignment_says_its_weights_and_shows_its_size_but_not_its_shards() -> None:
    assignment = assign("d", 1_000, ["b", "a"], weights={"b": 3})
    assert assignment.weights == {"a": 1, "b": 3}
    assert repr(assignment) == "Assignment('d', 1000 shards, 2 workers)"


def test_more_workers_than_a_ring_holds_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(assignment_module, "MAX_NODES", 2)
    assert assign("d", 10, ["a", "b"]).workers == ("a", "b")
    with pytest.raises(ValueError, match="3 workers; at most 2 can be placed"):
        assign("d", 10, ["a", "b", "c"])


def test_bad_input_is_refused_with_what_to_do() -> None:
    before = assign("d", 10, ["a"])
    with pytest.raises(
        NoWorkersError, match="dataset 'd' cannot be assigned: there are no workers; register one first"
    ):
        assign("d", 10, [])
    with pytest.raises(ValueError, match="worker 'a' is given twice"):
        assign("d", 10, ["a", "b", "a"])
    with pytest.raises(
        ValueError, match="previous is of dataset 'd' with 10 shards, not of 'd' with 11; assign without"
    ):
        assign("d", 11, ["a"], before)
    with pytest.raises(ValueError, match="previous is of dataset 'd'"):
        assign("other", 10, ["a"], before)
    for shards in (0, -1, 2**31):
        with pytest.raises(ValueError, match=f"has {shards} shards; use 1 to"):
            assign("d", shards, ["a"])
    for weight in (0, -1, 2**21):
        with pytest.raises(ValueError, match=f"worker 'a' has weight {weight}"):
            assign("d", 10, ["a"], weights={"a": weight})
    with pytest.raises(UnknownWorkerError, match="worker 'ghost'"):
        assign("d", 10, ["a"], weights={"ghost": 2})
    with pytest.raises(UnknownWorkerError, match="worker 'ghost'"):
        before.shards_of("ghost")
    with pytest.raises(IndexError, match="shard 10 of dataset 'd', which has shards 0 to 9"):
        before.owner(10)
    with pytest.raises(ValueError, match="cannot be compared"):
        before.moved_from(assign("d", 11, ["a"]))
