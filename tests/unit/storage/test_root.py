"""A root that is missing, is a file, or goes away is named with what to do, and works again when it is back."""

from __future__ import annotations

import os
import shutil
import threading
from contextlib import suppress
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest

from strata.checkpoint import CheckpointManager
from strata.errors import CheckpointNotFoundError, ConfigError, ObjectNotFoundError, StorageError
from strata.storage import LocalStorage, open_storage
from strata.storage.local.root import Root, find_root
from tests.testbed.pace import stretch

if TYPE_CHECKING:
    from pathlib import Path

MIB = 1 << 20


async def test_a_root_that_was_never_there_is_empty_and_made_at_the_first_write(tmp_path: Path) -> None:
    storage = LocalStorage(tmp_path / "new/run")
    assert [info async for info in storage.list()] == []
    assert not await storage.exists("a/b")
    await storage.delete("a/b")
    with pytest.raises(ObjectNotFoundError):
        await storage.read("a/b")
    assert not (tmp_path / "new").exists()
    await storage.write("a/b", b"x")
    assert await storage.read("a/b") == b"x"


@pytest.mark.parametrize("below", ["", "run", "run/deeper"])
async def test_a_file_in_place_of_the_root_is_named_by_every_operation(tmp_path: Path, below: str) -> None:
    (tmp_path / "file").write_bytes(b"")
    storage = LocalStorage(tmp_path / "file" / below)
    with pytest.raises(StorageError, match=r"file.*choose another"):
        await storage.write("a", b"x")
    if not below:
        with pytest.raises(StorageError, match="it is a file"):
            [info async for info in storage.list()]
        with pytest.raises(StorageError, match="it is a file"):
            await storage.read("a")


def test_a_root_below_a_file_that_was_put_there_meanwhile_cannot_be_made(tmp_path: Path) -> None:
    root = Root(tmp_path / "run" / "deeper")
    (tmp_path / "run").write_bytes(b"")
    with pytest.raises(StorageError, match="run/deeper: it is a file, or below one, and a storage needs a directory"):
        root.make()


def test_a_root_that_another_process_makes_meanwhile_is_there_or_not_and_never_a_file(tmp_path: Path) -> None:
    root, done = tmp_path / "run", threading.Event()

    def make_and_remove() -> None:
        while not done.is_set():
            root.mkdir()
            root.rmdir()

    other = threading.Thread(target=make_and_remove)
    other.start()
    try:
        for _ in range(20_000):
            with suppress(FileNotFoundError):
                os.close(Root(root).open())
    finally:
        done.set()
        other.join()


def test_a_root_that_another_thread_makes_meanwhile_was_never_gone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    root, really_open = Root(tmp_path / "run"), os.open

    def open_before_it_is_made(*arguments: Any, **options: Any) -> int:
        monkeypatch.undo()
        try:
            return really_open(*arguments, **options)
        finally:
            root.make()

    monkeypatch.setattr(os, "open", open_before_it_is_made)
    with pytest.raises(FileNotFoundError):
        root.open()
    assert root.make() == root.identify()


async def test_a_root_that_goes_away_before_it_is_opened_is_not_taken_for_an_empty_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    root, really_open = tmp_path / "run", os.open
    storage = LocalStorage(root)
    await storage.write("a", b"x")

    def open_after_it_went_away(*arguments: Any, **options: Any) -> int:
        monkeypatch.undo()
        root.rename(tmp_path / "away")
        return really_open(*arguments, **options)

    monkeypatch.setattr(os, "open", open_after_it_went_away)
    with pytest.raises(StorageError, match="was there and is gone"):
        await storage.exists("a")
    (tmp_path / "away").rename(root)
    assert await storage.exists("a")


async def test_an_object_that_is_put_where_a_directory_is_about_to_be_made_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    storage, really_make = LocalStorage(tmp_path), os.mkdir
    await storage.write("other", b"x")

    def make_after_another_writer(name: str, **options: Any) -> None:
        monkeypatch.undo()
        (tmp_path / name).write_bytes(b"object")
        really_make(name, **options)

    monkeypatch.setattr(os, "mkdir", make_after_another_writer)
    with pytest.raises(StorageError, match="it is an object, so nothing can be below it"):
        await storage.write("a/b", b"x")


@pytest.mark.parametrize("below", ["link", "link/run"])
async def test_a_link_that_leads_nowhere_is_no_root_that_can_be_made(tmp_path: Path, below: str) -> None:
    (tmp_path / "link").symlink_to(tmp_path / "nowhere")
    with pytest.raises(StorageError, match="it cannot be made; look for a link"):
        await LocalStorage(tmp_path / below).write("a", b"x")


async def test_a_root_that_was_removed_is_named_and_not_made_again(tmp_path: Path) -> None:
    root = tmp_path / "run"
    storage = LocalStorage(root)
    await storage.write("a/b", b"x")
    shutil.rmtree(root)
    for act in (storage.write("a/c", b"x"), storage.read("a/b"), storage.exists("a/b"), storage.delete("a/b")):
        with pytest.raises(StorageError, match="was there and is gone; mount it or make it again"):
            await act
    with pytest.raises(StorageError, match="is gone"):
        [info async for info in storage.list()]
    assert not root.exists()
    root.mkdir()
    await storage.write("a/c", b"x")
    assert [info.path async for info in storage.list()] == ["a/c"]


def test_a_manager_recovers_when_its_directory_is_back(tmp_path: Path) -> None:
    root = tmp_path / "run"
    with CheckpointManager(root) as manager:
        with pytest.raises(CheckpointNotFoundError):
            manager.load()
        manager.save({"w": np.ones(3)}, 1)
        root.rename(tmp_path / "away")
        failed = manager.save_background({"w": np.ones(3)}, 2)
        with pytest.raises(StorageError, match="is gone"):
            failed.result(stretch(60))
        with pytest.raises(StorageError, match="is gone"):
            manager.load()
        (tmp_path / "away").rename(root)
        manager.save({"w": np.zeros(3)}, 3)
        assert manager.list_checkpoints() == [1, 3]


async def test_a_tilde_is_the_home_of_the_user(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.chdir(tmp_path)
    await LocalStorage("~/a").write("x", b"1")
    await open_storage("~/b").write("x", b"1")
    with CheckpointManager("~/c") as manager:
        manager.save({"w": np.ones(2)}, 1)
    with CheckpointManager("~/d", backend="local") as manager:
        manager.save({"w": np.ones(2)}, 1)
    assert all((tmp_path / name).is_dir() for name in "abcd")
    with pytest.raises(ConfigError, match="~nobody-of-this-name"):
        find_root("~nobody-of-this-name/x")


def reserved_bytes(root: Path) -> int:
    (file,) = (root / ".strata-tmp").iterdir()
    return file.stat().st_blocks * 512


async def test_a_writer_reserves_what_will_be_written(tmp_path: Path) -> None:
    storage = LocalStorage(tmp_path)
    for size_bytes in (None, 4 * MIB):
        async with storage.writer("delta", size_bytes=size_bytes) as writer:
            await writer.write(bytes(4 * MIB))
            if storage.write_mode == "direct":
                assert reserved_bytes(tmp_path) <= 5 * MIB
            if size_bytes is None:
                for _ in range(8):
                    await writer.write(bytes(4 * MIB))
    assert (tmp_path / "delta").stat().st_size == 4 * MIB
