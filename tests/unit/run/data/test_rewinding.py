"""A rewind that would not be exact is refused, with what to do instead, and changes nothing."""

from __future__ import annotations

from typing import Any

import pytest

from strata.checkpoint import CheckpointManager
from strata.checkpoint.commit.protocol import LEDGER
from strata.errors import (
    ConflictingPartsError,
    RewindError,
    StorageUnavailableError,
    UnfinishedRewindError,
)
from strata.run.data.batch_numbers import BATCHES, BatchNumbers
from strata.run.rewinding import parse_batches, rewind_job
from strata.sharding import DataOrder, DatasetParams, GlobalCursor, RangeSet, StickyCursor
from strata.storage import MemoryStorage

PARAMS = DatasetParams(dataset_id="d", total_samples=100, shard_size=10, data_order=DataOrder.GLOBAL)
NUMBERS = BatchNumbers(total_samples=100, batch_size=8, drop_last=False)  # 13 batches an epoch


def cursors(step: int, **datasets: Any) -> dict[str, Any]:
    epoch, batches = divmod(step, 13)
    row = {"dataset": PARAMS.to_json(), **GlobalCursor(epoch, min(100, 8 * batches)).to_json()}
    return {LEDGER: [row], BATCHES: datasets or {"d": NUMBERS.to_json()}}


def saved(*steps: int, storage: Any = None, **datasets: Any) -> CheckpointManager:
    manager = CheckpointManager(storage=storage or MemoryStorage(), job_id="llm", keep_count=None)
    for step in steps:
        manager.save({"step": step}, step, cursors=cursors(step, **datasets))
    return manager


@pytest.mark.parametrize(("text", "expected"), [("7..9", (7, 9)), ("12", (12, 12)), (" 1..1 ", (1, 1))])
def test_a_range_of_batches_is_two_numbers_or_one(text: str, expected: tuple[int, int]) -> None:
    assert parse_batches(text) == expected


@pytest.mark.parametrize(
    "text", ["", "..", "5..", "..5", "9..7", "0..3", "-2..4", "1-5", "1.5", "a..b", "1..2..3", "1e3"]
)
def test_other_text_is_no_range(text: str) -> None:
    with pytest.raises(ValueError, match="is no range of batches"):
        parse_batches(text)


def test_a_step_without_checkpoint_is_refused_and_the_nearest_are_named() -> None:
    with saved(5, 10, 15) as manager:
        with pytest.raises(RewindError, match="no committed checkpoint of step 7; the nearest are 5 and 10"):
            rewind_job(manager, "llm", 7)
        with pytest.raises(RewindError, match=r"the nearest are 15$"):
            rewind_job(manager, "llm", 99)
        assert manager.list_checkpoints() == [5, 10, 15]
    with (
        saved() as nothing,
        pytest.raises(RewindError, match="has no committed checkpoint of it; is --checkpoints right"),
    ):
        rewind_job(nothing, "llm", 7)


def test_batches_before_the_step_cannot_be_skipped_any_more() -> None:
    with saved(5, 10, 15) as manager:
        for first, last in ((3, 4), (10, 12), (12, 11)):
            with pytest.raises(RewindError, match="cannot be skipped after step 10"):
                rewind_job(manager, "llm", 10, [(first, last)])
        assert manager.list_checkpoints() == [5, 10, 15]


def test_an_order_in_which_batches_have_no_number_is_refused_only_for_a_skip() -> None:
    with saved(5, 10, d=None) as manager:
        with pytest.raises(RewindError, match="not in global order"):
            rewind_job(manager, "llm", 5, [(7, 8)])
        assert rewind_job(manager, "llm", 5).set_aside == (10,)


def test_which_dataset_is_meant_must_be_clear() -> None:
    with saved(5, 10, d=NUMBERS.to_json(), e=NUMBERS.to_json()) as manager:
        with pytest.raises(RewindError, match="2 datasets, d, e; say which with --dataset"):
            rewind_job(manager, "llm", 5, [(7, 8)])
        with pytest.raises(RewindError, match="no dataset 'f'; it has d, e"):
            rewind_job(manager, "llm", 5, [(7, 8)], "f")
        assert rewind_job(manager, "llm", 5, [(7, 8)], "d").dataset == "d"


