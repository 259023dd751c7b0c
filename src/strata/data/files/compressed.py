"""Files without random access: streamed once, from the start, and read at random from the cache."""

from __future__ import annotations

import http.client
import lzma
import threading
from contextlib import closing
from functools import partial
from typing import TYPE_CHECKING, Any

import pyarrow as pa

from strata.data.files.cache import BLOCK_BYTES, Cache
from strata.data.files.random_access import STREAM_BYTES, check_end
from strata.errors import CorruptFileError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from strata.data.files.random_access import ByteFile


class StreamedFile:
    """Content that can only be had from its start. Reading in order streams it once; going back needs the cache.

    ``size_bytes`` is that of the content, which for compressed files only a scan can find out; before that it is 0.
    """

    def __init__(self, open_stream: Callable[[], Any], name: str, *, size_bytes: int, key: str, cache: Cache) -> None:
        self.name = name
        self.size_bytes = size_bytes
        self._open = open_stream
        self._key = key
        self._cache = cache
        self._problem = "it cannot be read to its end"
        self._lock = threading.Lock()
        # Where the open stream stands: the next block that it would give.
        self._stream: Any = None
        self._next = 0

    def read(self, start: int, length: int) -> pa.Buffer:
        """Return exactly these bytes of the content."""
        check_end(self.name, start + length, self.size_bytes)
        if length == 0:
            return pa.py_buffer(b"")
        first, last = start // BLOCK_BYTES, (start + length - 1) // BLOCK_BYTES
        blocks = [self._read_block(number) for number in range(first, last + 1)]
        data = blocks[0] if len(blocks) == 1 else b"".join(blocks)
        return pa.py_buffer(data).slice(start - first * BLOCK_BYTES, length)

    def will_need(self, start: int, length: int) -> None:
        """Nothing: there is no going to a place but through all before it."""

    def native(self) -> pa.NativeFile:
        """Return all of the content; only formats that are never compressed as a whole ask for this."""
        return pa.BufferReader(self.read(0, self.size_bytes))

    def stream(self) -> Iterator[pa.Buffer]:
        """Yield the content, piece by piece; nothing is cached."""
        offset = 0
        with closing(self._open()) as stream:
            while data := self._pull(stream, STREAM_BYTES, offset):
                offset += len(data)
                yield pa.py_buffer(data)

    def check_unchanged(self) -> None:
        """Nothing: what comes from the start anew has its own check."""

    def _read_block(self, number: int) -> bytes:
        if (found := self._cache.get(self._key, number)) is not None:
            return found
        with self._lock:
            if self._stream is None or self._next > number:
                self._close()
                self._stream, self._next = self._open(), 0
            try:
                while self._next <= number:
                    offset = self._next * BLOCK_BYTES
                    data = self._pull(self._stream, min(BLOCK_BYTES, self.size_bytes - offset), offset)
                    check_end(self.name, min(offset + BLOCK_BYTES, self.size_bytes), offset + len(data))
                    self._cache.put(self._key, self._next, data)
                    self._next += 1
            except BaseException:
                # The stream stands inside of a block now, so what it gives next is not the next block.
                self._close()
                raise
        return data

    def _close(self) -> None:
        if self._stream is not None:
            self._stream.close()
            self._stream = None

    def _pull(self, stream: Any, length: int, offset: int) -> bytes:
        """Read until the length or the end is reached; a stream gives what it has at hand, which may be less."""
        parts, missing = [], length
        try:
            while missing and (part := stream.read(missing)):
                parts.append(part)
                missing -= len(part)
        except (pa.ArrowException, OSError, EOFError, lzma.LZMAError, http.client.HTTPException) as error:
            problem = f"{self._problem}: {str(error).splitlines()[0]}"
            part = f"byte {offset} of the content or after"
            raise CorruptFileError(self.name, problem, kind="compressed", part=part) from error
        return parts[0] if len(parts) == 1 else b"".join(parts)


class CompressedFile(StreamedFile):
    """The content of a compressed file."""

    def __init__(self, inner: ByteFile, codec: str, *, size_bytes: int, key: str, cache: Cache) -> None:
        super().__init__(
            partial(_decompress, inner, codec), inner.name, size_bytes=size_bytes, key=f"{key}-{codec}", cache=cache
        )
        self._problem = f"its {codec} compression is damaged or cut off"
        self.check_unchanged = inner.check_unchanged  # type: ignore[method-assign]  # as its own would be


def _decompress(inner: ByteFile, codec: str) -> Any:
    # A decompressor asks for little at a time, and the file may be far away.
    source = pa.BufferedInputStream(inner.native(), STREAM_BYTES)
    return lzma.LZMAFile(source) if codec == "xz" else pa.CompressedInputStream(source, codec)
