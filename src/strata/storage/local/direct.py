"""Files at the speed of the device: aligned O_DIRECT in parallel chunks, or plain I/O where that is refused.

Synchronous code: callers run it in a thread. Past the page cache nothing is copied and nothing waits for
write-back, which is what makes fsync short. The price is alignment: offsets, lengths and addresses must be
multiples of a block. Memory that is not aligned goes through a bounded pool of warm buffers that are.
"""

from __future__ import annotations

import errno
import mmap
import os
import threading
import time
from collections import deque
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, nullcontext, suppress
from typing import TYPE_CHECKING, Literal, TypeAlias

import numpy as np

from strata.storage.waits import current_request

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

WriteMode = Literal["direct", "buffered"]
# Returns when so many bytes, from the front on, are final; raises if they never will be.
WaitReady: TypeAlias = "Callable[[int], None]"

# The largest sector in use: what is aligned to it is aligned on every device.
BLOCK_BYTES = 4096
# Of 4, 8 and 16 MiB with 1, 2 and 4 threads, this pair was the fastest.
CHUNK_BYTES = 8 << 20
THREADS = 4
# Pieces below this are gathered; from here on a piece is worth a write of its own.
SPAN_BYTES = 1 << 20
# Ahead of a writer that does not say how much will come, as much again as it has written is reserved, and at most this.
RESERVE_BYTES = 256 << 20


class StoppedError(Exception):
    """The work was given up between two chunks because nobody waits for it any more."""


class BouncePool:
    """Aligned buffers of one chunk each, at most ``limit`` at a time, kept warm for the next user."""

    def __init__(self, limit: int = 2 * THREADS) -> None:
        self._limit = limit
        self._start()

    def _start(self) -> None:
        self._pid = os.getpid()
        self._free: deque[mmap.mmap] = deque()
        self._permits = threading.BoundedSemaphore(self._limit)

    @contextmanager
    def lend(self) -> Iterator[memoryview]:
        """Lend a buffer; wait while all are in use."""
        if self._pid != os.getpid():
            # A fork copies the permits that the parent's threads hold, and those threads are not here.
            self._start()
        with self._permits:
            try:
                buffer = self._free.pop()
            except IndexError:
                buffer = allocate_huge(CHUNK_BYTES)
            try:
                with memoryview(buffer) as view:
                    yield view
            finally:
                self._free.append(buffer)


