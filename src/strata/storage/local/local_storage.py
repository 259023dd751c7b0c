"""LocalStorage: objects as files below a directory."""

from __future__ import annotations

import logging
import mmap
import os
import threading
import uuid
from contextlib import asynccontextmanager, contextmanager
from functools import partial
from typing import TYPE_CHECKING, TypeVar

from strata.storage.blocking import run_blocking
from strata.storage.local.direct import (
    BouncePool,
    FileSink,
    StoppedError,
    WaitReady,
    WriteMode,
    probe_direct,
    read_file,
)
from strata.storage.local.directory import (
    BACKEND,
    etag_of,
    find_links,
    object_exists,
    open_directory,
    open_object,
    remove_object,
    scan_directory,
)
from strata.storage.local.open_files import OpenFiles, open_direct
from strata.storage.local.root import Root
from strata.storage.local.temporary import DIRECTORY, TemporaryFile, sweep
from strata.storage.object_keys import check_key, check_prefix
from strata.storage.protocol import (
    ObjectInfo,
    PieceGuard,
    check_end,
    check_etag,
    check_range,
    view_bytes,
    view_writable,
)
from strata.storage.waits import Action, Request

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Sequence

    from typing_extensions import Buffer

    from strata.storage.protocol import LocalFiles

log = logging.getLogger(__name__)
T = TypeVar("T")

# Below this, one plain write and an fsync take no longer than O_DIRECT does.
DIRECT_WRITE_BYTES = 1 << 20
# Below this, a plain read is as fast as a direct one, also of what the page cache does not hold.
DIRECT_READ_BYTES = 512 << 10