def test_a_checkpoint_that_says_nothing_of_its_batches_is_refused_for_a_skip() -> None:
    with CheckpointManager(storage=MemoryStorage(), job_id="llm") as manager:
        manager.save({"x": 1}, 5)
        with pytest.raises(RewindError, match="does not say how its data is cut into batches"):
            rewind_job(manager, "llm", 5, [(7, 8)])


def test_where_a_step_is_not_one_batch_the_numbers_mean_nothing() -> None:
    with CheckpointManager(storage=MemoryStorage(), job_id="llm") as manager:
        manager.save({"x": 1}, 5, cursors=cursors(10))
        with pytest.raises(RewindError, match="step 5 comes after 10 batches"):
            rewind_job(manager, "llm", 5, [(7, 8)])
        torn = {**PARAMS.to_json()}
        row = {"dataset": torn, **StickyCursor(0, RangeSet([0, 8], [4, 16])).to_json()}
        manager.save({"x": 1}, 6, cursors={LEDGER: [row], BATCHES: {"d": NUMBERS.to_json()}})
        with pytest.raises(RewindError, match="a part of a batch"):
            rewind_job(manager, "llm", 6, [(7, 8)])


def test_what_would_change_nothing_is_said_to() -> None:
    with saved(5, 10) as manager:
        with pytest.raises(RewindError, match="step 10 is the newest"):
            rewind_job(manager, "llm", 10)
        rewind_job(manager, "llm", 10, [(12, 13)])
        with pytest.raises(RewindError, match="step 10 is the newest"):
            rewind_job(manager, "llm", 10, [(12, 13)])
        # A skip that was a mistake is taken back by a rewind without it.
        assert rewind_job(manager, "llm", 10).skips == ()


def test_batches_are_counted_over_epochs() -> None:
    for step in (0, 1, 12, 13, 14, 26, 30):
        assert NUMBERS.count(cursors(step), "d") == step
    assert NUMBERS.count({}, "d") == 0
    dropping = BatchNumbers(total_samples=100, batch_size=8, drop_last=True)
    state = GlobalCursor(1, 16).to_json()
    assert dropping.count({"d": state}, "d") == 12 + 2


class Failing(MemoryStorage):
    """A store that goes away at the n-th deletion."""

    def __init__(self, after: int) -> None:
        super().__init__()
        self.left = after

    async def delete(self, path: str) -> None:
        if path.endswith("metadata.json"):
            self.left -= 1
            if self.left < 0:
                raise StorageUnavailableError(
                    path, problem="gone", attempts=1, elapsed_s=0.0, backend="memory", hint="wait"
                )
        await super().delete(path)


@pytest.mark.parametrize("after", [0, 1])
def test_an_interrupted_rewind_keeps_the_job_from_starting_until_it_is_finished(after: int) -> None:
    storage = Failing(after)
    with saved(5, 10, 15, storage=storage) as manager:
        with pytest.raises(StorageUnavailableError):
            rewind_job(manager, "llm", 5, [(7, 8)])
        with pytest.raises(UnfinishedRewindError, match="to step 5 was interrupted"):
            manager.load()
        storage.left = 99
        done = rewind_job(manager, "llm", 5)
        assert (done.number, done.skips, done.set_aside) == (1, ((7, 8),), (10, 15))
        restored = manager.load()
        assert (restored.step, [each.number for each in restored.rewinds]) == (5, [1])


class Raced(MemoryStorage):
    """Another process begins a rewind right before this one does."""

    async def write_new(self, path: str, data: Any) -> None:
        if "/rewinds/" in path:
            await self.write(path, b"{}")
        await super().write_new(path, data)


def test_of_two_rewinds_at_the_same_time_one_is_refused_and_sets_nothing_aside() -> None:
    storage = Raced()
    with saved(5, 10, storage=storage) as manager:
        with pytest.raises(RewindError, match="another rewind was begun at the same time; look at it first"):
            manager.rewind(5)
        assert manager.list_checkpoints() == [5, 10]


def test_parts_of_workers_that_know_different_rewinds_make_no_checkpoint() -> None:
    storage = MemoryStorage()
    with saved(5, 10, storage=storage) as unaware, CheckpointManager(storage=storage, job_id="llm") as aware:
        unaware.load()
        rewind_job(aware, "llm", 5)
        aware.load()
        aware.save({"a": 1}, 6, part=0, parts=2)
        unaware.save({"b": 1}, 6, part=1, parts=2)
        with pytest.raises(ConflictingPartsError, match="different rewinds"):
            aware.commit(6)
