"""Reading while retention deletes: what is read is kept, and what is gone is not called damaged."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Awaitable, Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from strata.checkpoint import CheckpointManager, RetentionPolicy
from strata.checkpoint.format import layout
from strata.checkpoint.keep import catalog, read_lease
from strata.checkpoint.keep.archive import Archive
from strata.clock import ManualClock
from strata.errors import CheckpointNotFoundError, DamagedCheckpointError, StorageError
from strata.storage import LocalStorage, MemoryStorage, ObjectInfo

Deed = Callable[[], Awaitable[None]]


class Interrupted(MemoryStorage):
    """Memory that another process uses just before one of this process's calls; perhaps this one may not write."""

    def __init__(self, content: MemoryStorage, *, at: int, deed: Deed, is_read_only: bool) -> None:
        super().__init__()
        self._objects = content._objects
        self.calls = 0
        self._at = at
        self._deed = deed
        self._is_read_only = is_read_only

    async def _tick(self, path: str = "", *, writes: bool = False) -> None:
        self.calls += 1
        if self.calls == self._at:
            await self._deed()
        if writes and self._is_read_only:
            raise StorageError("permission denied", path=path, backend="memory", hint="ask for it")

    async def write(self, path: str, data: Any) -> None:
        await self._tick(path, writes=True)
        await super().write(path, data)

    async def read(self, path: str, **more: Any) -> bytes:
        await self._tick()
        return await super().read(path, **more)

    async def read_into(self, path: str, buffer: Any, *, start: int = 0) -> None:
        await self._tick()
        await super().read_into(path, buffer, start=start)

    async def exists(self, path: str) -> bool:
        await self._tick()
        return await super().exists(path)

    async def delete(self, path: str) -> None:
        await self._tick(path, writes=True)
        await super().delete(path)

    async def list(self, prefix: str = "") -> AsyncIterator[ObjectInfo]:
        await self._tick()
        # As a slow walk does: what is deleted meanwhile may be missing, and so may what is new.
        async for info in super().list(prefix):
            yield info


def make(storage: MemoryStorage, *steps: int) -> None:
    with CheckpointManager(storage=storage, keep_count=None) as manager:
        for step in steps:
            manager.save({"w": np.full(5, step), "v": np.full(3, -step)}, step)


def replace_all(content: MemoryStorage, step: int) -> Deed:
    """Save a step and keep only that, as a writer with keep_count=1 does."""

    async def deed() -> None:
        def write() -> None:
            policy = RetentionPolicy(keep_count=1)
            with CheckpointManager(storage=content, retention=policy) as manager:
                manager.save({"w": np.full(5, step), "v": np.full(3, -step)}, step)
                manager.wait_pending()

        await asyncio.to_thread(write)

    return deed


def calls_of(use: Callable[[MemoryStorage], Any]) -> int:
    content = MemoryStorage()
    make(content, 1, 2)
    quiet = Interrupted(content, at=0, deed=replace_all(content, 3), is_read_only=False)
    use(quiet)
    return quiet.calls


def load(storage: MemoryStorage) -> Any:
    with CheckpointManager(storage=storage) as manager:
        return manager.load()


@pytest.mark.parametrize("is_read_only", [False, True], ids=["leases", "read-only"])
def test_whenever_retention_runs_a_load_returns_a_whole_checkpoint(is_read_only: bool) -> None:
    for at in range(1, calls_of(load) + 1):
        content = MemoryStorage()
        make(content, 1, 2)
        restored = load(Interrupted(content, at=at, deed=replace_all(content, 3), is_read_only=is_read_only))
        assert restored.step in (2, 3), at
        assert (restored.data["w"] == restored.step).all(), at
        assert (restored.data["v"] == -restored.step).all(), at
        assert not restored.skipped, (at, restored.skipped)
        assert not [path for path in content._objects if "/reader-" in path], at


@pytest.mark.parametrize("is_read_only", [False, True], ids=["leases", "read-only"])
def test_whenever_retention_runs_a_step_is_whole_or_gone_and_never_damaged(is_read_only: bool) -> None:
    def load_2(storage: MemoryStorage) -> Any:
        with CheckpointManager(storage=storage) as manager:
            return manager.load(2)

    gone = 0
    for at in range(1, calls_of(load_2) + 1):
        content = MemoryStorage()
        make(content, 1, 2)
        try:
            restored = load_2(Interrupted(content, at=at, deed=replace_all(content, 3), is_read_only=is_read_only))
            assert (restored.data["w"] == 2).all()
        except CheckpointNotFoundError as error:
            gone += 1
            assert list(error.known) == [3], at
            assert "3" in str(error)
    assert gone if is_read_only else gone <= 2


@pytest.mark.parametrize("is_read_only", [False, True], ids=["leases", "read-only"])
def test_whenever_retention_runs_a_listing_has_the_newest(is_read_only: bool) -> None:
    def list_steps(storage: MemoryStorage) -> list[int]:
        with CheckpointManager(storage=storage) as manager:
            return manager.list_checkpoints()

    for at in range(1, calls_of(list_steps) + 1):
        content = MemoryStorage()
        make(content, 2)
        found = list_steps(Interrupted(content, at=at, deed=replace_all(content, 3), is_read_only=is_read_only))
        assert found in ([2], [3], [2, 3]), at