class LocalStorage:
    """Objects as files below ``root``: temporary file, fsync, rename or link, fsync of the directory.

    The root is made at the first write, and what dead processes left in it is swept then. No symbolic link
    below the root is followed. Only a delete is not durable: after a power cut, the object may be back.
    """

    def __init__(self, root: str | os.PathLike[str]) -> None:
        self._root = Root(root)
        self._where = str(self._root)
        self._pool = BouncePool()
        self._write_mode: WriteMode | None = None
        # Which directory the write mode was found out for: a root that went away may be back on another file system.
        self._prepared: tuple[int, int] | None = None

    def __repr__(self) -> str:
        return f"LocalStorage({str(self._root)!r})"

    @property
    def write_mode(self) -> WriteMode | None:
        """How large objects are written: past the page cache, or through it; None before the first write."""
        return self._write_mode

    @property
    def local_files(self) -> LocalFiles:
        """Its objects are files of this machine."""
        return self

    async def write(self, path: str, data: Buffer) -> None:
        """Put the object in place, over any older one: atomic and durable."""
        view = view_bytes(data)
        await self._run("write", check_key(path), lambda stop: self._write(path, view, stop, replace=True))

    async def write_behind(self, path: str, data: Buffer, wait_ready: WaitReady) -> None:
        """As :meth:`write_new`, but ``data`` may still be filled, front to back, while its beginning is written.

        ``wait_ready(end)`` is called in other threads; it returns when the first ``end`` bytes are final.
        """
        view = view_bytes(data)
        await self._run(
            "write", check_key(path), lambda stop: self._write(path, view, stop, replace=False, wait_ready=wait_ready)
        )

    async def write_new(self, path: str, data: Buffer) -> None:
        """Put the object in place only if there is none: exactly one of many writers succeeds."""
        view = view_bytes(data)
        await self._run("write", check_key(path), lambda stop: self._write(path, view, stop, replace=False))

    async def read(self, path: str, *, start: int = 0, length: int | None = None, etag: str | None = None) -> bytes:
        """Return exactly ``length`` bytes from ``start``, or all from there."""
        check_range(start, length)
        return await self._run("read", check_key(path), lambda stop: self._read(path, start, length, etag, stop))

    async def read_into(self, path: str, buffer: Buffer, *, start: int = 0) -> None:
        """Fill the buffer from ``start``: straight into it if it is aligned, in parallel if it is large."""
        check_range(start, None)
        view = view_writable(buffer)
        await self._run("read", check_key(path), lambda stop: self._read_into(path, view, start, stop))

    @contextmanager
    def open_files(self) -> Iterator[OpenFiles]:
        """Lend blocking reads, for callers with threads of their own that use what they read on the spot."""
        files = OpenFiles(self._root, self._pool)
        try:
            yield files
        finally:
            files.close()

    async def find_links(self, prefix: str) -> Sequence[str]:
        """Return the symbolic links below ``prefix``: no listing has them, and to read them is refused."""
        return await self._run("list", check_key(prefix), partial(find_links, self._root, prefix.split("/")))

    async def exists(self, path: str) -> bool:
        """Whether there is an object at ``path``."""
        return await self._run("look up", check_key(path), lambda _: object_exists(self._root, path))

    async def delete(self, path: str) -> None:
        """Remove the object, and the directories that it leaves empty; one that is not there is fine."""
        await self._run("delete", check_key(path), lambda _: remove_object(self._root, path))

    async def list(self, prefix: str = "") -> AsyncIterator[ObjectInfo]:
        """Yield every object below ``prefix``; temporary files, links and foreign names are not objects."""
        checked = check_prefix(prefix)
        pending = [checked.split("/") if checked else []]
        while pending:
            found, below = await self._run("list", prefix, partial(scan_directory, self._root, pending.pop()))
            pending.extend(below)
            for info in found:
                yield info

    @asynccontextmanager
    async def writer(self, path: str, *, size_bytes: int | None = None) -> AsyncIterator[_LocalWriter]:
        """Write piece by piece; publish when the block ends normally, leave nothing otherwise."""
        check_key(path)
        file = TemporaryFile(self._root)
        stop = threading.Event()

        def start(_: threading.Event) -> FileSink:
            mode = self._prepare()
            sink = FileSink(file.open(direct=mode == "direct"), mode, self._pool, stop)
            sink.reserve(size_bytes or 0)
            return sink

        def publish(_: threading.Event) -> None:
            sink.finish()
            if stop.is_set():
                raise StoppedError
            file.publish(path, replace=True)

        try:
            sink = await self._run("write", path, start, stop)
            writer = _LocalWriter(path, sink, partial(self._run, "write", path, stop=stop))
            yield writer
            writer.guard.check()
            await self._run("write", path, publish, stop)
        finally:
            await self._run("write", path, lambda _: file.close())

    async def _run(
        self, action: Action, path: str, work: Callable[[threading.Event], T], stop: threading.Event | None = None
    ) -> T:
        with Request(self._where, action, path):
            return await run_blocking(path, work, stop)

    def _prepare(self) -> WriteMode:
        """Make the root, sweep it and find out how to write there, unless that was done for this very directory."""
        try:
            found = self._root.identify()
        except FileNotFoundError:
            found = self._root.make()
        if self._write_mode is None or self._prepared != found:
            if removed := sweep(self._root):
                log.info("%s: removed %d temporary files of processes that died", self._root, removed)
            with open_directory(self._root, [DIRECTORY], create=True) as directory:
                self._write_mode = probe_direct(directory, uuid.uuid4().hex)
            self._prepared = found
            log.info("%s: large objects are written %s", self._root, _DESCRIPTIONS[self._write_mode])
        return self._write_mode

    def _write(
        self,
        path: str,
        view: memoryview,
        stop: threading.Event,
        *,
        replace: bool,
        wait_ready: WaitReady | None = None,
    ) -> None:
        mode = self._prepare()
        if len(view) < DIRECT_WRITE_BYTES:
            mode = "buffered"
        file = TemporaryFile(self._root)
        try:
            sink = FileSink(file.open(direct=mode == "direct"), mode, self._pool, stop)
            sink.reserve(len(view))
            sink.write(view, wait_ready)
            sink.finish()
            if stop.is_set():
                raise StoppedError
            file.publish(path, replace=replace)
        finally:
            file.close()

    def _read(self, path: str, start: int, length: int | None, etag: str | None, stop: threading.Event) -> bytes:
        fd = open_object(self._root, path)
        try:
            status = os.fstat(fd)
            check_etag(path, etag, etag_of(status), backend=BACKEND)
            size = status.st_size
            end = size if length is None else start + length
            check_end(path, max(start, end), size, backend=BACKEND)
            if end - start < DIRECT_READ_BYTES:
                data = os.pread(fd, end - start, start)
            else:
                memory = mmap.mmap(-1, end - start)  # aligned, so that it is read into as it is
                data = memory[: self._fill(fd, memoryview(memory), start, stop)]
        finally:
            os.close(fd)
        check_end(path, end, start + len(data), backend=BACKEND)
        return data

    def _read_into(self, path: str, view: memoryview, start: int, stop: threading.Event) -> None:
        fd = open_object(self._root, path)
        try:
            check_end(path, start + len(view), os.fstat(fd).st_size, backend=BACKEND)
            count = self._fill(fd, view, start, stop)
        finally:
            os.close(fd)
        check_end(path, start + len(view), start + count, backend=BACKEND)

    def _fill(self, fd: int, view: memoryview, start: int, stop: threading.Event) -> int:
        direct_fd = open_direct(fd) if len(view) >= DIRECT_READ_BYTES else None
        try:
            return read_file(fd, direct_fd, view, start, self._pool, stop)
        finally:
            if direct_fd is not None:
                os.close(direct_fd)


class _LocalWriter:
    def __init__(self, path: str, sink: FileSink, run: Callable[..., Awaitable[None]]) -> None:
        self._sink = sink
        self._run = run
        self.guard = PieceGuard(path, backend=BACKEND)

    async def write(self, data: Buffer) -> None:
        with self.guard.piece():
            view = view_bytes(data)
            await self._run(lambda _: self._sink.write(view))


_DESCRIPTIONS = {
    "direct": "with O_DIRECT",
    "buffered": "through the page cache, because its file system has no O_DIRECT",
}
