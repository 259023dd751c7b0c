"""What a training loop relies on: exact round trips, handles, policies, and that damage is never returned."""

from __future__ import annotations

import asyncio
import functools
import threading
from concurrent.futures import Future
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings

from strata.checkpoint import CheckpointManager, RetentionPolicy, SaveHandle, SavePolicy
from strata.checkpoint.format import kinds
from strata.checkpoint.save import saver
from strata.checkpoint.save.progress import SaveProgress
from strata.checkpoint.save.staging import StagingPool
from strata.errors import (
    CheckpointBusyError,
    CheckpointError,
    CheckpointExistsError,
    CheckpointNotFoundError,
    CheckpointTimeoutError,
    ConfigError,
    InvalidIdError,
    ManagerClosedError,
    StorageFullError,
    UnchangedStateWarning,
    UnsavableStateError,
)
from strata.storage import MemoryStorage
from tests.testbed.pace import stretch
from tests.unit.checkpoint.states import STATES, same

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path


class GatedStorage(MemoryStorage):
    """Memory whose writes wait at a gate, and fail if they are told to."""

    def __init__(self) -> None:
        super().__init__()
        self.gate = threading.Event()
        self.gate.set()
        self.failure: Exception | None = None

    async def write(self, path: str, data: Any) -> None:
        await asyncio.to_thread(self.gate.wait, 30)
        if self.failure is not None:
            raise self.failure
        await super().write(path, data)


@pytest.fixture
def storage() -> GatedStorage:
    return GatedStorage()


@pytest.fixture
def manager(storage: GatedStorage) -> Iterator[CheckpointManager]:
    with CheckpointManager(storage=storage) as manager:
        yield manager
        storage.gate.set()


def stored(storage: MemoryStorage, path: str) -> bytes:
    return storage._objects[f"default/checkpoints/{path}"].data


