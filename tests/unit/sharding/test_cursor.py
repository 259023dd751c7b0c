"""Whatever happens in an epoch, each of its samples is dealt exactly once to the model that survives."""

from __future__ import annotations

import json
from collections import Counter

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from strata.errors import DamagedRecordError, NoWorkersError
from strata.sharding import Assignment, EpochOrder, GlobalCursor, RangeSet, StickyCursor, assign, cursor_from_json
from strata.sharding.cursor import check_spans, span_positions, spans_of

WORKERS = st.lists(st.sampled_from([f"w{number}" for number in range(9)]), min_size=1, max_size=7, unique=True)
SIZES = {"total_samples": st.integers(1, 120), "shard_size": st.integers(1, 20), "seed": st.integers(0, 9)}


def through_json(cursor: GlobalCursor | StickyCursor) -> GlobalCursor | StickyCursor:
    return cursor_from_json(json.loads(json.dumps(cursor.to_json())))


class StickyEpoch(RuleBasedStateMachine):
    """One epoch of a job in sticky order: what the model has seen is counted by hand, beside the cursor."""

    @initialize(shuffle=st.booleans(), workers=WORKERS, **SIZES)
    def start(self, total_samples: int, shard_size: int, seed: int, shuffle: bool, workers: list[str]) -> None:
        self.order = EpochOrder(total_samples, shard_size, seed=seed, epoch=2, shuffle=shuffle)
        self.cursor = StickyCursor(epoch=2)
        self.seen: Counter[int] = Counter()
        self.checkpoints = [(self.cursor.to_json(), self.seen.copy())]
        self.assignment: Assignment | None = None
        self.rescale(workers)

    @rule(workers=WORKERS)
    def rescale(self, workers: list[str]) -> None:
        """Workers come and go, at any moment; what is left is dealt anew."""
        self.assignment = assign("d", self.order.num_shards, workers, self.assignment)
        self.leases = self.cursor.deal(self.order, "d", workers, self.assignment)

    @rule(choice=st.integers(0, 10**6), samples=st.integers(1, 25))
    def progress(self, choice: int, samples: int) -> None:
        """One worker consumes the next samples of its shard lease and reports them."""
        worker = sorted(self.leases)[choice % len(self.leases)]
        done = []
        rest = self.leases[worker].tolist()
        while samples and rest:
            shard, begin, end = rest[0]
            stop = min(end, begin + samples)
            self.seen.update(self.order.samples_of(shard, begin, stop).tolist())
            done.append((shard, begin, stop))
            samples -= stop - begin
            rest = [[shard, stop, end], *rest[1:]] if stop < end else rest[1:]
        self.leases[worker] = np.array(rest, dtype=np.int64).reshape(-1, 3)
        self.cursor = self.cursor.advance(self.order, done)

    @rule()
    def checkpoint(self) -> None:
        self.checkpoints.append((self.cursor.to_json(), self.seen.copy()))

    @rule(choice=st.integers(0, 10**6), workers=WORKERS)
    def fail_and_restore(self, choice: int, workers: list[str]) -> None:
        """The job dies with all it did since a checkpoint, and goes on from there with other workers."""
        record, seen = self.checkpoints[choice % len(self.checkpoints)]
        restored = cursor_from_json(json.loads(json.dumps(record)))
        assert isinstance(restored, StickyCursor)
        self.cursor, self.seen = restored, seen.copy()
        self.rescale(workers)

    @precondition(lambda self: hasattr(self, "leases"))
    @invariant()
    def seen_and_dealt_are_every_sample_once(self) -> None:
        dealt = Counter(
            sample
            for spans in self.leases.values()
            for shard, begin, end in spans.tolist()
            for sample in self.order.samples_of(shard, begin, end).tolist()
        )
        assert self.seen + dealt == Counter(range(self.order.total_samples))
        assert self.cursor.remaining(self.order).count == dealt.total()

    def teardown(self) -> None:
        if hasattr(self, "leases"):
            for at in range(len(self.leases)):
                self.progress(at, 10**6)
            assert self.seen == Counter(range(self.order.total_samples))


TestStickyEpoch = StickyEpoch.TestCase


