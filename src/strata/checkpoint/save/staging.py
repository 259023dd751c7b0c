"""Staging: a warm pool of aligned memory, and the copy of a state into it, which is all that training waits for.

A staged buffer is the part file itself, head and data, so it is written from where it lies without another copy.
The pool never holds more than ``limit`` buffers, each as large as the largest state that was staged in it.
"""

from __future__ import annotations

import ctypes
import mmap
import threading
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from itertools import accumulate
from typing import TYPE_CHECKING, Any

import numpy as np

from strata.checkpoint.format.tensors import (
    Tensor,
    copy_values,
    is_on_cuda,
    pin_memory,
    unpin_memory,
    view_source,
    wait_for_copies,
)
from strata.errors import CheckpointError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence

    from strata.checkpoint.format.layout import PartLayout
    from strata.checkpoint.format.tree import Leaf

# Few, because they take cores from training; not tuned on machines with more than two.
THREADS = 2
PIECE_BYTES = 8 << 20
# After each of these, whoever writes what is staged is told.
SPAN_BYTES = 16 << 20
# Buffers grow in steps, so that a state that grows a little still fits the one it had.
GRAIN_BYTES = 2 << 20
# Smaller buffers gain too little from huge pages.
HUGE_BYTES = 64 << 20
MADV_COLLAPSE = 25
ByteArray = np.ndarray[Any, np.dtype[np.uint8]]