def allocate_huge(size_bytes: int) -> mmap.mmap:
    """Return zeroed private memory, in huge pages if there are any: a device is done sooner with few large pages."""
    memory = mmap.mmap(-1, size_bytes, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    with suppress(OSError):  # a kernel without huge pages
        memory.madvise(mmap.MADV_HUGEPAGE)
    return memory


def probe_direct(directory_fd: int, name: str) -> WriteMode:
    """Find out whether writes in this directory can go past the page cache.

    Some file systems refuse O_DIRECT when a file is opened; others (tmpfs) accept it and go through memory
    all the same. Only real direct I/O minds a misaligned address, so that is the test.
    """
    try:
        fd = os.open(name, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_DIRECT, 0o600, dir_fd=directory_fd)
    except OSError as error:
        if error.errno in (errno.EINVAL, errno.EOPNOTSUPP):
            # The kernel may have made the file before it refused the flag.
            _unlink_if_there(name, directory_fd)
            return "buffered"
        raise
    try:
        with (
            mmap.mmap(-1, 2 * BLOCK_BYTES) as memory,
            # Released before the memory is closed, also when the disk is full.
            memoryview(memory) as view,
            view[1 : 1 + BLOCK_BYTES] as shifted,
            view[:BLOCK_BYTES] as aligned,
        ):
            return "direct" if not _takes_write(fd, shifted) and _takes_write(fd, aligned) else "buffered"
    finally:
        os.close(fd)
        _unlink_if_there(name, directory_fd)


class FileSink:
    """Writes one new file front to back and makes it durable; ``fd`` stays the caller's.

    Of a stream of pieces, what does not fill a block waits in an aligned tail, so that every write to the
    device is whole blocks; :meth:`finish` pads the last one and cuts the file to its true length.
    """

    def __init__(self, fd: int, mode: WriteMode, pool: BouncePool, stop: threading.Event) -> None:
        self._fd = fd
        self._direct = mode == "direct"
        self._pool = pool
        self._stop = stop
        self._offset = 0
        self._reserved = 0
        self._tail: mmap.mmap | None = None
        self._filled = 0

    def reserve(self, size_bytes: int) -> None:
        """Allocate space up front: no full disk later, and writes that need not grow the file one by one."""
        if self._direct and size_bytes > self._reserved:
            os.posix_fallocate(self._fd, self._reserved, size_bytes - self._reserved)
            self._reserved = size_bytes

    def write(self, view: memoryview, wait_ready: WaitReady | None = None) -> None:
        """Append; when this returns, the view is not used any more.

        With ``wait_ready`` the view may still be filled, front to back, while its first chunks are written.
        """
        if wait_ready is not None:
            self._write_behind(view, wait_ready)
            return
        if not self._direct:
            self._write_span(view, copy=False)
            return
        if self._filled or len(view) < SPAN_BYTES:
            view = self._fill_tail(view)
        if len(view) >= SPAN_BYTES:
            whole = len(view) - len(view) % BLOCK_BYTES
            self._write_span(view[:whole], copy=not _is_aligned(view))
            view = view[whole:]
        if len(view):
            self._fill_tail(view)

    def finish(self) -> int:
        """Write what is left, cut the file to its length, make it durable; return that length."""
        size = self._offset + self._filled
        if self._tail is not None:
            padded = -(-self._filled // BLOCK_BYTES) * BLOCK_BYTES
            self._tail[self._filled : padded] = bytes(padded - self._filled)
            with memoryview(self._tail) as tail:
                self._write_all(tail[:padded], self._offset)
        if self._direct:
            os.ftruncate(self._fd, size)
        # Never retried: after a failed fsync the kernel may drop the pages and call the next one a success.
        os.fsync(self._fd)
        return size

    def _fill_tail(self, view: memoryview) -> memoryview:
        """Move bytes into the tail until it is full or they are all in; write a full one; return the rest."""
        if self._tail is None:
            self._tail = mmap.mmap(-1, CHUNK_BYTES)
        count = min(len(view), CHUNK_BYTES - self._filled)
        self._tail[self._filled : self._filled + count] = view[:count]
        self._filled += count
        if self._filled == CHUNK_BYTES:
            with memoryview(self._tail) as tail:
                self._filled = 0
                self._write_span(tail, copy=False)
        return view[count:]

    def _write_behind(self, view: memoryview, wait_ready: WaitReady) -> None:
        assert self._offset == self._filled == 0  # it is the whole file
        request = current_request()

        def wait_idle(end: int) -> None:
            with request.idle() if request is not None else nullcontext():
                wait_ready(end)

        whole = len(view) - len(view) % BLOCK_BYTES if self._direct else len(view)
        self._write_span(view[:whole], copy=self._direct and not _is_aligned(view), wait_ready=wait_idle)
        if whole < len(view):
            wait_idle(len(view))
            self._fill_tail(view[whole:])

    def _write_span(self, view: memoryview, *, copy: bool, wait_ready: WaitReady = lambda _: None) -> None:
        if self._direct and self._offset + len(view) > self._reserved:
            self._reserve_ahead(self._offset + len(view))
        base = self._offset

        def write_chunk(start: int) -> None:
            chunk = view[start : start + CHUNK_BYTES]
            wait_ready(start + len(chunk))
            if copy:
                with self._pool.lend() as bounce:
                    copy_bytes(bounce[: len(chunk)], chunk)
                    self._write_all(bounce[: len(chunk)], base + start)
            else:
                self._write_all(chunk, base + start)

        run_parallel(range(0, len(view), CHUNK_BYTES), write_chunk, self._stop)
        self._offset += len(view)

    def _reserve_ahead(self, needed: int) -> None:
        try:
            self.reserve(needed + min(self._offset, RESERVE_BYTES))
        except OSError as error:
            # Reserving is a kindness; if all that is left is less, the write itself will say when it is full.
            if error.errno not in (errno.ENOSPC, errno.EDQUOT):
                raise

    def _write_all(self, view: memoryview, offset: int) -> None:
        while len(view):
            count = os.pwrite(self._fd, view, offset)
            view, offset = view[count:], offset + count


def read_file(
    fd: int, direct_fd: int | None, view: memoryview, start: int, pool: BouncePool, stop: threading.Event
) -> int:
    """Fill ``view`` from offset ``start`` and return how many bytes there were.

    What the page cache holds is taken from it; the rest is read past it, which for cold data is several
    times faster and does not push anything else out of memory.
    """
    end = start + len(view)
    counts: deque[int] = deque()

    def read_chunk(chunk_start: int) -> None:
        # Chunks lie on multiples of their size in the file, so that the blocks around one fit a pool buffer.
        low, high = max(start, chunk_start), min(end, chunk_start + CHUNK_BYTES)
        chunk = view[low - start : high - start]
        if direct_fd is None or _is_cached(fd, low, len(chunk)):
            counts.append(_read_all(fd, chunk, low))
        elif low % BLOCK_BYTES == 0 and _is_aligned(chunk):
            counts.append(_read_in_place(fd, direct_fd, chunk, low))
        else:
            with pool.lend() as bounce:
                counts.append(_read_through(bounce, direct_fd, chunk, low))

    run_parallel(range(start - start % CHUNK_BYTES, end, CHUNK_BYTES), read_chunk, stop)
    return sum(counts)


def run_parallel(jobs: Sequence[int], work: Callable[[int], None], stop: threading.Event) -> None:
    """Do ``work`` for every job, in a few threads; the first error ends it and is raised.

    Threads are started per call: they cost little beside a chunk, and none is missing after a fork.
    """
    failed = threading.Event()
    request = current_request()

    def run(job: int) -> None:
        if stop.is_set():
            raise StoppedError
        if failed.is_set():
            return
        try:
            work(job)
        except BaseException:
            failed.set()
            raise
        if request is not None:
            request.move()

    if len(jobs) <= 1:
        for job in jobs:
            run(job)
        return
    with ThreadPoolExecutor(min(THREADS, len(jobs)), thread_name_prefix="strata-io") as threads:
        for done in [threads.submit(run, job) for job in jobs]:
            done.result()


def copy_bytes(target: memoryview, source: memoryview) -> None:
    """Copy without holding the interpreter's lock, so that other threads keep the device busy."""
    if len(source):
        np.copyto(np.frombuffer(target, np.uint8), np.frombuffer(source, np.uint8))


def _takes_write(fd: int, view: memoryview) -> bool:
    try:
        os.pwrite(fd, view, 0)
    except OSError as error:
        if error.errno != errno.EINVAL:
            raise
        return False
    return True


def _is_aligned(view: memoryview) -> bool:
    if not len(view):
        return True
    address: int = np.frombuffer(view, np.uint8).__array_interface__["data"][0]
    return address % BLOCK_BYTES == 0


def _is_cached(fd: int, offset: int, length: int) -> bool:
    """Whether the page cache holds this range, judged by one of its pages.

    Asking brings that page in, so another one is asked each time.
    """
    page = offset + time.monotonic_ns() % max(1, length // BLOCK_BYTES) * BLOCK_BYTES
    try:
        os.preadv(fd, [bytearray(1)], page, os.RWF_NOWAIT)
    except BlockingIOError:
        return False
    except OSError as error:
        if error.errno in (errno.EOPNOTSUPP, errno.EINVAL):
            return True
        raise
    return True


def _read_in_place(fd: int, direct_fd: int, chunk: memoryview, offset: int) -> int:
    whole = len(chunk) - len(chunk) % BLOCK_BYTES
    count = _read_all(direct_fd, chunk[:whole], offset, block=BLOCK_BYTES)
    return count + _read_all(fd, chunk[whole:], offset + whole) if count == whole else count


def _read_through(bounce: memoryview, direct_fd: int, chunk: memoryview, offset: int) -> int:
    skip = offset % BLOCK_BYTES
    blocks = -(-(skip + len(chunk)) // BLOCK_BYTES) * BLOCK_BYTES
    count = _read_all(direct_fd, bounce[:blocks], offset - skip, block=BLOCK_BYTES)
    count = max(0, min(count - skip, len(chunk)))
    copy_bytes(chunk[:count], bounce[skip : skip + count])
    return count


def _read_all(fd: int, view: memoryview, offset: int, *, block: int = 1) -> int:
    """Read until the view is full or the file ends; return how much was read.

    A direct read that ends inside a block met the end of the file, and could not go on from there.
    """
    total = 0
    while total < len(view):
        count = os.preadv(fd, [view[total:]], offset + total)
        total += count
        if count == 0 or total % block:
            break
    return total


def _unlink_if_there(name: str, directory_fd: int) -> None:
    with suppress(FileNotFoundError):
        os.unlink(name, dir_fd=directory_fd)