class GlobalEpoch(RuleBasedStateMachine):
    """One epoch of a job in global order, in steps of one global batch."""

    @initialize(window=st.integers(1, 5), workers=WORKERS, **SIZES)
    def start(self, total_samples: int, shard_size: int, seed: int, window: int, workers: list[str]) -> None:
        self.order = EpochOrder(total_samples, shard_size, seed=seed, window_shards=window)
        self.cursor = GlobalCursor()
        self.seen: list[int] = []
        self.checkpoints = [(self.cursor.to_json(), self.seen.copy())]
        self.rescale(workers)

    @rule(workers=WORKERS)
    def rescale(self, workers: list[str]) -> None:
        self.leases = {worker: list(lease) for worker, lease in self.cursor.deal(self.order, workers).items()}

    @rule(batch=st.integers(1, 30))
    def step(self, batch: int) -> None:
        """All workers together consume the next batch, each its own positions."""
        positions = sorted(position for lease in self.leases.values() for position in lease)[:batch]
        for lease in self.leases.values():
            lease[:] = [position for position in lease if position not in positions]
        self.seen += self.order.samples_at(np.array(positions, dtype=np.int64)).tolist()
        self.cursor = self.cursor.advance(len(positions))

    @rule()
    def checkpoint(self) -> None:
        self.checkpoints.append((self.cursor.to_json(), self.seen.copy()))

    @rule(choice=st.integers(0, 10**6), workers=WORKERS)
    def fail_and_restore(self, choice: int, workers: list[str]) -> None:
        record, seen = self.checkpoints[choice % len(self.checkpoints)]
        restored = cursor_from_json(json.loads(json.dumps(record)))
        assert isinstance(restored, GlobalCursor)
        self.cursor, self.seen = restored, seen.copy()
        self.rescale(workers)

    @precondition(lambda self: hasattr(self, "leases"))
    @invariant()
    def the_model_has_seen_the_beginning_of_the_one_order(self) -> None:
        assert self.seen == self.order.samples_at(np.arange(self.cursor.position)).tolist()
        left = sorted(position for lease in self.leases.values() for position in lease)
        assert left == list(range(self.cursor.position, self.order.total_samples))


TestGlobalEpoch = GlobalEpoch.TestCase