def allocate(size_bytes: int) -> mmap.mmap:
    """Return zeroed private memory of at least this size, aligned to pages."""
    rounded = max(1, -(-size_bytes // GRAIN_BYTES)) * GRAIN_BYTES
    return mmap.mmap(-1, rounded, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)


@dataclass(slots=True, eq=False)
class _Buffer:
    """Memory of the pool. Direct writes from huge pages are half as fast again, but making them takes seconds.

    Where memory is fragmented the kernel moves other pages first, so they are never made while training waits: a
    buffer starts with small pages, and when it turns out to be used again they are replaced in the background.
    """

    memory: mmap.mmap
    uses: int = 0
    is_huge: bool = False
    is_pinned: bool = False

    def make_huge(self) -> None:
        self.is_huge = True
        # Through ctypes, which lets go of the interpreter's lock. Older kernels say no, and nothing is lost.
        ctypes.CDLL(None).madvise(ctypes.c_void_p(self._address()), ctypes.c_size_t(len(self.memory)), MADV_COLLAPSE)

    def pin(self) -> None:
        """Lock the pages for the CUDA driver, so that copies from the device need not go through its own buffers."""
        if not self.is_pinned:
            pin_memory(self._address(), len(self.memory))
            self.is_pinned = True

    def unpin(self) -> None:
        """Undo :meth:`pin`; the memory may only be unmapped afterwards."""
        if self.is_pinned:
            unpin_memory(self._address())
            self.is_pinned = False

    def _address(self) -> int:
        return int(np.frombuffer(self.memory, np.uint8).ctypes.data)


class StagedImage:
    """The bytes of one part. They are filled front to back, and then nobody changes them until :meth:`release`.

    Who writes them may follow who fills them: what :meth:`wait_ready` returned is final.
    """

    def __init__(self, view: memoryview, buffer: _Buffer | None = None, pool: StagingPool | None = None) -> None:
        self.view = view
        self.size_bytes = len(view)
        self._buffer = buffer
        self._pool = pool
        self._ready_bytes = 0
        self._ended = False
        self._failure: BaseException | None = None
        self._changed = threading.Condition()
        self.on_taken: Callable[[int], None] = lambda end: None
        self.is_followed = False
        # Of tensors that this worker holds and does not write, by number, taken when the state could not change.
        self.digests: dict[int, bytes] = {}

    def publish(self, ready_bytes: int, *, ended: bool = False, failure: BaseException | None = None) -> None:
        """Say how many bytes are final, or that no more will come."""
        with self._changed:
            self._ready_bytes, self._ended, self._failure = ready_bytes, ended, failure
            self._changed.notify_all()

    def wait_ready(self, end: int) -> None:
        """Wait until the first ``end`` bytes are final; raise what ended the filling before."""
        with self._changed:
            self._changed.wait_for(lambda: self._ended or self._ready_bytes >= end)
            if isinstance(self._failure, Exception):
                raise self._failure
            if self._failure is not None:
                # Ctrl-C in the thread that fills is no reason to stop the one that waits.
                raise CheckpointError(f"staging was stopped by {self._failure!r}") from self._failure

    def take(self, end: int) -> None:
        """Wait as :meth:`wait_ready`, and tell ``on_taken`` that these bytes go to storage now."""
        self.wait_ready(end)
        self.on_taken(end)

    def wait_filled(self) -> None:
        """Wait until nobody writes to the memory any more, whether that went well or not."""
        with self._changed:
            self._changed.wait_for(lambda: self._ended)

    def pin(self) -> None:
        """Make copies from an accelerator into this memory as fast as they can be."""
        if self._buffer is not None:
            self._buffer.pin()

    def release(self) -> None:
        """Give the memory back; once is enough, and more is harmless."""
        self.view = memoryview(b"")
        if self._pool is not None and self._buffer is not None:
            self._pool.give_back(self._buffer)
        self._buffer = None


class StagingPool:
    """Buffers for at most ``limit`` staged parts at a time, kept warm between saves."""

    def __init__(self, limit: int) -> None:
        self._limit = limit
        self._lock = threading.Lock()
        self._free: list[_Buffer] = []
        self._lent = 0
        self._threads = ThreadPoolExecutor(THREADS - 1, thread_name_prefix="strata-staging")

    def lend_bytes(self, data: bytes | bytearray | memoryview) -> StagedImage:
        """Lend memory for opaque bytes. A bytes object cannot change: it is its own image, and needs no filling."""
        if isinstance(data, bytes):
            return StagedImage(memoryview(data))
        return self.lend(memoryview(data).nbytes)

    def fill_bytes(self, image: StagedImage, data: bytes | bytearray | memoryview) -> None:
        """Copy opaque bytes into their image."""
        if not isinstance(data, bytes):
            self._copy([(0, np.frombuffer(data, np.uint8))], image, in_order=True, threads=THREADS)
        image.publish(image.size_bytes, ended=True)

    def fill_state(self, image: StagedImage, plan: PartLayout, leaves: Mapping[str, Leaf]) -> None:
        """Copy every tensor to its place; when this returns, the state may change."""
        self.copy_tensors(image, plan, leaves, in_order=True)
        image.publish(image.size_bytes, ended=True)

    def copy_tensors(
        self,
        image: StagedImage,
        plan: PartLayout,
        leaves: Mapping[str, Leaf],
        *,
        in_order: bool,
        threads: int = THREADS,
    ) -> None:
        """Copy these tensors to their places; ``in_order`` if they are all, so that a writer may follow."""
        image.view[: len(plan.head)] = plan.head
        copies: list[tuple[int, ByteArray]] = []
        others: list[Tensor] = []
        for place in plan.places:
            if place.nbytes == 0 or place.name not in leaves:
                continue
            tensor = leaves[place.name].tensor
            source = view_source(tensor)
            if source is None:
                if is_on_cuda(tensor):
                    image.pin()
                copy_values(tensor, image.view[place.offset : place.offset + place.nbytes])
                others.append(tensor)
            else:
                copies.append((place.offset, source))
        # What is not copied front to back must be there before anything is called final.
        wait_for_copies(others)
        self._copy(copies, image, in_order=in_order, threads=threads)

    def run_later(self, work: Callable[[], None]) -> None:
        """Run work in a thread of the pool."""
        self._threads.submit(work)

    def give_back(self, buffer: _Buffer) -> None:
        """Take a buffer back, warm for the next save."""
        with self._lock:
            self._lent -= 1
            self._free.append(buffer)

    def improve(self) -> None:
        """Give buffers that were used more than once huge pages; call it where seconds do not matter."""
        with self._lock:
            worth_it = [b for b in self._free if b.uses > 1 and not b.is_huge and len(b.memory) >= HUGE_BYTES]
        for buffer in worth_it:
            buffer.make_huge()

    def close(self) -> None:
        """Let go of the memory; buffers that are lent are freed when they are given back and forgotten."""
        self._threads.shutdown()
        with self._lock:
            while self._free:
                self._free.pop().unpin()

    def lend(self, size_bytes: int) -> StagedImage:
        """Lend memory that is not filled yet."""
        with self._lock:
            self._free.sort(key=lambda each: len(each.memory))
            buffer = next((each for each in self._free if len(each.memory) >= size_bytes), None)
            if buffer is not None:
                self._free.remove(buffer)
            else:
                # What is too small goes before its successor comes, so that memory stays within its bound.
                while self._free and self._lent + len(self._free) >= self._limit:
                    self._free.pop(0).unpin()
            self._lent += 1
        if buffer is None:
            buffer = _Buffer(allocate(size_bytes))
        buffer.uses += 1
        return StagedImage(memoryview(buffer.memory)[:size_bytes], buffer, self)

    def _copy(
        self, copies: Sequence[tuple[int, ByteArray]], image: StagedImage, *, in_order: bool, threads: int
    ) -> None:
        target = np.frombuffer(image.view, np.uint8)
        pieces = [
            (offset + start, source[start : start + PIECE_BYTES])
            for offset, source in copies
            for start in range(0, len(source), PIECE_BYTES)
        ]
        for span in _spans(pieces):
            # Where the bytes are written meanwhile, the device sets the pace, and a second copier only disturbs it.
            half = len(span) if image.is_followed or threads == 1 else _split(span)
            other = self._threads.submit(_copy_pieces, target, span[half:]) if half < len(span) else None
            try:
                _copy_pieces(target, span[:half])
            finally:
                if other is not None:
                    other.result()
            offset, source = span[-1]
            if in_order:
                image.publish(offset + len(source))


def _spans(pieces: Sequence[tuple[int, ByteArray]]) -> Iterator[Sequence[tuple[int, ByteArray]]]:
    """Cut the pieces into spans, after each of which the writer is told."""
    first, size = 0, 0
    for index, (_, source) in enumerate(pieces):
        size += len(source)
        if size >= SPAN_BYTES or index == len(pieces) - 1:
            yield pieces[first : index + 1]
            first, size = index + 1, 0


def _split(pieces: Sequence[tuple[int, ByteArray]]) -> int:
    """Where to cut the pieces so that both sides have about as many bytes; small states are not cut."""
    ends = list(accumulate(len(source) for _, source in pieces))
    if ends[-1] < PIECE_BYTES:
        return len(pieces)
    return 1 + next(index for index, end in enumerate(ends) if end >= ends[-1] // 2)


def _copy_pieces(target: ByteArray, pieces: Sequence[tuple[int, ByteArray]]) -> None:
    for offset, source in pieces:
        # Releases the interpreter's lock for all but the smallest.
        np.copyto(target[offset : offset + len(source)], source)
