from __future__ import annotations

import asyncio
import errno
import mmap
import os
import subprocess
import sys
import tempfile
import threading
from typing import TYPE_CHECKING

import numpy as np
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from strata.errors import (
    CorruptObjectError,
    ObjectNotFoundError,
    StorageError,
    StorageFullError,
    StoragePermissionError,
    StorageUnavailableError,
)
from strata.storage import LocalStorage
from strata.storage.local.direct import (
    BLOCK_BYTES,
    CHUNK_BYTES,
    SPAN_BYTES,
    BouncePool,
    FileSink,
    WriteMode,
    read_file,
)
from strata.storage.local.directory import sync_directory
from strata.storage.local.open_files import open_direct
from strata.storage.local.root import Root
from strata.storage.local.temporary import DIRECTORY, TemporaryFile, sweep
from tests.testbed.pace import stretch

if TYPE_CHECKING:
    from pathlib import Path

MIB = 1 << 20
ALIGNED = mmap.mmap(-1, 4 * CHUNK_BYTES)
np.frombuffer(ALIGNED, np.uint8)[:] = np.random.default_rng(1).integers(0, 256, 4 * CHUNK_BYTES, np.uint8)
edges = st.sampled_from([0, 1, BLOCK_BYTES, SPAN_BYTES, CHUNK_BYTES, CHUNK_BYTES + BLOCK_BYTES])
sizes = st.builds(lambda edge, shift: max(0, edge + shift), edges, st.integers(-3, 3))


async def test_large_objects_are_written_past_the_page_cache_where_that_is_possible(tmp_path: Path) -> None:
    storage = LocalStorage(tmp_path)
    assert storage.write_mode is None
    await storage.write("x", bytes(2 * MIB))
    assert storage.write_mode == "direct", f"{tmp_path} is not on a file system with O_DIRECT"
    with tempfile.TemporaryDirectory(dir="/dev/shm") as folder:
        storage = LocalStorage(folder)
        await storage.write("x", bytes(2 * MIB))
        assert storage.write_mode == "buffered"


@given(
    pieces=st.lists(sizes, max_size=4),
    shift=st.sampled_from([0, 1, 512]),
    mode=st.sampled_from(["direct", "buffered"]),
)
def test_a_sink_writes_what_it_is_given_whatever_the_pieces(
    tmp_path_factory: pytest.TempPathFactory, pieces: list[int], shift: int, mode: WriteMode
) -> None:
    root = tmp_path_factory.mktemp("sink")
    file = TemporaryFile(Root(root))
    sink = FileSink(file.open(direct=mode == "direct"), mode, BouncePool(), threading.Event())
    expected = bytearray()
    for size in pieces:
        piece = memoryview(ALIGNED)[shift : shift + size]
        sink.write(piece)
        expected += piece
    assert sink.finish() == len(expected)
    file.publish("out", replace=False)
    file.close()
    assert (root / "out").read_bytes() == expected
    assert list((root / DIRECTORY).iterdir()) == []


@given(start=sizes, length=sizes, shift=st.sampled_from([0, 1, 512]), is_cold=st.booleans())
@example(start=CHUNK_BYTES, length=CHUNK_BYTES + BLOCK_BYTES, shift=0, is_cold=True)
@example(start=CHUNK_BYTES, length=CHUNK_BYTES + BLOCK_BYTES, shift=1, is_cold=False)
def test_a_file_is_read_the_same_however_it_lies_in_memory(
    tmp_path_factory: pytest.TempPathFactory, start: int, length: int, shift: int, is_cold: bool
) -> None:
    path = tmp_path_factory.getbasetemp() / "read"
    # Less than the longest range, so that some of them reach beyond the end.
    data = memoryview(ALIGNED)[: 2 * CHUNK_BYTES + 345]
    if not path.exists():
        path.write_bytes(data)
    fd, direct_fd = os.open(path, os.O_RDONLY), os.open(path, os.O_RDONLY | os.O_DIRECT)
    os.fsync(fd)
    if is_cold:
        os.posix_fadvise(fd, 0, 0, os.POSIX_FADV_DONTNEED)
    target = mmap.mmap(-1, shift + length + 1)
    view = memoryview(target)[shift : shift + length]
    count = read_file(fd, direct_fd, view, start, BouncePool(), threading.Event())
    os.close(fd)
    os.close(direct_fd)
    assert count == max(0, min(length, len(data) - start))
    assert view[:count] == data[start : start + count]
    assert target[shift + length] == 0