@given(workers=WORKERS, more=WORKERS, **SIZES)
def test_unfinished_shards_are_dealt_evenly_and_stay_with_their_owner(
    workers: list[str], more: list[str], total_samples: int, shard_size: int, seed: int
) -> None:
    order = EpochOrder(total_samples, shard_size, seed=seed)
    assignment = assign("d", order.num_shards, workers)
    half = [(shard, 0, int(order.lengths_of(np.array([shard]))[0])) for shard in range(order.num_shards // 2)]
    cursor = StickyCursor().advance(order, half)
    for now in (workers, more):
        counts = [len(spans) for spans in cursor.deal(order, "d", now, assignment).values()]
        assert max(counts) - min(counts) <= 1
    untouched = StickyCursor().deal(order, "d", workers, assignment)
    assert all(sorted(spans[:, 0]) == assignment.shards_of(w).tolist() for w, spans in untouched.items())


@given(**SIZES)
def test_each_share_is_in_the_order_of_the_epoch(total_samples: int, shard_size: int, seed: int) -> None:
    order = EpochOrder(total_samples, shard_size, seed=seed)
    for spans in StickyCursor().deal(order, "d", ["a", "b", "c"]).values():
        assert (np.diff(order.ranks_of(spans[:, 0])) > 0).all()


@given(pairs=st.lists(st.tuples(st.integers(0, 119), st.integers(1, 9)), max_size=6), window=st.integers(1, 4), **SIZES)
def test_spans_name_exactly_the_positions_that_they_were_made_of(
    pairs: list[tuple[int, int]], window: int, total_samples: int, shard_size: int, seed: int
) -> None:
    order = EpochOrder(total_samples, shard_size, seed=seed, window_shards=window)
    starts = [min(start, total_samples) for start, _ in pairs]
    positions = RangeSet(starts, [min(start + length, total_samples) for start, length in pairs])
    spans = spans_of(order, positions)
    assert span_positions(order, spans) == positions
    if window > 1:
        assert spans.tolist() == [[0, start, stop] for start, stop in positions], "positions of the whole epoch"


@pytest.mark.parametrize("span", [(1, 0, 1), (0, 0, 96), (0, -1, 5), (-1, 0, 1)])
def test_a_span_outside_the_epoch_is_refused_where_windows_are_several_shards(span: tuple[int, int, int]) -> None:
    order = EpochOrder(95, 10, window_shards=3)
    check_spans(order, [(0, 0, 95)])
    with pytest.raises(ValueError, match=r"of a dataset that has 0 to 0|of shard 0, which has 95"):
        check_spans(order, [span])


@given(st.integers(0, 100), st.integers(0, 100))
def test_merging_global_cursors_keeps_the_further(first: int, second: int) -> None:
    merged = GlobalCursor(1, first).merge(GlobalCursor(1, second))
    assert merged == GlobalCursor(1, max(first, second)) == GlobalCursor(1, second).merge(GlobalCursor(1, first))


def test_merging_sticky_cursors_keeps_what_either_has_seen() -> None:
    order = EpochOrder(100, 10)
    first, second = StickyCursor().advance(order, [(3, 0, 4)]), StickyCursor().advance(order, [(3, 2, 6), (5, 0, 1)])
    merged = first.merge(second)
    assert merged == second.merge(first)
    assert merged.consumed.count == 7


def test_a_cursor_of_a_whole_epoch_in_sequence_is_small() -> None:
    order = EpochOrder(10**9, 1_000, seed=3)
    workers = [f"w{number}" for number in range(64)]
    leases = StickyCursor().deal(order, "d", workers)
    # Every worker is half way through its shards, in the middle of one.
    spans = [span for lease in leases.values() for span in lease[: len(lease) // 2].tolist()]
    spans += [(shard, 0, 500) for shard, _, _ in (lease[len(lease) // 2].tolist() for lease in leases.values())]
    cursor = StickyCursor().advance(order, spans)
    assert cursor.consumed.count > 0.49 * 10**9
    assert len(json.dumps(cursor.to_json())) < 100_000
    assert through_json(cursor) == cursor


def test_a_sample_cannot_be_consumed_twice() -> None:
    order = EpochOrder(100, 10)
    cursor = StickyCursor().advance(order, [(3, 0, 5)])
    with pytest.raises(ValueError, match="samples 4 to 5 of shard 3 of epoch 0 were consumed before"):
        cursor.advance(order, [(3, 4, 7)])
    with pytest.raises(ValueError, match="the spans overlap"):
        cursor.advance(order, [(4, 0, 5), (4, 4, 7)])


@pytest.mark.parametrize(
    ("span", "message"),
    [
        ((10, 0, 1), "shard 10 of a dataset that has 0 to 9"),
        ((-1, 0, 1), "shard -1 of a dataset"),
        ((0, -1, 1), "samples -1 to 1 of shard 0, which has 10"),
        ((0, 5, 2), "samples 5 to 2 of shard 0, which has 10"),
        ((9, 0, 6), "samples 0 to 6 of shard 9, which has 5"),
    ],
)
def test_a_span_outside_its_shard_is_refused(span: tuple[int, int, int], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        StickyCursor().advance(EpochOrder(95, 10), [span])


def test_cursors_of_other_epochs_and_datasets_are_refused() -> None:
    order = EpochOrder(100, 10, epoch=1)
    with pytest.raises(ValueError, match="a cursor of epoch 0 with the order of epoch 1"):
        StickyCursor(0).remaining(order)
    with pytest.raises(ValueError, match="a cursor of epoch 0 with the order of epoch 1"):
        GlobalCursor(0).remaining(order)
    with pytest.raises(ValueError, match="position 101 of an epoch of 100 samples"):
        GlobalCursor(1, 101).remaining(order)
    with pytest.raises(ValueError, match="position 101 of an epoch of 100 samples"):
        StickyCursor(1, RangeSet([100], [101])).remaining(order)
    with pytest.raises(ValueError, match="cursors of epochs 1 and 2 cannot be merged"):
        GlobalCursor(1).merge(GlobalCursor(2))
    with pytest.raises(ValueError, match="cursors of epochs 1 and 2 cannot be merged"):
        StickyCursor(1).merge(StickyCursor(2))
    with pytest.raises(ValueError, match="cannot go back by 3 samples"):
        GlobalCursor().advance(-3)
    with pytest.raises(ValueError, match="use 0 or more"):
        GlobalCursor(-1)
    with pytest.raises(ValueError, match="use 0 or more"):
        StickyCursor(-1)


def test_dealing_to_nobody_or_twice_to_one_is_refused() -> None:
    order = EpochOrder(100, 10)
    for deal in (
        lambda workers: GlobalCursor().deal(order, workers),
        lambda workers: StickyCursor().deal(order, "d", workers),
    ):
        with pytest.raises(NoWorkersError):
            deal([])
        with pytest.raises(ValueError, match="given twice"):
            deal(["a", "a"])


@pytest.mark.parametrize(
    "record",
    [
        None,
        [],
        {},
        {"order": "dynamic"},
        {"order": "global", "epoch": 0},
        {"order": "global", "epoch": -1, "position": 0},
        {"order": "global", "epoch": 0, "position": "7"},
        {"order": "sticky", "epoch": 0, "consumed": [1]},
        {"order": "sticky", "epoch": None, "consumed": []},
    ],
)
def test_what_is_not_a_cursor_is_refused(record: object) -> None:
    with pytest.raises(DamagedRecordError, match="this is not a valid"):
        cursor_from_json(record)
