"""The reader: bytes of parts, checked against their digests before anyone sees them.

From a local storage a few threads read, check and copy, each its own chunks; from others, reads are asked for on the
event loop and checked in threads. What fills whole chunks of its target is read straight into it. Chunks that are
shared by several targets, or whose target is not aligned like the file (then the device could not write to it either),
go through a warm buffer and are copied while they are still in the processor's cache.
"""

from __future__ import annotations

import asyncio
import threading
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from strata.checkpoint.format.delta import cut_extents
from strata.checkpoint.format.digest import CHUNK_BYTES, chunk_count, digest_bytes
from strata.checkpoint.format.dtypes import DTYPES
from strata.checkpoint.format.layout import ALIGN_BYTES
from strata.errors import DamagedCheckpointError, ObjectNotFoundError, StorageError
from strata.storage.blocking import is_of_one_object, run_blocking
from strata.storage.local.direct import allocate_huge, run_parallel

if TYPE_CHECKING:
    import mmap
    from collections.abc import Callable, Iterator, Sequence

    from strata.checkpoint.format.manifest import Extent, Manifest
    from strata.storage import Storage
    from strata.storage.protocol import BlockingReader, LocalFiles

# How much is asked of the storage at once, and how many such runs are under way.
RUN_BYTES = 8 << 20
CONCURRENCY = 8


@dataclass(frozen=True, slots=True)
class Request:
    """Bytes of a part that are wanted, and the memory that they are to fill."""

    part: int
    offset: int
    target: memoryview

    @property
    def end(self) -> int:
        """Where in the part the wanted bytes end."""
        return self.offset + len(self.target)


@dataclass(frozen=True, slots=True)
class _Run:
    """Consecutive chunks of a part, and for each the requests that it serves; with ``direct``, all of one request."""

    part: int
    first: int
    requests: list[list[Request]]
    direct: bool

    @property
    def last(self) -> int:
        return self.first + len(self.requests)