async def test_a_link_is_refused_wherever_it_points_and_whatever_is_asked(tmp_path: Path) -> None:
    outside = tmp_path / "outside"
    outside.mkdir()
    (outside / "secret").write_bytes(b"secret")
    root = tmp_path / "root"
    storage = LocalStorage(root)
    await storage.write("real/x", b"inside")
    (root / "way-out").symlink_to(outside)
    (root / "file-out").symlink_to(outside / "secret")
    (root / "dangling").symlink_to(tmp_path / "nothing")
    for path in ("way-out/secret", "file-out", "dangling"):
        with pytest.raises(StoragePermissionError, match="symbolic link"):
            await storage.read(path)
        with pytest.raises(StoragePermissionError, match="symbolic link"):
            await storage.exists(path)
    with pytest.raises(StoragePermissionError, match="symbolic link"):
        await storage.write("way-out/new", b"x")
    with pytest.raises(StoragePermissionError, match="symbolic link"):
        await storage.delete("way-out/secret")
    # A name that is a link is replaced or removed itself; what it points to is never touched.
    await storage.write("file-out", b"now an object")
    await storage.delete("dangling")
    assert (outside / "secret").read_bytes() == b"secret"
    assert [entry.name for entry in outside.iterdir()] == ["secret"]
    assert {info.path async for info in storage.list()} == {"real/x", "file-out"}


async def test_the_root_itself_may_be_a_link(tmp_path: Path) -> None:
    (tmp_path / "disk").mkdir()
    (tmp_path / "root").symlink_to(tmp_path / "disk")
    await LocalStorage(tmp_path / "root").write("a/b", b"x")
    assert (tmp_path / "disk" / "a" / "b").read_bytes() == b"x"


async def test_foreign_things_below_the_root_are_not_objects(tmp_path: Path) -> None:
    storage = LocalStorage(tmp_path)
    await storage.write("object", b"x")
    os.mkfifo(tmp_path / "pipe")
    (tmp_path / "back\\slash").write_bytes(b"x")
    (tmp_path / os.fsdecode(b"\xff\xfe")).write_bytes(b"x")
    assert [info.path async for info in storage.list()] == ["object"]
    with pytest.raises(ObjectNotFoundError):
        await storage.read("pipe")


async def test_a_disk_that_is_full_before_the_first_write_is_said_to_be(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*_: object) -> int:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    storage = LocalStorage(tmp_path)
    monkeypatch.setattr(os, "pwrite", refuse)
    with pytest.raises(StorageFullError, match="No space left on device"):
        await storage.write("x", bytes(2 * MIB))


async def test_a_key_cannot_be_an_object_and_a_directory(tmp_path: Path) -> None:
    storage = LocalStorage(tmp_path)
    await storage.write("a/b", b"x")
    with pytest.raises(StorageError, match="directory of other objects"):
        await storage.write("a", b"y")
    with pytest.raises(StorageError, match="nothing can be below it"):
        await storage.write("a/b/c", b"y")
    assert await storage.read("a/b") == b"x"
    assert list((tmp_path / DIRECTORY).iterdir()) == []


async def test_nothing_is_made_before_the_first_write(tmp_path: Path) -> None:
    storage = LocalStorage(tmp_path / "root")
    assert [info.path async for info in storage.list()] == []
    assert not await storage.exists("x")
    await storage.delete("x")
    assert not (tmp_path / "root").exists()


async def test_directories_that_a_delete_empties_are_removed_up_to_the_root(tmp_path: Path) -> None:
    storage = LocalStorage(tmp_path)
    await storage.write("a/b/c/d", b"x")
    await storage.write("a/e", b"x")
    await storage.delete("a/b/c/d")
    assert (tmp_path / "a").exists()
    assert not (tmp_path / "a" / "b").exists()
    await storage.delete("a/e")
    assert not (tmp_path / "a").exists()