@given(state=STATES)
@settings(suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_every_state_comes_back_exactly(state: Any) -> None:
    with CheckpointManager(storage=MemoryStorage()) as manager:
        manager.save(state, step=0)
        assert same(manager.load().data, bytes(state) if isinstance(state, bytes) else state)


def test_step_epoch_metadata_and_cursors_come_back(manager: CheckpointManager) -> None:
    metadata = {"loss": 0.5, "tags": ["a"]}
    manager.save({"w": np.ones(3)}, 7, 2, metadata, cursors={"imagenet": {"position": 5}}, generation=3)
    metadata["loss"] = 9.0
    restored = manager.load(7)
    assert (restored.step, restored.epoch, restored.generation) == (7, 2, 3)
    assert restored.metadata == {"loss": 0.5, "tags": ["a"]}
    assert restored.cursors == {"imagenet": {"position": 5}}
    assert manager.latest() == manager.get_by_step(7)
    assert manager.list_checkpoints() == [7]


def test_very_many_tiny_tensors_come_back(manager: CheckpointManager) -> None:
    count = min(100_000, 400 * settings.default.max_examples)
    state = {f"t{number}": np.array([number], np.int32) for number in range(count)}
    manager.save(state, 1)
    back = manager.load().data
    assert len(back) == len(state)
    assert all(back[f"t{number}"][0] == number for number in range(0, count, 997))


async def test_save_async_takes_bytes_and_returns_when_they_are_committed(
    manager: CheckpointManager, storage: GatedStorage
) -> None:
    storage.gate.clear()
    saving = asyncio.create_task(manager.save_async(b"model", step=1000))
    _, waiting = await asyncio.wait({saving}, timeout=0.05)
    assert waiting == {saving}
    storage.gate.set()
    info = await saving
    assert (info.step, info.committed) == (1000, True)
    assert (await manager.load_async()).data == b"model"
    assert stored(storage, "step_1000/model.bin") == b"model"


def test_state_that_is_changed_right_after_staging_is_saved_as_it_was(
    manager: CheckpointManager, storage: GatedStorage
) -> None:
    """pytorch#144657, NeMo-RL#3312: an async save captured what training did to the tensors later."""
    weights, raw = np.zeros(1000), bytearray(b"old")
    for step in (1, 2, 3):
        storage.gate.clear()
        weights[:] = step
        handle = manager.save_background({"w": weights, "raw": raw}, step)
        weights[:] = -1
        storage.gate.set()
        handle.result(stretch(30))
    assert [manager.load(step).data["w"][0] for step in (1, 2, 3)] == [1, 2, 3]


@pytest.mark.parametrize("starts_threads", [True, False])
def test_a_save_that_python_leaves_without_threads_at_exit_says_what_to_do(
    storage: GatedStorage, monkeypatch: pytest.MonkeyPatch, starts_threads: bool
) -> None:
    storage.failure = RuntimeError("can't create new thread at interpreter shutdown")
    monkeypatch.setattr(saver, "STARTS_THREADS_AT_EXIT", starts_threads)
    with CheckpointManager(storage=storage) as manager:
        handle = manager.save_background(b"x", 1)
    error = handle.error()
    assert isinstance(error, RuntimeError if starts_threads else CheckpointError)
    assert ("close the CheckpointManager before, or use Python 3.12.3 or newer" in str(error)) is not starts_threads


def test_a_failed_save_is_reported_and_raises_nothing_into_training(storage: GatedStorage) -> None:
    """Megatron-LM#1435: a failed save killed the run."""
    seen: list[tuple[int, str]] = []

    def on_error(handle: SaveHandle, error: Exception) -> None:
        seen.append((handle.step, type(error).__name__))
        raise RuntimeError("a broken callback does not matter either")

    with CheckpointManager(storage=storage, on_error=on_error) as manager:
        manager.save({"w": np.ones(2)}, 1)
        storage.failure = StorageFullError("x", backend="memory", problem="full")
        handle = manager.save_background({"w": np.zeros(2)}, 2)
        manager.wait_pending(30)
        assert handle.phase == "failed"
        assert isinstance(handle.error(), StorageFullError)
        assert seen == [(2, "StorageFullError")]
        assert (manager.counters.saved, manager.counters.failed) == (1, 1)
        with pytest.raises(StorageFullError):
            handle.result()
        with pytest.raises(StorageFullError):
            manager.save({"w": np.zeros(2)}, 3)
        assert manager.load().step == 1
        storage.failure = None
        manager.save({"w": np.zeros(2)}, 4)
        assert manager.load().step == 4


def test_old_checkpoints_stay_until_the_new_one_is_committed(storage: GatedStorage) -> None:
    """KempnerForge#102: old checkpoints were pruned before the new one was durable."""
    with CheckpointManager(storage=storage, keep_count=1) as manager:
        manager.save({"w": np.ones(2)}, 1)
        storage.failure = StorageFullError("x", backend="memory", problem="full")
        manager.save_background({"w": np.zeros(2)}, 2)
        manager.wait_pending(30)
        assert manager.list_checkpoints() == [1]
        storage.failure = None
        manager.save({"w": np.zeros(2)}, 3)
        manager.wait_pending(30)
        assert manager.list_checkpoints() == [3]
        assert not [path for path in storage._objects if "step_1/" in path]


def test_a_busy_manager_waits_skips_or_fails_as_it_was_told(storage: GatedStorage) -> None:
    state = {"w": np.ones(2)}
    for policy in ("skip", "fail"):
        with CheckpointManager(storage=storage, saving=SavePolicy(when_busy=policy), job_id=policy) as manager:
            storage.gate.clear()
            first = manager.save_background(state, 1)
            if policy == "skip":
                second = manager.save_background(state, 2)
                assert second.phase == "skipped"
                assert manager.counters.skipped == 1
                with pytest.raises(CheckpointBusyError, match=r"the save of step 1 \((staged|writing)\)"):
                    second.result()
            else:
                with pytest.raises(CheckpointBusyError):
                    manager.save_background(state, 2)
            storage.gate.set()
            first.result(stretch(30))
    with CheckpointManager(storage=storage, saving=SavePolicy(wait_timeout_s=0.01), job_id="wait") as manager:
        storage.gate.clear()
        first = manager.save_background(state, 1)
        late = manager.save_background(state, 2)
        assert isinstance(late.error(), CheckpointBusyError)
        storage.gate.set()
        first.result(stretch(30))
        state["w"][:] = 2
        manager.save(state, 3)


def test_a_wait_for_a_result_is_bounded_and_says_where_the_save_is(
    manager: CheckpointManager, storage: GatedStorage
) -> None:
    """marin#8534, marin#9209: waits without end that named nobody."""
    storage.gate.clear()
    handle = manager.save_background({"w": np.ones(2)}, 9)
    with pytest.raises(CheckpointTimeoutError, match=r"the save of step 9 is still (staged|writing)"):
        handle.result(0.01)
    with pytest.raises(CheckpointTimeoutError, match="step 9"):
        manager.wait_pending(0.01)
    storage.gate.set()
    assert handle.result(stretch(30)).step == 9


def test_a_state_that_did_not_change_since_the_last_step_is_warned_of(manager: CheckpointManager) -> None:
    """NeMo-RL#3312: three checkpoints in a row were bit-identical and nobody noticed."""
    manager.save({"w": np.ones(2), "step": 1}, 1)
    with pytest.warns(UnchangedStateWarning, match="step 2 is bit-identical to step 1"):
        manager.save({"w": np.ones(2), "step": 2}, 2)
    handle = manager.save_background({"w": np.ones(2)}, 3)
    handle.result(stretch(30))
    with pytest.warns(UnchangedStateWarning, match="step 3"):
        manager.wait_pending()
    manager.save({"w": np.zeros(2)}, 4)
    manager.save({"only": "plain values"}, 5)
    manager.save({"only": "plain values"}, 6)


@pytest.mark.parametrize("rows", [2, 1_000, 1_200_000])
def test_a_state_that_did_not_change_is_warned_of_although_random_numbers_were_drawn(
    manager: CheckpointManager, rows: int
) -> None:
    weights = {"w": np.ones(rows), "odd": np.ones(3, np.uint8)}
    manager.save(weights, 1, random_state=b"1" * 5_000)
    with pytest.warns(UnchangedStateWarning, match="step 2 is bit-identical to step 1"):
        manager.save(weights, 2, random_state=b"2" * 5_000)
    manager.save({**weights, "odd": np.zeros(3, np.uint8)}, 3, random_state=b"2" * 5_000)
    manager.save({"only": "plain values"}, 5, random_state=b"3" * 5_000)
    manager.save({"only": "plain values"}, 6, random_state=b"3" * 5_000)


def test_a_step_is_saved_once_and_the_first_stays(manager: CheckpointManager) -> None:
    manager.save({"w": np.ones(2)}, 1)
    with pytest.raises(CheckpointExistsError, match="step 1 is already committed"):
        manager.save({"w": np.zeros(2)}, 1)
    assert manager.load(1).data["w"][0] == 1


@pytest.mark.parametrize(
    ("arguments", "problem"),
    [
        ({"step": -1}, "step=-1"),
        ({"step": 1.5}, "step=1.5"),
        ({"step": True}, "step=True"),
        ({"step": {"w": np.ones(10_000)}}, "step is of type dict; use a whole number"),
        ({"step": 1, "epoch": -1}, "epoch=-1"),
        ({"step": 1, "cursors": {"loss": float("nan")}}, "cursors must be JSON"),
        ({"step": 1, "metadata": ["x"]}, "metadata must be a dict"),
        ({"step": 2**63}, "below 2"),
        ({"step": 1, "epoch": 2**63}, "epoch=.*below 2"),
        ({"step": 1, "generation": 2**63}, "generation=.*below 2"),
        ({"step": 1, "cursors": {"deep": functools.reduce(lambda inner, _: [inner], range(300))}}, "levels deep"),
        ({"step": 1, "cursors": {"halves": "\ud83d\ude00"}}, "cursors must be JSON: .*surrogates"),
        ({"step": 1, "part": 2, "parts": 2}, "part=2 must be below parts=2"),
    ],
)
def test_wrong_arguments_are_refused_before_anything_is_written(
    manager: CheckpointManager, storage: GatedStorage, arguments: dict[str, Any], problem: str
) -> None:
    with pytest.raises(ValueError, match=problem):
        manager.save({"w": np.ones(2)}, **arguments)
    assert not storage._objects


def test_a_manifest_that_could_not_be_read_is_never_committed(
    manager: CheckpointManager, storage: GatedStorage, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(kinds, "MAX_DIMS", 3)
    monkeypatch.setattr("strata.checkpoint.format.kinds.check_tensor", lambda value: None)
    with pytest.raises(CheckpointError, match="step 1 was not committed, for it could not be read"):
        manager.save({"w": np.ones((1, 1, 1, 1))}, 1)
    assert manager.latest() is None


def test_an_object_that_cannot_be_saved_is_named_before_anything_is_written(
    manager: CheckpointManager, storage: GatedStorage
) -> None:
    with pytest.raises(UnsavableStateError, match=r"model\.hook is of type function"):
        manager.save_background({"model": {"w": np.ones(2), "hook": lambda: 0}}, 1)
    assert not storage._objects
    manager.save({"w": np.ones(2)}, 1)


def test_nothing_there_is_an_error_that_says_so(manager: CheckpointManager) -> None:
    assert manager.latest() is None
    assert manager.get_by_step(1) is None
    with pytest.raises(CheckpointNotFoundError, match="none was committed yet"):
        manager.load()
    manager.save({"w": np.ones(2)}, 1)
    with pytest.raises(CheckpointNotFoundError, match="no checkpoint of step 2; there are 1"):
        manager.load(2)


class VanishingStorage(MemoryStorage):
    """Has a manifest that another process deletes between its listing and its reading."""

    async def read(self, path: str, **options: Any) -> bytes:
        if path.endswith("step_2/metadata.json"):
            await self.delete(path)
        return await super().read(path, **options)


def test_a_checkpoint_that_is_deleted_before_it_is_read_is_no_reason_not_to_restore_an_older_one() -> None:
    with CheckpointManager(storage=VanishingStorage()) as manager:
        manager.save({"w": np.ones(2)}, 1)
        manager.save({"w": np.zeros(2)}, 2)
        restored = manager.load()
    assert (restored.step, restored.skipped) == (1, [])


class StuckStorage(MemoryStorage):
    """Memory whose reads never end, and whose writes do not either after a test has blocked them."""

    def __init__(self) -> None:
        super().__init__()
        self.is_stuck = False
        self.reading, self.cancelled = threading.Event(), threading.Event()

    async def read(self, path: str, **options: Any) -> bytes:
        self.reading.set()
        await self._stick()
        return await super().read(path, **options)

    async def write(self, path: str, data: Any) -> None:
        if self.is_stuck:
            await self._stick()
        await super().write(path, data)

    async def _stick(self) -> None:
        try:
            await asyncio.Event().wait()
        finally:
            self.cancelled.set()


def test_a_restore_that_takes_too_long_ends_with_an_error_and_is_cancelled() -> None:
    storage = StuckStorage()
    with CheckpointManager(storage=storage) as manager:
        manager.save({"w": np.ones(2)}, 1)
        with pytest.raises(CheckpointTimeoutError, match=r"the restore of step 1 is still under way after 0\.01 s"):
            manager.load(1, timeout_s=0.01)
        assert not storage.reading.is_set() or storage.cancelled.wait(stretch(30))


async def test_closing_a_manager_ends_what_others_wait_for_with_an_error_that_says_so() -> None:
    storage = StuckStorage()
    manager = CheckpointManager(storage=storage)
    manager.save({"w": np.ones(2)}, 1)
    restoring = asyncio.create_task(manager.load_async(1))
    waiting = asyncio.create_task(asyncio.to_thread(manager.load, 1))
    assert await asyncio.to_thread(storage.reading.wait, stretch(30))
    storage.is_stuck = True
    saving = manager.save_background({"w": np.ones(2)}, 2)
    listing = asyncio.create_task(asyncio.to_thread(manager.all_checkpoints))
    with pytest.raises(CheckpointTimeoutError):
        await asyncio.to_thread(manager.close, 0.01)
    for ended in (restoring, waiting, listing, saving):
        with pytest.raises(ManagerClosedError, match=r"was stopped by close\(\) of its CheckpointManager"):
            await ended
    late: tuple[Callable[[], object], ...] = (
        lambda: manager.load(1),
        lambda: manager.save({}, 3),
        lambda: manager.save_background({}, 3),
        lambda: manager.commit(3),
        manager.prune,
        manager.latest,
    )
    for call in late:
        with pytest.raises(ManagerClosedError):
            call()


def test_a_timeout_of_the_storage_itself_is_not_taken_for_one_of_the_caller() -> None:
    class LateStorage(MemoryStorage):
        async def read(self, path: str, **options: Any) -> bytes:
            raise TimeoutError("the disk is late")

    with CheckpointManager(storage=LateStorage()) as manager:
        manager.save({"w": np.ones(2)}, 1)
        with pytest.raises(TimeoutError, match="the disk is late"):
            manager.load(1, timeout_s=stretch(30))


def test_ctrl_c_in_a_restore_ends_the_restore_and_not_the_manager(monkeypatch: pytest.MonkeyPatch) -> None:
    storage, real = StuckStorage(), Future.result

    def interrupt(future: Future[Any], timeout: float | None = None) -> Any:
        if threading.current_thread() is not threading.main_thread():
            return real(future, timeout)
        assert storage.reading.wait(stretch(30))
        raise KeyboardInterrupt

    with CheckpointManager(storage=storage) as manager:
        manager.save({"w": np.ones(2)}, 1)
        with monkeypatch.context() as patched, pytest.raises(KeyboardInterrupt):
            patched.setattr(Future, "result", interrupt)
            manager.load(1)
        assert storage.cancelled.wait(stretch(30))
        manager.save({"w": np.zeros(2)}, 2)


def test_a_save_that_close_does_not_wait_for_says_that_it_was_stopped() -> None:
    storage = StuckStorage()
    manager = CheckpointManager(storage=storage)
    storage.is_stuck = True
    handle = manager.save_background({"w": np.ones(2)}, 1)
    with pytest.raises(CheckpointTimeoutError, match=r"the save of step 1 \(.*\) is still under way"):
        manager.close(timeout_s=0.01)
    with pytest.raises(CheckpointError, match=r"the save of step 1 was stopped by close\(\)"):
        handle.result(stretch(30))
    assert manager.counters.failed == 1


def test_a_manager_and_a_handle_show_where_they_are(tmp_path: Path) -> None:
    with CheckpointManager(tmp_path, job_id="run") as manager:
        assert repr(manager) == f"CheckpointManager(LocalStorage('{tmp_path}'), job_id='run')"
        handle = manager.save_background(b"12345", 7)
        handle.result(stretch(30))
    assert repr(handle) == "SaveHandle(step=7, committed, 5/5 bytes)"


@pytest.mark.parametrize("lazy", [False, True])
@pytest.mark.parametrize("write_behind", [False, True])
def test_a_state_that_cannot_be_staged_fails_its_save_and_not_the_training(
    storage: GatedStorage, monkeypatch: pytest.MonkeyPatch, *, lazy: bool, write_behind: bool
) -> None:
    def refuse(*_: Any, **__: Any) -> None:
        raise MemoryError("none left")

    with CheckpointManager(storage=storage, saving=SavePolicy(wait_timeout_s=stretch(30))) as manager:
        with monkeypatch.context() as patched:
            patched.setattr(StagingPool, "copy_tensors", refuse)
            handle = manager._begin_save({"w": np.ones(2)}, 1, 0, None, lazy=lazy, write_behind=write_behind)
            with pytest.raises(MemoryError, match="none left"):
                handle.result(stretch(30))
        manager.save({"w": np.ones(2)}, 2)
        assert (manager.list_checkpoints(), manager.counters.failed) == ([2], 1)


@pytest.mark.parametrize("lazy", [False, True])
def test_ctrl_c_while_a_state_is_staged_gives_its_memory_back(
    storage: GatedStorage, monkeypatch: pytest.MonkeyPatch, *, lazy: bool
) -> None:
    def interrupt(*_: Any, **__: Any) -> None:
        raise KeyboardInterrupt

    with CheckpointManager(storage=storage, saving=SavePolicy(max_pending=1, when_busy="fail")) as manager:
        with monkeypatch.context() as patched, pytest.raises(KeyboardInterrupt):
            patched.setattr(StagingPool, "copy_tensors", interrupt)
            manager.save_background({"w": np.ones(2)}, 1, lazy=lazy)
        manager.save({"w": np.ones(2)}, 1)
        assert manager.list_checkpoints() == [1]


def test_a_manager_that_is_closed_while_a_state_is_staged_refuses_the_save(
    storage: GatedStorage, monkeypatch: pytest.MonkeyPatch
) -> None:
    manager, real = CheckpointManager(storage=storage), StagingPool.fill_state

    def fill_and_close(pool: StagingPool, *arguments: Any) -> None:
        real(pool, *arguments)
        manager.close()

    monkeypatch.setattr(StagingPool, "fill_state", fill_and_close)
    with pytest.raises(ManagerClosedError):
        manager.save_background({"w": np.ones(2)}, 1)
    assert not storage._objects


def test_a_lazy_save_without_a_thread_to_be_had_is_staged_by_its_caller(
    storage: GatedStorage, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*_: Any) -> None:
        raise RuntimeError("cannot schedule new futures after interpreter shutdown")

    monkeypatch.setattr(StagingPool, "run_later", refuse)
    with CheckpointManager(storage=storage) as manager:
        weights = np.ones(2)
        handle = manager.save_background({"w": weights}, 1, lazy=True)
        weights[:] = 2
        assert handle.result(stretch(30)).committed
        assert manager.load().data["w"].tolist() == [1, 1]


def test_a_closed_manager_refuses_work_and_has_finished_what_was_pending(storage: GatedStorage) -> None:
    manager = CheckpointManager(storage=storage)
    handle = manager.save_background({"w": np.ones(5)}, 1)
    manager.close()
    assert handle.result().step == 1
    for work in (lambda: manager.save({"w": 1}, 2), manager.load, manager.latest):
        with pytest.raises(ManagerClosedError):
            work()
    manager.close()


async def test_a_cancelled_save_async_does_not_read_the_state_any_more(storage: GatedStorage) -> None:
    with CheckpointManager(storage=storage) as manager:
        storage.gate.clear()
        weights = np.ones(5)
        manager.save_background({"w": weights}, 1)
        # Waits for the slot in its thread, is cancelled there, and still ends before it raises.
        task = asyncio.create_task(manager.save_async({"w": weights * 2}, 2))
        await asyncio.sleep(0)
        task.cancel()
        storage.gate.set()
        with pytest.raises(asyncio.CancelledError):
            await task
        await asyncio.to_thread(manager.wait_pending, 30)
        assert manager.counters.failed == 0


def test_wrong_settings_are_refused() -> None:
    for wrong in ({"max_pending": 0}, {"when_busy": "panic"}, {"full_every": 0}, {"on_divergence": "ignore"}):
        with pytest.raises(ValueError, match=next(iter(wrong))):
            SavePolicy(**wrong)
    for kept in ({"keep_count": 0}, {"keep_every": 0}, {"ttl_s": -1}):
        with pytest.raises(ValueError, match=next(iter(kept))):
            RetentionPolicy(**kept)
    with pytest.raises(ValueError, match=r"RetentionPolicy\(keep_count=...\)"):
        CheckpointManager(storage=MemoryStorage(), keep_count=2, retention=RetentionPolicy())
    with pytest.raises(InvalidIdError, match="a/b"):
        CheckpointManager(storage=MemoryStorage(), job_id="a/b")
    with pytest.raises(ConfigError, match="backend='tape'"):
        CheckpointManager("x", backend="tape")
    with pytest.raises(ConfigError, match="CHECKPOINT_BUCKET"):
        CheckpointManager("/checkpoints", backend="s3")


def test_a_handle_tells_how_far_a_local_save_is(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[int] = []
    note = SaveProgress.note_bytes

    def watch(progress: SaveProgress, done: int) -> None:
        note(progress, done)
        seen.append(progress.bytes_done)

    monkeypatch.setattr(SaveProgress, "note_bytes", watch)
    with CheckpointManager(tmp_path) as manager:
        handle = manager.save_background({"w": np.ones(40 << 20, np.uint8)}, 1)
        handle.result()
    assert len(set(seen)) >= 5
    assert seen[0] < handle.bytes_total == handle.bytes_done


def test_a_step_of_another_type_is_a_mistake_and_touches_nothing(manager: CheckpointManager) -> None:
    manager.save({"w": np.ones(2)}, 7)
    for step in ("7", 7.0, [7]):
        calls: list[Any] = [manager.load, manager.delete, manager.pin, manager.unpin, manager.commit, manager.rewind]
        for call in calls:
            with pytest.raises(ValueError, match="use a whole number"):
                call(step)
    assert manager.load(np.int64(7)).step == 7
    assert manager.list_checkpoints() == [7]