class Reader:
    """Reads from one checkpoint. ``on_bytes`` is told how many bytes of it were read and found good.

    ``scratch`` keeps a few buffers warm for the next reader.
    """

    def __init__(
        self,
        storage: Storage,
        directory: str,
        manifest: Manifest,
        on_bytes: Callable[[int], None] | None = None,
        scratch: list[mmap.mmap] | None = None,
    ) -> None:
        self._storage = storage
        self._directory = directory
        self._manifest = manifest
        self._on_bytes = on_bytes or (lambda count: None)
        self._told = threading.Lock()
        self._scratch = scratch if scratch is not None else []
        # A thread that reads, checks and copies at once is fastest with what fits the processor's cache.
        self._run_chunks = 1 if storage.local_files is not None else RUN_BYTES // CHUNK_BYTES

    async def fetch(self, requests: Sequence[Request]) -> None:
        """Fill every target, or raise DamagedCheckpointError; then the targets are undefined."""
        wanted: dict[int, list[Request]] = {}
        for request in requests:
            if len(request.target):
                wanted.setdefault(request.part, []).append(request)
        await self._run_all([run for part in sorted(wanted) for run in self._plan(part, wanted[part])])

    async def verify(self, part: int) -> None:
        """Read a whole part and check it, in little memory."""
        count = chunk_count(self._manifest.parts[part].size_bytes)
        await self._run_all([_Run(part, index, [[]], direct=False) for index in range(count)])

    async def _run_all(self, runs: Sequence[_Run]) -> None:
        if (local := self._storage.local_files) is not None:
            await self._run_in_threads(local, runs)
        else:
            await self._run_on_loop(runs)

    async def _run_in_threads(self, local: LocalFiles, runs: Sequence[_Run]) -> None:
        def work(stop: threading.Event) -> None:
            with local.open_files() as files:
                run_parallel(range(len(runs)), lambda number: read_run(files, runs[number], stop), stop)

        def read_run(files: BlockingReader, run: _Run, stop: threading.Event) -> None:
            with self._memory() as scratch:
                start, view = self._span(run, scratch)
                for extent, target in self._extents(run.part, start, view):
                    with self._telling(run.part, start, view, extent.path):
                        files.read_into(f"{self._directory}/{extent.path}", target, extent.offset, stop)
                self._check_and_deliver(run, start, view)

        await run_blocking(self._directory, work)

    async def _run_on_loop(self, runs: Sequence[_Run]) -> None:
        waiting = iter(runs)

        async def lane() -> None:
            with self._memory() as scratch:
                for run in waiting:
                    await self._read_run(run, scratch)

        try:
            async with asyncio.TaskGroup() as group:
                for _ in range(min(CONCURRENCY, len(runs))):
                    group.create_task(lane())
        except BaseExceptionGroup as errors:
            damaged = [error for error in errors.exceptions if isinstance(error, DamagedCheckpointError)]
            raise (damaged or errors.exceptions)[0] from None

    @contextmanager
    def _memory(self) -> Iterator[memoryview]:
        """Lend memory for a run, warm after its first use; new memory for every run would cost more than the read."""
        try:
            memory = self._scratch.pop()
        except IndexError:
            memory = allocate_huge(RUN_BYTES)
        try:
            yield memoryview(memory)
        finally:
            if len(self._scratch) < CONCURRENCY:
                self._scratch.append(memory)

    def _plan(self, part: int, requests: list[Request]) -> Iterator[_Run]:
        """Cut what is wanted of a part into runs, which end at multiples of their size, where storages cut too."""
        requests.sort(key=lambda request: request.offset)
        size = self._manifest.parts[part].size_bytes
        aligned = {id(request) for request in requests if _is_aligned(request)}
        run: _Run | None = None
        for index, touching in _by_chunk(requests):
            end = min((index + 1) * CHUNK_BYTES, size)
            one = touching[0]
            direct = len(touching) == 1 and id(one) in aligned and one.offset <= index * CHUNK_BYTES and one.end >= end
            follows = run is not None and run.last == index and index % self._run_chunks != 0 and run.direct == direct
            if run is not None and follows and (not direct or run.requests[0][0] is one):
                run.requests.append(touching)
                continue
            if run is not None:
                yield run
            run = _Run(part, index, [touching], direct)
        if run is not None:
            yield run

    async def _read_run(self, run: _Run, scratch: memoryview) -> None:
        start, view = self._span(run, scratch)
        for extent, target in self._extents(run.part, start, view):
            with self._telling(run.part, start, view, extent.path):
                await self._storage.read_into(f"{self._directory}/{extent.path}", target, start=extent.offset)
        await asyncio.to_thread(self._check_and_deliver, run, start, view)

    def _span(self, run: _Run, scratch: memoryview) -> tuple[int, memoryview]:
        """Return where in its part a run begins, and the memory to read it into."""
        start = run.first * CHUNK_BYTES
        end = min(run.last * CHUNK_BYTES, self._manifest.parts[run.part].size_bytes)
        if not run.direct:
            return start, scratch[: end - start]
        request = run.requests[0][0]
        return start, request.target[start - request.offset : end - request.offset]

    def _extents(self, part: int, start: int, view: memoryview) -> Iterator[tuple[Extent, memoryview]]:
        """Return the pieces of objects that make up a span of a part, each with its memory."""
        position = 0
        for extent in cut_extents(self._manifest.parts[part].extents, start, start + len(view)):
            yield extent, view[position : position + extent.length]
            position += extent.length

    @contextmanager
    def _telling(self, part: int, start: int, view: memoryview, path: str) -> Iterator[None]:
        """Say of an object that is not as it was which part, tensor and bytes are lost with it."""
        try:
            yield
        except ObjectNotFoundError as error:
            raise self._damaged(part, start, start + len(view), "the file is missing", path) from error
        except StorageError as error:
            # What fails for this object alone is damage; a store that is away says nothing about a checkpoint.
            if not is_of_one_object(error):
                raise
            raise self._damaged(part, start, start + len(view), error.problem, path) from error

    def _check_and_deliver(self, run: _Run, start: int, view: memoryview) -> None:
        expected = self._manifest.parts[run.part].chunks
        for index, requests in enumerate(run.requests, start=run.first):
            low = index * CHUNK_BYTES
            chunk = view[low - start : low - start + CHUNK_BYTES]
            if digest_bytes(chunk) != expected[index]:
                raise self._damaged(run.part, low, low + len(chunk), "its digest differs")
            if not run.direct:
                _deliver(chunk, low, requests)
        with self._told:
            self._on_bytes(len(view))

    def _damaged(
        self, part: int, start: int, end: int, problem: str, path: str | None = None
    ) -> DamagedCheckpointError:
        record = self._manifest.parts[part]
        if path is None:
            path = next((extent.path for extent in cut_extents(record.extents, start, end)), record.path)
        return DamagedCheckpointError(
            self._manifest.step,
            problem,
            part=path,
            tensor=self._tensor_in(part, start, end),
            start=start,
            end=end,
        )

    def _tensor_in(self, part: int, start: int, end: int) -> str | None:
        """The first tensor that has bytes in this range."""
        found: list[tuple[int, str]] = []
        for name, tensor in self._manifest.tensors.items():
            itemsize = DTYPES[tensor.dtype].itemsize
            for stored in tensor.slices:
                length = int(np.prod(stored.shape, dtype=np.int64)) * itemsize
                if stored.part == part and stored.offset < end and stored.offset + length > start:
                    found.append((stored.offset, name))
        return min(found)[1] if found else None


def add_up(on_read: Callable[[int, int], None] | None, total_bytes: int) -> Callable[[int], None] | None:
    """Make an ``on_bytes`` that tells ``on_read`` how many bytes are done by now, and of how many."""
    if on_read is None:
        return None
    done = 0

    def follow(count: int) -> None:
        nonlocal done
        done += count
        on_read(done, total_bytes)

    return follow


def _deliver(chunk: memoryview, start: int, requests: Sequence[Request]) -> None:
    source, end = np.frombuffer(chunk, np.uint8), start + len(chunk)
    for request in requests:
        low, high = max(start, request.offset), min(end, request.end)
        target = np.frombuffer(request.target, np.uint8)
        np.copyto(target[low - request.offset : high - request.offset], source[low - start : high - start])


def _is_aligned(request: Request) -> bool:
    """Whether the target lies in memory as the bytes lie in the file, so that a device can write to it."""
    if len(request.target) < CHUNK_BYTES:
        return False
    return (np.frombuffer(request.target, np.uint8).ctypes.data - request.offset) % ALIGN_BYTES == 0


def _by_chunk(requests: Sequence[Request]) -> Iterator[tuple[int, list[Request]]]:
    """Yield every chunk that is touched, in order, with the requests that touch it."""
    touching: dict[int, list[Request]] = {}
    for request in requests:
        for index in range(request.offset // CHUNK_BYTES, chunk_count(request.end)):
            touching.setdefault(index, []).append(request)
    for index in sorted(touching):
        yield index, touching[index]