def test_a_sweep_takes_what_nobody_locks(tmp_path: Path) -> None:
    alive = TemporaryFile(Root(tmp_path))
    alive.open(direct=False)
    (tmp_path / DIRECTORY / "left").write_bytes(b"x")
    assert sweep(Root(tmp_path)) == 1
    assert len(list((tmp_path / DIRECTORY).iterdir())) == 1
    alive.close()
    assert list((tmp_path / DIRECTORY).iterdir()) == []


def test_a_sweep_that_runs_all_the_time_never_takes_a_file_from_a_living_writer(tmp_path: Path) -> None:
    done = threading.Event()

    def sweep_on() -> None:
        while not done.is_set():
            sweep(Root(tmp_path))

    sweeper = threading.Thread(target=sweep_on)
    sweeper.start()
    for number in range(300):
        file = TemporaryFile(Root(tmp_path))
        os.write(file.open(direct=False), b"whole")
        file.publish(f"{number}", replace=False)
        file.close()
    done.set()
    sweeper.join()
    assert {(tmp_path / str(number)).read_bytes() for number in range(300)} == {b"whole"}


async def test_published_files_have_the_mode_that_the_umask_leaves(tmp_path: Path) -> None:
    previous = os.umask(0o027)
    try:
        await LocalStorage(tmp_path).write("x", b"1")
    finally:
        os.umask(previous)
    assert (tmp_path / "x").stat().st_mode & 0o777 == 0o640


# Forks while every buffer of the pool is lent, as in the middle of a write, and writes in the child.
FORK = """
import asyncio, contextlib, os, sys
import numpy as np
from strata.storage import LocalStorage
from strata.storage.local.direct import THREADS
storage, unaligned = LocalStorage(sys.argv[1]), np.ones(20 << 20, np.uint8)[1:]
asyncio.run(storage.write("parent", unaligned))
with contextlib.ExitStack() as held:
    for _ in range(2 * THREADS):
        held.enter_context(storage._pool.lend())
    if (child := os.fork()) == 0:
        asyncio.run(storage.write("child", unaligned))
        os._exit(0)
    os.waitpid(child, 0)
"""


def test_a_storage_that_was_used_still_works_in_a_forked_child(tmp_path: Path) -> None:
    subprocess.run([sys.executable, "-W", "ignore", "-c", FORK, str(tmp_path)], check=True)
    assert (tmp_path / "child").read_bytes() == (tmp_path / "parent").read_bytes()


async def test_a_cancelled_read_leaves_the_buffer_alone_once_it_is_over(tmp_path: Path) -> None:
    storage = LocalStorage(tmp_path)
    await storage.write("x", b"1" * (64 * MIB))
    buffer = bytearray(64 * MIB)
    task = asyncio.create_task(storage.read_into("x", buffer))
    await asyncio.sleep(0)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    before = bytes(buffer)
    assert all(not thread.name.startswith("strata-io") for thread in threading.enumerate())
    assert bytes(buffer) == before


@pytest.mark.parametrize("size", [0, 5, BLOCK_BYTES, 3 * CHUNK_BYTES, 3 * CHUNK_BYTES + 7])
@pytest.mark.parametrize("shift", [0, 1])
async def test_what_is_still_being_filled_is_written_as_it_will_be(tmp_path: Path, size: int, shift: int) -> None:
    storage = LocalStorage(tmp_path)
    data = np.zeros(shift + size, np.uint8)[shift:]
    final = np.random.default_rng(0).integers(0, 255, size, np.uint8)
    filled, changed = 0, threading.Condition()

    def wait_ready(end: int) -> None:
        with changed:
            assert changed.wait_for(lambda: filled >= end, timeout=stretch(30))

    def fill() -> None:
        nonlocal filled
        for end in [*range(0, size, MIB), size]:
            data[filled:end] = final[filled:end]
            with changed:
                filled = end
                changed.notify_all()

    filler = threading.Thread(target=fill)
    filler.start()
    await storage.write_behind("x", memoryview(data), wait_ready)
    filler.join()
    assert await storage.read("x") == final.tobytes()


@pytest.mark.parametrize("mode", ["direct", "buffered"])
def test_a_sink_that_follows_nothing_writes_an_empty_file(tmp_path: Path, mode: WriteMode) -> None:
    file = TemporaryFile(Root(tmp_path))
    sink = FileSink(file.open(direct=mode == "direct"), mode, BouncePool(), threading.Event())
    sink.write(memoryview(b""), lambda end: None)
    assert sink.finish() == 0
    file.publish("out", replace=False)
    file.close()
    assert (tmp_path / "out").read_bytes() == b""


