"""Memory that two processes share for the arrays of a batch, so that only a few bytes of it go through a pipe."""

from __future__ import annotations

import itertools
import mmap
import os
import pickle
import tempfile
from multiprocessing import reduction
from typing import Any

import numpy as np

# Arrays begin at multiples of this, as NumPy and its callers like them.
_ALIGNMENT = 64


# How many bytes each piece of a value has, of which the first is all but the arrays: all that must be sent to find it.
Sizes = tuple[int, ...]


class SharedMemory:
    """Memory without a name: it is gone when the processes are that have it, however they end.

    It holds one value at a time and grows to the largest. A process that is started with it as an argument has it too.
    """

    def __init__(self) -> None:
        self._descriptor = _open_memory()
        self._view: mmap.mmap | None = None

    def put(self, value: Any) -> Sizes:
        """Copy a value here, over the one before it; what is returned is to be sent to who takes it."""
        buffers: list[pickle.PickleBuffer] = []
        body = pickle.dumps(value, protocol=5, buffer_callback=buffers.append)
        pieces = [memoryview(body), *(buffer.raw() for buffer in buffers)]
        sizes = tuple(piece.nbytes for piece in pieces)
        for piece, place in zip(pieces, self._places(sizes), strict=True):
            place[:] = np.frombuffer(piece, np.uint8) if len(place) else place
        return sizes

    def take(self, sizes: Sizes) -> Any:
        """Return the value that was put here last; its arrays are copies, which stay when the next one is put."""
        body, *arrays = self._places(sizes)
        return pickle.loads(body.data, buffers=[each.copy() for each in arrays])  # noqa: S301 - of a process of our own

    def _places(self, sizes: Sizes) -> list[np.ndarray[Any, np.dtype[np.uint8]]]:
        """Return where pieces of these sizes stand, one after the other."""
        begins = [0, *itertools.accumulate(map(_aligned, sizes))]
        view = self._map(begins[-1])
        return [np.frombuffer(view, np.uint8, size, at) for at, size in zip(begins, sizes, strict=False)]

    def __getstate__(self) -> Any:
        return reduction.DupFd(self._descriptor)

    def __setstate__(self, duplicate: Any) -> None:
        self._descriptor = duplicate.detach()
        self._view = None

    def __del__(self) -> None:
        os.close(self._descriptor)

    def _map(self, size: int) -> mmap.mmap:
        """Return the memory, with room for so many bytes."""
        if self._view is None or len(self._view) < size:
            room = os.fstat(self._descriptor).st_size
            if room < size or not room:
                # To a power of two, so that batches of about one size do not grow it again and again.
                room = max(mmap.PAGESIZE, 1 << (size - 1).bit_length())
                os.ftruncate(self._descriptor, room)
            self._view = mmap.mmap(self._descriptor, room)
        return self._view


def _open_memory() -> int:
    if hasattr(os, "memfd_create"):
        return os.memfd_create("strata-batch")
    # Where memory without a name cannot be had, a file without one.
    with tempfile.TemporaryFile(prefix="strata-batch") as file:
        return os.dup(file.fileno())


def _aligned(size: int) -> int:
    return -(-size // _ALIGNMENT) * _ALIGNMENT
