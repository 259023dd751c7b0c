"""Staging: a warm pool of aligned memory, and the copy of a state into it, which is all that training waits for.

A staged buffer is the part file itself, head and data, so it is written from where it lies without another copy.
The pool never holds more than ``limit`` buffers, each as large as the largest state that was staged in it.
"""

from __future__ import annotations

import mmap
import threading
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from strata.checkpoint.tensors import Tensor, copy_values, view_source, wait_for_copies

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from strata.checkpoint.layout import PartLayout
    from strata.checkpoint.tree import Leaf

# Two threads fill the memory bus of most machines; more only take cores from training.
THREADS = 2
PIECE_BYTES = 8 << 20
# Whole huge pages, so that the first use of a buffer faults a few hundred times and not a million.
GRAIN_BYTES = 2 << 20
ByteArray = np.ndarray[Any, np.dtype[np.uint8]]


def allocate(size_bytes: int) -> mmap.mmap:
    """Return zeroed private memory of at least this size, aligned to pages and of huge ones if there are any."""
    rounded = max(1, -(-size_bytes // GRAIN_BYTES)) * GRAIN_BYTES
    memory = mmap.mmap(-1, rounded, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    memory.madvise(mmap.MADV_HUGEPAGE)
    return memory


@dataclass(slots=True, eq=False)
class StagedImage:
    """The bytes of one part, which nobody changes until :meth:`release`."""

    view: memoryview
    memory: mmap.mmap | None = None
    pool: StagingPool | None = None

    def release(self) -> None:
        """Give the memory back; once is enough, and more is harmless."""
        self.view = memoryview(b"")
        if self.pool is not None and self.memory is not None:
            self.pool.give_back(self.memory)
        self.memory = None


class StagingPool:
    """Buffers for at most ``limit`` staged parts at a time, kept warm between saves."""

    def __init__(self, limit: int) -> None:
        self._limit = limit
        self._lock = threading.Lock()
        self._free: list[mmap.mmap] = []
        self._lent = 0
        self._threads = ThreadPoolExecutor(THREADS - 1, thread_name_prefix="strata-staging")

    def stage_bytes(self, data: bytes | bytearray | memoryview) -> StagedImage:
        """Stage opaque bytes. A bytes object cannot change, so it is not copied."""
        if isinstance(data, bytes):
            return StagedImage(memoryview(data))
        source = np.frombuffer(data, np.uint8)
        image = self._lend(len(source))
        self._copy([(0, source)], image.view)
        return image

    def stage_state(self, plan: PartLayout, leaves: Mapping[str, Leaf]) -> StagedImage:
        """Copy every tensor to its place; when this returns, the state may change."""
        image = self._lend(plan.size_bytes)
        try:
            image.view[: len(plan.head)] = plan.head
            copies: list[tuple[int, ByteArray]] = []
            others: list[Tensor] = []
            for place in plan.places:
                if place.nbytes == 0:
                    continue
                tensor = leaves[place.name].tensor
                source = view_source(tensor)
                if source is None:
                    copy_values(tensor, image.view[place.offset : place.offset + place.nbytes])
                    others.append(tensor)
                else:
                    copies.append((place.offset, source))
            self._copy(copies, image.view)
            wait_for_copies(others)
        except BaseException:
            image.release()
            raise
        return image

    def give_back(self, memory: mmap.mmap) -> None:
        """Take a buffer back, warm for the next save."""
        with self._lock:
            self._lent -= 1
            self._free.append(memory)

    def close(self) -> None:
        """Let go of the memory; buffers that are lent are freed when they are given back and forgotten."""
        self._threads.shutdown()
        with self._lock:
            self._free.clear()

    def _lend(self, size_bytes: int) -> StagedImage:
        with self._lock:
            self._free.sort(key=len)
            memory = next((each for each in self._free if len(each) >= size_bytes), None)
            if memory is not None:
                self._free.remove(memory)
            else:
                # What is too small goes before its successor comes, so that memory stays within its bound.
                while self._free and self._lent + len(self._free) >= self._limit:
                    self._free.pop(0)
            self._lent += 1
        memory = memory if memory is not None else allocate(size_bytes)
        return StagedImage(memoryview(memory)[:size_bytes], memory, self)

    def _copy(self, copies: Sequence[tuple[int, ByteArray]], view: memoryview) -> None:
        target = np.frombuffer(view, np.uint8)
        pieces = [
            (offset + start, source[start : start + PIECE_BYTES])
            for offset, source in copies
            for start in range(0, len(source), PIECE_BYTES)
        ]
        half = _split(pieces)
        other = self._threads.submit(_copy_pieces, target, pieces[half:]) if half < len(pieces) else None
        try:
            _copy_pieces(target, pieces[:half])
        finally:
            if other is not None:
                other.result()


def _split(pieces: Sequence[tuple[int, ByteArray]]) -> int:
    """Where to cut the pieces so that both sides have about as many bytes; small states are not cut."""
    total = sum(len(source) for _, source in pieces)
    if total < PIECE_BYTES:
        return len(pieces)
    done = 0
    for index, (_, source) in enumerate(pieces):
        done += len(source)
        if done >= total // 2:
            return index + 1
    return len(pieces)


def _copy_pieces(target: ByteArray, pieces: Sequence[tuple[int, ByteArray]]) -> None:
    for offset, source in pieces:
        # Releases the interpreter's lock for all but the smallest.
        np.copyto(target[offset : offset + len(source)], source)
