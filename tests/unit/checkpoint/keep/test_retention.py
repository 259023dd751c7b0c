"""Retention keeps what it promised, says why, and never takes what a kept checkpoint needs."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from strata.checkpoint import Best, CheckpointManager, RetentionPolicy
from strata.checkpoint.keep.retention import YOUNG_S, Facts, decide, find_debris, find_unneeded
from strata.clock import ManualClock
from strata.errors import CheckpointNotFoundError, StoragePermissionError
from strata.storage import MemoryStorage, ObjectInfo
from tests.testbed.pace import stretch

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Iterable


def infos(rows: Iterable[tuple[str, float, int]]) -> list[ObjectInfo]:
    return [ObjectInfo(path, size_bytes, modified_s, None) for path, modified_s, size_bytes in rows]


FACTS = st.dictionaries(
    st.integers(0, 60),
    st.tuples(
        st.floats(0, 1000),
        st.booleans(),
        st.one_of(st.none(), st.floats(allow_nan=True), st.text(max_size=2)),
        st.frozensets(st.integers(0, 60), max_size=3),
    ),
    max_size=12,
).map(
    lambda found: [
        Facts(
            step,
            created_s,
            pinned,
            {"loss": loss},
            frozenset({f"step_{step}/own"} | {f"step_{other}/own" for other in others}),
        )
        for step, (created_s, pinned, loss, others) in found.items()
    ]
)
POLICIES = st.builds(
    RetentionPolicy,
    keep_count=st.one_of(st.none(), st.integers(1, 5)),
    keep_every=st.one_of(st.none(), st.integers(1, 10)),
    ttl_s=st.one_of(st.none(), st.floats(0, 1000)),
    best=st.one_of(st.none(), st.builds(Best, st.just("loss"), st.sampled_from(["min", "max"]), st.integers(1, 3))),
)


@given(FACTS, POLICIES, st.floats(0, 2000), st.sets(st.integers(0, 60)))
def test_pinned_read_newest_and_last_committed_checkpoints_always_stay(
    facts: list[Facts], policy: RetentionPolicy, now_s: float, in_use: set[int]
) -> None:
    verdicts = {verdict.step: verdict for verdict in decide(facts, policy, now_s=now_s, in_use=in_use)}
    assert set(verdicts) == {each.step for each in facts}
    assert all(verdict.reason for verdict in verdicts.values())
    for each in facts:
        if each.pinned or each.step in in_use or each.step == max(verdicts):
            assert verdicts[each.step].keep
    if facts:
        assert verdicts[max(facts, key=lambda each: (each.created_s, each.step)).step].keep
    if policy.ttl_s is None:
        newest = sorted(verdicts)[-(policy.keep_count or len(verdicts)) :]
        assert all(verdicts[step].keep for step in newest)
        assert all(verdicts[s].keep for s in verdicts if policy.keep_every and s % policy.keep_every == 0)


@given(FACTS, st.data())
def test_no_object_that_a_kept_checkpoint_needs_is_ever_unneeded(facts: list[Facts], data: st.DataObject) -> None:
    going = data.draw(st.sets(st.sampled_from([each.step for each in facts]))) if facts else set()
    victims = [each for each in facts if each.step in going]
    kept = [each for each in facts if each.step not in going]
    stored = sorted({path for each in facts for path in each.objects})
    unneeded = set(find_unneeded(victims, kept, stored))
    debris = set(
        find_debris(infos((path, 0.0, 1) for path in stored), kept, now_s=10, policy=RetentionPolicy(grace_s=5))
    )
    for each in kept:
        assert unneeded.isdisjoint(each.objects)
        assert debris.isdisjoint(each.objects)
    own = {f"step_{step}/own" for step in going}
    assert own - {path for each in kept for path in each.objects} <= unneeded


def test_the_best_by_metric_are_kept_and_nan_is_never_best() -> None:
    losses: list[Any] = [0.5, float("nan"), 0.1, 0.9, None, 0.7]
    facts = [Facts(step, step, metadata={"loss": loss}) for step, loss in enumerate(losses)]
    policy = RetentionPolicy(keep_count=1, best=Best("loss", "min", 2))
    assert [v.step for v in decide(facts, policy, now_s=0) if v.keep] == [0, 2, 5]


@pytest.mark.parametrize("wrong", [{"mode": "least"}, {"count": 0}])
def test_a_best_that_can_never_be_found_is_refused(wrong: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match=r"Best\(metric='loss', .*: mode is 'min' or 'max', and count is 1 or more"):
        Best("loss", **wrong)


def test_a_negative_bound_on_debris_is_refused() -> None:
    with pytest.raises(ValueError, match="debris_bytes=-1 cannot be negative"):
        RetentionPolicy(debris_bytes=-1)


def test_a_run_that_restarts_from_an_older_step_keeps_what_it_saves() -> None:
    facts = [Facts(step, created_s=step) for step in (60, 70, 80)] + [Facts(55, created_s=1000)]
    kept = [v.step for v in decide(facts, RetentionPolicy(keep_count=2), now_s=1000) if v.keep]
    assert kept == [55, 70, 80]


def test_debris_is_swept_only_after_its_grace_time_and_never_under_a_running_save() -> None:
    stored = infos([("step_1/old", 0, 1), ("step_2/young", 95, 1), ("step_3/ours", 0, 1), ("elsewhere", 0, 1)])
    policy = RetentionPolicy(grace_s=10)
    assert find_debris(stored, [], now_s=100, policy=policy, untouchable={3}) == ["step_1/old"]


def test_debris_is_bounded_by_bytes_too_and_the_newest_of_it_stays() -> None:
    hour = YOUNG_S
    stored = infos((f"step_{age}/part", 100 * hour - age * hour, 10) for age in (0, 1, 2, 3, 4))
    policy = RetentionPolicy(debris_bytes=25)
    assert find_debris(stored, [], now_s=100 * hour + 1, policy=policy) == ["step_2/part", "step_3/part", "step_4/part"]
    kept = [Facts(50, 0.0, size_bytes=20)]
    assert find_debris(stored, kept, now_s=100 * hour + 1, policy=policy) == ["step_4/part"]
    now = infos((f"step_{number}/part", 100 * hour, 10) for number in range(9))
    assert find_debris(now, [], now_s=100 * hour + 1, policy=policy) == [], "a save under way may be writing them"


def test_what_came_too_late_for_a_committed_step_goes_without_the_grace_time() -> None:
    stored = infos([("step_1/own", 0, 1), ("step_1/late", 0, 1), ("step_1/part-00001-of-00002.json", 0, 1)])
    kept = [Facts(1, 0.0, objects=frozenset({"step_1/own"}))]
    assert find_debris(stored, kept, now_s=YOUNG_S + 1, policy=RetentionPolicy()) == ["step_1/late"]


@pytest.fixture
def clock() -> ManualClock:
    return ManualClock()


@pytest.fixture
def storage(clock: ManualClock) -> MemoryStorage:
    return MemoryStorage(clock=clock)


def save_all(manager: CheckpointManager, steps: range) -> None:
    for step in steps:
        manager.save({"w": np.full(3, step)}, step, metadata={"loss": abs(step - 4)})
        manager.wait_pending(30)


def test_a_manager_keeps_what_its_policy_says(storage: MemoryStorage) -> None:
    with CheckpointManager(
        storage=storage, retention=RetentionPolicy(keep_count=2, keep_every=5, best=Best("loss"))
    ) as manager:
        save_all(manager, range(1, 10))
        assert manager.list_checkpoints() == [4, 5, 8, 9]
        assert {path.split("/")[2] for path in storage._objects} == {"step_4", "step_5", "step_8", "step_9"}


def test_a_pinned_checkpoint_stays_until_it_is_unpinned(storage: MemoryStorage) -> None:
    with CheckpointManager(storage=storage, keep_count=1) as manager:
        save_all(manager, range(1, 2))
        manager.pin(1, "for the paper")
        save_all(manager, range(2, 4))
        assert manager.list_checkpoints() == [1, 3]
        pinned = manager.get_by_step(1)
        assert pinned is not None
        assert pinned.pinned
        manager.unpin(1)
        assert [verdict.step for verdict in manager.prune(dry_run=True)] == [1]
        assert manager.list_checkpoints() == [1, 3]
        manager.prune()
        assert manager.list_checkpoints() == [3]
        with pytest.raises(CheckpointNotFoundError):
            manager.pin(1)


def test_the_last_checkpoint_outlives_its_time(storage: MemoryStorage, clock: ManualClock) -> None:
    with CheckpointManager(storage=storage, retention=RetentionPolicy(ttl_s=60), clock=clock) as manager:
        save_all(manager, range(1, 3))
        clock.advance(3600)
        manager.prune()
        assert manager.list_checkpoints() == [2]


def test_what_dead_saves_left_is_swept_after_the_grace_time(storage: MemoryStorage, clock: ManualClock) -> None:
    with CheckpointManager(storage=storage, retention=RetentionPolicy(grace_s=100), clock=clock) as manager:
        asyncio.run(storage.write("default/checkpoints/step_7/model-00001-of-00001.safetensors", b"dead"))
        asyncio.run(storage.write("default/notes.txt", b"not ours"))
        save_all(manager, range(1, 2))
        assert len(storage._objects) == 4
        clock.advance(101)
        save_all(manager, range(2, 3))
        assert "default/checkpoints/step_7/model-00001-of-00001.safetensors" not in storage._objects
        assert "default/notes.txt" in storage._objects


def test_a_checkpoint_with_a_damaged_manifest_is_left_for_people(storage: MemoryStorage, clock: ManualClock) -> None:
    with CheckpointManager(
        storage=storage, retention=RetentionPolicy(grace_s=100, keep_count=1), clock=clock
    ) as manager:
        save_all(manager, range(1, 2))
        asyncio.run(storage.write("default/checkpoints/step_1/metadata.json", b"{}"))
        clock.advance(1000)
        save_all(manager, range(2, 4))
        assert len([path for path in storage._objects if "step_1/" in path]) == 2


def test_a_checkpoint_that_is_being_read_is_not_deleted(clock: ManualClock) -> None:
    class SlowStorage(MemoryStorage):
        async def read_into(self, path: str, buffer: Any, *, start: int = 0) -> None:
            if "step_1/" in path:
                await manager.save_async({"w": np.full(3, 2)}, 2)
                assert await manager._engine.pruner.prune() == []
            await super().read_into(path, buffer, start=start)

    with CheckpointManager(storage=SlowStorage(), keep_count=1) as manager:
        save_all(manager, range(1, 2))
        assert manager.load(1).data["w"][0] == 1
        manager.wait_pending(30)
        manager.prune()


def test_a_damaged_step_can_be_deleted_and_saved_again(storage: MemoryStorage) -> None:
    with CheckpointManager(storage=storage) as manager:
        save_all(manager, range(1, 3))
        for damaged in ("metadata.json", "model-00001-of-00001.safetensors"):
            asyncio.run(storage.write(f"default/checkpoints/step_2/{damaged}", b"damaged"))
            assert manager.load().step == 1
            manager.delete(2)
            assert not [path for path in storage._objects if "step_2/" in path]
            manager.save({"w": np.full(3, 2)}, 2)
            assert manager.load().step == 2
        manager.pin(2)
        with pytest.raises(ValueError, match="step 2 is pinned"):
            manager.delete(2)
        with pytest.raises(CheckpointNotFoundError):
            manager.delete(3)


def test_debris_that_cannot_be_looked_for_is_logged_and_does_not_touch_the_save(
    caplog: pytest.LogCaptureFixture,
) -> None:
    class BlindStorage(MemoryStorage):
        is_blind = True

        async def list(self, prefix: str = "") -> AsyncIterator[ObjectInfo]:
            if self.is_blind and not prefix.endswith("/rewinds"):
                raise StoragePermissionError(prefix, backend="memory", problem="refused", hint="grant it")
            async for info in super().list(prefix):
                yield info

    storage = BlindStorage()
    with CheckpointManager(storage=storage) as manager:
        handle = manager.save_background({"w": np.ones(3)}, 1)
        assert handle.result(stretch(30)).committed
        storage.is_blind = False
        assert manager.list_checkpoints() == [1]
    assert "the files of interrupted saves could not be removed: " in caplog.text
    assert "refused; grant it" in caplog.text


def test_a_run_that_dies_in_every_save_does_not_fill_the_disk(storage: MemoryStorage, clock: ManualClock) -> None:
    asyncio.run(storage.write("default/checkpoints/step_1/model-00001-of-00001.safetensors", bytes(100)))
    asyncio.run(storage.write("default/checkpoints/step_2/model-00001-of-00001.safetensors", bytes(100)))
    clock.advance(2 * YOUNG_S)
    seen: list[set[str]] = []

    def look(name: str) -> None:
        if name == "writing":
            seen.append(set(storage._objects))

    retention = RetentionPolicy(keep_count=None, debris_bytes=150)
    with CheckpointManager(storage=storage, clock=clock, retention=retention, observer=look) as manager:
        manager.save({"w": np.ones(3)}, 3)
    assert len(seen[0]) == 1, "the older of the two was removed before anything new was written"
