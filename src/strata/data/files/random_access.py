"""Random access to the bytes of one file, wherever it lies: what every format reads from."""

from __future__ import annotations

import ctypes
import mmap
import os
import weakref
from functools import lru_cache
from pathlib import Path
from typing import TYPE_CHECKING, Protocol

import pyarrow as pa

from strata.errors import CorruptFileError, StaleIndexError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

# Reads of at least this much are announced to the kernel, which then fetches them in one go.
ADVISE_BYTES = 256 << 10
# What a scan reads at a time.
STREAM_BYTES = 4 << 20
# What versions of local files begin with.
_LOCAL = "local:"

_libc = ctypes.CDLL(None, use_errno=True)
_libc.mmap.restype = ctypes.c_void_p
_libc.mmap.argtypes = [ctypes.c_void_p, ctypes.c_size_t, *[ctypes.c_int] * 3, ctypes.c_int64]
_libc.munmap.argtypes = [ctypes.c_void_p, ctypes.c_size_t]
_libc.madvise.argtypes = [ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int]
_MAP_FAILED = ctypes.c_void_p(-1).value


class ByteFile(Protocol):
    """One file of one version. Safe to use from several threads at once."""

    @property
    def name(self) -> str:
        """The path or URL, as errors show it."""
        ...

    @property
    def size_bytes(self) -> int:
        """How many bytes there are to read."""
        ...

    def read(self, start: int, length: int) -> pa.Buffer:
        """Return exactly these bytes; a file that ends before is a CorruptFileError."""
        ...

    def will_need(self, start: int, length: int) -> None:
        """Say what is read next, so that it can be fetched in one go."""
        ...

    def native(self) -> pa.NativeFile:
        """Return a file of Arrow's over these bytes, for one thread."""
        ...

    def stream(self) -> Iterator[pa.Buffer]:
        """Yield all bytes once from the start, in pieces, without filling any cache."""
        ...

    def check_unchanged(self) -> None:
        """Raise StaleIndexError if the file is seen to have changed since it was opened; asks no server."""
        ...


def version_of(status: os.stat_result) -> str:
    """Return what differs if a local file is replaced or written over, also with the same size and time.

    The time of modification can be set back; the time of change and the inode cannot. The number of the device is not
    part of it: machines that share a file system number it as they like, and anew at each start.
    """
    inode = status.st_ino if has_lasting_numbers(status.st_dev) else 0
    return f"{_LOCAL}{status.st_mtime_ns}:{status.st_ctime_ns}:{inode}"


def may_be_copies(old: str, new: str) -> bool:
    """Whether versions are of two local files with the same time of modification, as those of a copied dataset."""
    return old.startswith(_LOCAL) and old.split(":")[:2] == new.split(":")[:2]


@lru_cache(maxsize=64)
def has_lasting_numbers(device: int) -> bool:
    """Whether a file of this device keeps its inode; file systems in user space may give another each time."""
    number = f"{os.major(device)}:{os.minor(device)}"
    for line in _read_mounts().splitlines():
        mount, _, kind = line.partition(" - ")
        if mount.split(" ")[2:3] == [number]:
            return not kind.startswith("fuse")
    return True


def _read_mounts() -> str:
    try:
        return Path("/proc/self/mountinfo").read_text(errors="replace")
    except OSError:
        return ""


class LocalFile:
    """A local file, mapped into memory: reading copies nothing.

    A mapping of a file that was shortened cannot be read, and the kernel ends a process that tries. So each
    read looks at the size first; only a file that is cut in that very moment is not noticed.
    """

    def __init__(self, path: str) -> None:
        self.name = path
        self._fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
        # A view of the data holds the mapping, not this object: the descriptor is closed with the last reader.
        weakref.finalize(self, os.close, self._fd)
        status = os.fstat(self._fd)
        self.size_bytes = status.st_size
        self.version = version_of(status)
        self._map = _Mapping(self._fd, self.size_bytes) if self.size_bytes else None
        self._buffer = pa.py_buffer(b"") if self._map is None else self._map.buffer()

    def read(self, start: int, length: int) -> pa.Buffer:
        """Return exactly these bytes, as a view."""
        self._check(start + length)
        if length >= ADVISE_BYTES:
            self.will_need(start, length)
        return self._buffer.slice(start, length)

    def will_need(self, start: int, length: int) -> None:
        """Let the kernel read ahead, over all of this at once; a damaged index may name what is not there."""
        if self._map is not None and length > 0 and 0 <= start < self.size_bytes:
            aligned = start - start % mmap.PAGESIZE
            self._map.will_need(aligned, min(start + length, self.size_bytes) - aligned)

    def native(self) -> pa.NativeFile:
        """Return a file of Arrow's over the mapping."""
        self._check(self.size_bytes)
        return pa.BufferReader(self._buffer)

    def stream(self) -> Iterator[pa.Buffer]:
        """Yield views of the whole file, piece by piece."""
        for start in range(0, self.size_bytes, STREAM_BYTES):
            yield self.read(start, min(STREAM_BYTES, self.size_bytes - start))

    def check_unchanged(self) -> None:
        """Raise StaleIndexError if the file was written over; one that was removed or renamed over is still whole."""
        status = os.fstat(self._fd)
        if status.st_nlink and version_of(status) != self.version:
            raise StaleIndexError(self.name, self.name, "was written again")

    def _check(self, end: int) -> None:
        size = self.size_bytes
        if end <= size and self._map is not None:
            size = os.fstat(self._fd).st_size
        check_end(self.name, end, size)


class _Mapping:
    """A file mapped into memory, read-only, without an open descriptor.

    Python's mmap keeps one until the last view is gone (it can be told not to from 3.13 on), and batches and cached
    blocks are views. Most systems allow a process 1,024 descriptors, so a dataset of more small files failed.
    """

    def __init__(self, fd: int, size_bytes: int) -> None:
        self._size_bytes = size_bytes
        self._address = _libc.mmap(None, size_bytes, mmap.PROT_READ, mmap.MAP_SHARED, fd, 0)
        if self._address == _MAP_FAILED:
            raise OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()))
        # Not at exit: other threads may still read.
        weakref.finalize(self, _libc.munmap, self._address, size_bytes).atexit = False

    def buffer(self) -> pa.Buffer:
        """Return all bytes as a view that keeps the mapping."""
        return pa.foreign_buffer(self._address, self._size_bytes, base=self)

    def will_need(self, start: int, length: int) -> None:
        """Let the kernel read ahead from ``start``, the first byte of a page."""
        _libc.madvise(self._address + start, length, mmap.MADV_WILLNEED)


class WatchedFile:
    """Another file, of which it is told how much was streamed."""

    def __init__(self, file: ByteFile, on_bytes: Callable[[int], None]) -> None:
        self.name = file.name
        self.size_bytes = file.size_bytes
        self.read = file.read
        self.will_need = file.will_need
        self.native = file.native
        self.check_unchanged = file.check_unchanged
        self._file = file
        self._on_bytes = on_bytes
        self._told = 0

    def stream(self) -> Iterator[pa.Buffer]:
        """Yield all bytes, and tell of each piece when it was used."""
        for piece in self._file.stream():
            yield piece
            self._told += piece.size
            self._on_bytes(piece.size)

    def finish(self) -> None:
        """Tell of what was not streamed, because it needed no reading."""
        self._on_bytes(self.size_bytes - self._told)


def check_end(name: str, end: int, size_bytes: int) -> None:
    """Refuse to read up to ``end`` of a file that ends before."""
    if end > size_bytes:
        raise CorruptFileError(name, f"it ends there, but {end} bytes are needed", kind="whole", offset=size_bytes)