async def test_a_writer_that_is_cancelled_while_its_bytes_become_durable_publishes_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    storage, syncing, really_sync = LocalStorage(tmp_path), threading.Event(), os.fsync
    await storage.write("x", b"old")

    async def replace() -> None:
        async with storage.writer("x") as writer:
            await writer.write(b"new")

            def sync_until_cancelled(fd: int) -> None:
                monkeypatch.undo()
                syncing.set()
                assert writer._stop.wait(stretch(30))
                really_sync(fd)

            monkeypatch.setattr(os, "fsync", sync_until_cancelled)

    task = asyncio.create_task(replace())
    assert await asyncio.to_thread(syncing.wait, stretch(30))
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert await storage.read("x") == b"old"
    assert list((tmp_path / DIRECTORY).iterdir()) == []


def test_what_is_never_filled_leaves_nothing(tmp_path: Path) -> None:
    def wait_ready(end: int) -> None:
        if end > CHUNK_BYTES:
            raise MemoryError("none left")

    with pytest.raises(MemoryError):
        asyncio.run(LocalStorage(tmp_path).write_behind("x", bytes(4 * CHUNK_BYTES), wait_ready))
    assert [path for path in tmp_path.rglob("*") if path.is_file()] == []


def test_open_files_read_any_piece_and_name_what_is_missing_or_too_short(tmp_path: Path) -> None:
    data = np.random.default_rng(0).integers(0, 255, 3 * MIB + 5, np.uint8).tobytes()
    (tmp_path / "x").write_bytes(data)
    with LocalStorage(tmp_path).open_files() as files:
        for start, length in [(0, 3 * MIB + 5), (1, 2 * MIB), (2 * MIB, MIB), (3 * MIB, 5)]:
            target = bytearray(length)
            files.read_into("x", memoryview(target), start, threading.Event())
            assert target == data[start : start + length]
        with pytest.raises(CorruptObjectError, match="x: it has 3145733 bytes"):
            files.read_into("x", memoryview(bytearray(10)), 3 * MIB, threading.Event())
        with pytest.raises(ObjectNotFoundError, match="nothing"):
            files.read_into("nothing", memoryview(bytearray(1)), 0, threading.Event())


def failing(monkeypatch: pytest.MonkeyPatch, name: str, number: int, *, where: str = "") -> None:
    """Let a function of os fail with this errno, if one of its arguments contains ``where``."""
    real = getattr(os, name)

    def fail(*arguments: object, **options: object) -> object:
        if any(where in str(each) for each in arguments):
            raise OSError(number, os.strerror(number))
        return real(*arguments, **options)

    monkeypatch.setattr(os, name, fail)


@pytest.mark.parametrize("number", [errno.EINVAL, errno.EOPNOTSUPP])
async def test_a_file_system_that_refuses_direct_io_is_written_through_the_page_cache(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, number: int
) -> None:
    real = os.open

    def refuse_direct(path: str, flags: int, mode: int = 0o777, *, dir_fd: int | None = None) -> int:
        if flags & os.O_DIRECT:
            # As some kernels do: the file is made before the flag is refused.
            os.close(real(path, flags & ~os.O_DIRECT, mode, dir_fd=dir_fd))
            raise OSError(number, os.strerror(number))
        return real(path, flags, mode, dir_fd=dir_fd)

    monkeypatch.setattr(os, "open", refuse_direct)
    storage = LocalStorage(tmp_path)
    await storage.write("x", bytes(2 * MIB))
    assert storage.write_mode == "buffered"
    assert await storage.read("x") == bytes(2 * MIB)
    assert list((tmp_path / DIRECTORY).iterdir()) == []


