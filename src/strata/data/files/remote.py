"""Files in a storage: ranges of them, through the cache, each block fetched once."""

from __future__ import annotations

import io
from typing import TYPE_CHECKING, Protocol, TypeAlias

import pyarrow as pa

from strata.data.files.cache import BLOCK_BYTES, Cache
from strata.data.files.random_access import STREAM_BYTES, check_end
from strata.data.files.storage_loop import wait_for
from strata.data.single_flight import SingleFlight
from strata.errors import CorruptFileError, CorruptObjectError, ObjectChangedError, ObjectNotFoundError, StaleIndexError

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

# What is fetched at least where nothing is cached, so that small reads side by side are one request.
AHEAD_BYTES = 64 << 10


# Which blocks are on their way in this process, by the file's key and the number, so that each is fetched once.
Fetches: TypeAlias = SingleFlight[tuple[str, int], bytes]


class Ranges(Protocol):
    """What gives ranges of files that are far away: a storage, or a web server."""

    async def read(self, path: str, *, start: int = 0, length: int | None = None, etag: str | None = None) -> bytes:
        """Return these bytes, of this version."""
        ...


class RemoteFile:
    """One object of a storage. Without a cache, only what is asked for is fetched."""

    def __init__(
        self,
        storage: Ranges,
        path: str,
        *,
        name: str,
        size_bytes: int,
        etag: str | None,
        key: str,
        cache: Cache | None,
        fetches: Fetches,
    ) -> None:
        self.name = name
        self.size_bytes = size_bytes
        self._storage = storage
        self._path = path
        self._etag = etag
        self._key = key
        self._cache = cache
        self._fetches = fetches
        # The last piece that was read: headers and footers are read in small steps.
        self._last: tuple[int, bytes] = (0, b"")

    def read(self, start: int, length: int) -> pa.Buffer:
        """Return exactly these bytes."""
        check_end(self.name, start + length, self.size_bytes)
        begin, data = self._last
        if not begin <= start <= start + length <= begin + len(data):
            begin, data = self._read_aligned(start, length)
            self._last = (begin, data)
        return pa.py_buffer(data).slice(start - begin, length)

    def will_need(self, start: int, length: int) -> None:
        """Nothing: a read fetches all that it covers with parallel requests."""

    def native(self) -> pa.NativeFile:
        """Return a file of Arrow's that reads from here."""
        return pa.PythonFile(_Handle(self), mode="r")

    def stream(self) -> Iterator[pa.Buffer]:
        """Yield the whole object, piece by piece."""
        for start in range(0, self.size_bytes, STREAM_BYTES):
            yield pa.py_buffer(self._fetch(start, min(STREAM_BYTES, self.size_bytes - start)))

    def check_unchanged(self) -> None:
        """Nothing: each read asks for the version that was indexed."""

    def _read_aligned(self, start: int, length: int) -> tuple[int, bytes]:
        if length == 0:
            return start, b""
        if self._cache is None:
            return start, self._fetch(start, min(max(length, AHEAD_BYTES), self.size_bytes - start))
        first, last = start // BLOCK_BYTES, (start + length - 1) // BLOCK_BYTES
        blocks = {number: self._cache.get(self._key, number) for number in range(first, last + 1)}
        missing = [(self._key, number) for number, data in blocks.items() if data is None]
        fetched = self._fetches.get_many(missing, self._fetch_blocks)
        found = [fetched[self._key, number] if data is None else data for number, data in blocks.items()]
        return first * BLOCK_BYTES, found[0] if len(found) == 1 else b"".join(found)

    def _fetch_blocks(self, wanted: Sequence[tuple[str, int]]) -> dict[tuple[str, int], bytes]:
        assert self._cache is not None
        # Once more: another thread may have been done just before this one became the owner.
        cached = {each: self._cache.get(*each) for each in wanted}
        found = {each: data for each, data in cached.items() if data is not None}
        for first, last in _runs([number for (_, number), data in cached.items() if data is None]):
            start = first * BLOCK_BYTES
            data = self._fetch(start, min((last + 1) * BLOCK_BYTES, self.size_bytes) - start)
            for number in range(first, last + 1):
                begin = (number - first) * BLOCK_BYTES
                block = found[self._key, number] = data[begin : begin + BLOCK_BYTES]
                self._cache.put(self._key, number, block)
        return found

    def _fetch(self, start: int, length: int) -> bytes:
        try:
            # Of the version that was indexed and no other: the cache keeps it under that name.
            return wait_for(self._storage.read(self._path, start=start, length=length, etag=self._etag))
        except ObjectChangedError as error:
            raise StaleIndexError(self.name, self.name, "was written again") from error
        except ObjectNotFoundError as error:
            raise StaleIndexError(self.name, self.name, "is gone") from error
        except CorruptObjectError as error:
            raise CorruptFileError(self.name, error.problem, kind="whole", offset=start) from error


def _runs(numbers: Sequence[int]) -> Iterator[tuple[int, int]]:
    """Yield first and last of each run of consecutive numbers."""
    begin = None
    for position, number in enumerate(numbers):
        if begin is None:
            begin = number
        if position + 1 == len(numbers) or numbers[position + 1] != number + 1:
            yield begin, number
            begin = None


class _Handle(io.RawIOBase):
    """The face of a file for Arrow and zipfile: a position over random access."""

    def __init__(self, file: RemoteFile) -> None:
        self._file = file
        self._position = 0

    def readable(self) -> bool:
        return True

    def tell(self) -> int:
        return self._position

    def seek(self, offset: int, whence: int = io.SEEK_SET) -> int:
        base = {io.SEEK_SET: 0, io.SEEK_CUR: self._position, io.SEEK_END: self._file.size_bytes}[whence]
        self._position = base + offset
        return self._position

    def read(self, size: int | None = -1) -> bytes:
        rest = max(0, self._file.size_bytes - self._position)
        length = rest if size is None or size < 0 else min(size, rest)
        data = self._file.read(self._position, length)
        self._position += length
        return memoryview(data)  # type: ignore[return-value]  # Arrow takes any buffer, and so saves a copy