@pytest.mark.parametrize("use", ["verify", "verify_deeply", "restore", "export", "diff"])
@pytest.mark.parametrize("is_read_only", [False, True], ids=["leases", "read-only"])
def test_whenever_retention_runs_an_archive_finds_no_damage(tmp_path: Path, use: str, is_read_only: bool) -> None:
    async def run(storage: MemoryStorage) -> None:
        archive = Archive(storage, "default")
        async with archive.reading(2) as manifest:
            more = {"export": (tmp_path / "model",), "diff": (manifest,)}.get(use, ())
            await getattr(archive, use)(manifest, *more, lambda _: None)

    for at in range(1, calls_of(lambda storage: asyncio.run(run(storage))) + 1):
        content = MemoryStorage()
        make(content, 1, 2)
        try:
            asyncio.run(run(Interrupted(content, at=at, deed=replace_all(content, 3), is_read_only=is_read_only)))
        except CheckpointNotFoundError as error:
            assert list(error.known) == [3], at


def test_a_checkpoint_that_is_damaged_stays_damaged() -> None:
    content = MemoryStorage()
    make(content, 1, 2)
    del content._objects["default/checkpoints/step_2/model-00001-of-00001.safetensors"]
    with CheckpointManager(storage=content) as manager:
        with pytest.raises(DamagedCheckpointError, match="the file is missing"):
            manager.load(2)
        restored = manager.load()
        assert (restored.step, len(restored.skipped)) == (1, 1)


def test_a_step_that_was_replaced_while_it_was_read_is_not_damaged() -> None:
    content = MemoryStorage()
    make(content, 2)

    async def replace() -> None:
        content._objects.clear()
        await asyncio.to_thread(make, content, 2)

    async def run() -> None:
        async with Archive(content, "default").reading(2) as manifest:
            await replace()
            raise DamagedCheckpointError(manifest.step, "its digest differs", part="x")

    with pytest.raises(CheckpointNotFoundError, match="step 2 was deleted or replaced while it was read"):
        asyncio.run(run())


def lease_files(content: MemoryStorage) -> list[str]:
    return [path for path in content._objects if layout.lease_of(path.removeprefix("default/checkpoints/"))]


def test_a_reader_that_died_protects_its_step_until_its_lease_ends() -> None:
    clock = ManualClock()
    content = MemoryStorage(clock=clock)
    policy = RetentionPolicy(keep_count=1)
    with CheckpointManager(storage=content, retention=policy, clock=clock) as manager:
        manager.save({"w": np.full(5, 1)}, 1)
        asyncio.run(content.write(f"default/checkpoints/{layout.lease_name(1, 'a' * 12, 120)}", b"{}"))
        manager.save({"w": np.full(5, 2)}, 2)
        manager.wait_pending()
        manager.save({"w": np.full(5, 3)}, 3)
        manager.wait_pending()
        assert manager.list_checkpoints() == [1, 3]
        assert not manager.prune()
        clock.advance(120 + read_lease.MARGIN_S + 1)
        assert [verdict.step for verdict in manager.prune()] == [1]
    assert not lease_files(content)


def test_a_lease_is_renewed_while_its_reader_reads(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(read_lease, "LEASE_S", 0.01)
    monkeypatch.setattr(layout, "lease_name", lambda step, token, _: f"step_{step}/reader-{token}-1.json")
    content = MemoryStorage()
    make(content, 1)
    writes: list[str] = []
    are_renewed = asyncio.Event()
    write = content.write

    async def note(path: str, data: Any) -> None:
        writes.append(path)
        if len(writes) == 3:
            are_renewed.set()
        await write(path, data)

    monkeypatch.setattr(content, "write", note)

    async def run() -> None:
        async with Archive(content, "default").reading(1):
            await are_renewed.wait()

    asyncio.run(run())
    assert len(set(writes)) == 1
    assert not lease_files(content)


def test_a_load_on_a_disk_leaves_nothing_behind_and_a_step_that_is_not_there_makes_nothing(tmp_path: Path) -> None:
    with CheckpointManager(storage=LocalStorage(tmp_path)) as manager:
        manager.save({"w": np.ones(2)}, 1)
        before = sorted(path for path in tmp_path.rglob("*"))
        manager.load()
        with pytest.raises(CheckpointNotFoundError, match="no checkpoint of step 7"):
            manager.load(7)
        assert sorted(path for path in tmp_path.rglob("*")) == before


def test_a_listing_that_shows_nothing_is_made_again(monkeypatch: pytest.MonkeyPatch) -> None:
    content = MemoryStorage()
    make(content, 1)
    looks: list[str] = []
    listing = MemoryStorage.list

    async def miss(self: MemoryStorage, prefix: str = "") -> AsyncIterator[ObjectInfo]:
        looks.append(prefix)
        if len(looks) >= catalog.LOOKS:
            async for info in listing(self, prefix):
                yield info

    monkeypatch.setattr(MemoryStorage, "list", miss)
    found = asyncio.run(catalog.Catalog(content, "default/checkpoints").steps())
    assert found == [1]


def test_the_lease_is_a_small_json_document() -> None:
    content = MemoryStorage()
    make(content, 1)

    async def run() -> None:
        async with Archive(content, "default").reading(1):
            (path,) = lease_files(content)
            assert json.loads(content._objects[path].data) == {}
            assert layout.lease_of(path.removeprefix("default/checkpoints/")) == (1, read_lease.LEASE_S)

    asyncio.run(run())