async def test_a_disk_that_fails_while_it_is_probed_is_no_disk_without_direct_io(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    real = os.open

    def fail_direct(path: str, flags: int, mode: int = 0o777, *, dir_fd: int | None = None) -> int:
        if flags & os.O_DIRECT:
            raise OSError(errno.EIO, os.strerror(errno.EIO))
        return real(path, flags, mode, dir_fd=dir_fd)

    monkeypatch.setattr(os, "open", fail_direct)
    storage = LocalStorage(tmp_path)
    with pytest.raises(StorageError, match="Input/output error"):
        await storage.write("x", bytes(2 * MIB))
    assert storage.write_mode is None


async def test_a_directory_that_cannot_be_synced_is_an_error_unless_its_file_system_has_no_such_thing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    directory = os.open(tmp_path, os.O_RDONLY)
    try:
        failing(monkeypatch, "fsync", errno.EINVAL)
        sync_directory(directory)
        failing(monkeypatch, "fsync", errno.EIO)
        with pytest.raises(OSError, match="Input/output error"):
            sync_directory(directory)
    finally:
        os.close(directory)


async def test_a_delete_says_that_a_directory_could_not_be_removed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    storage = LocalStorage(tmp_path)
    await storage.write("a/b", b"x")
    failing(monkeypatch, "rmdir", errno.EIO)
    with pytest.raises(StorageError, match="Input/output error"):
        await storage.delete("a/b")
    assert not await storage.exists("a/b")


async def test_a_file_that_cannot_be_opened_past_the_page_cache_is_read_through_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "x").write_bytes(b"abc")
    failing(monkeypatch, "open", errno.EINVAL, where="/proc/self/fd")
    with (tmp_path / "x").open("rb") as file:
        assert open_direct(file.fileno()) is None
    assert await LocalStorage(tmp_path).read("x") == b"abc"


def test_a_parent_that_is_pruned_again_and_again_ends_a_publish_with_an_error(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = TemporaryFile(Root(tmp_path))
    file.close()
    file.open(direct=False)
    failing(monkeypatch, "rename", errno.ENOENT)
    with pytest.raises(FileNotFoundError):
        file.publish("a/b", replace=True)
    monkeypatch.undo()
    file.publish("a/b", replace=True)
    file.close()
    assert (tmp_path / "a/b").exists()


def test_a_sweep_leaves_links_alone(tmp_path: Path) -> None:
    (tmp_path / DIRECTORY).mkdir()
    (tmp_path / "kept").write_bytes(b"x")
    (tmp_path / DIRECTORY / "link").symlink_to(tmp_path / "kept")
    assert sweep(Root(tmp_path)) == 0
    assert (tmp_path / DIRECTORY / "link").is_symlink()
    assert (tmp_path / "kept").read_bytes() == b"x"


@pytest.mark.parametrize("number", [errno.ENOSPC, errno.EDQUOT])
async def test_a_writer_that_cannot_reserve_as_much_as_it_likes_writes_while_there_is_room(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, number: int
) -> None:
    storage = LocalStorage(tmp_path)
    await storage.write("before", b"x")
    failing(monkeypatch, "posix_fallocate", number)
    async with storage.writer("x") as writer:
        await writer.write(bytes(2 * MIB))
    assert await storage.read("x") == bytes(2 * MIB)


async def test_a_disk_that_fails_while_space_is_reserved_is_said_to_fail(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    storage = LocalStorage(tmp_path)
    await storage.write("before", b"x")
    failing(monkeypatch, "posix_fallocate", errno.EIO)
    with pytest.raises(StorageUnavailableError, match="x: Input/output error"):
        async with storage.writer("x") as writer:
            await writer.write(bytes(2 * MIB))
    assert [info.path async for info in storage.list()] == ["before"]


@pytest.mark.parametrize("number", [errno.EOPNOTSUPP, errno.EINVAL, errno.EIO])
async def test_a_page_cache_that_cannot_be_asked_is_read_through_and_a_disk_that_fails_is_not(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, number: int
) -> None:
    storage, real = LocalStorage(tmp_path), os.preadv
    await storage.write("x", bytes(2 * MIB))

    def refuse_to_say(fd: int, buffers: list[memoryview], offset: int, flags: int = 0) -> int:
        if flags & os.RWF_NOWAIT:
            raise OSError(number, os.strerror(number))
        return real(fd, buffers, offset, flags)

    monkeypatch.setattr(os, "preadv", refuse_to_say)
    if number == errno.EIO:
        with pytest.raises(StorageUnavailableError, match="x: Input/output error"):
            await storage.read("x")
    else:
        assert await storage.read("x") == bytes(2 * MIB)
