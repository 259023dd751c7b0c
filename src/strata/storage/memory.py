"""MemoryStorage: the whole contract in a dictionary, for tests and for trying things out."""

from __future__ import annotations

from contextlib import asynccontextmanager
from dataclasses import dataclass
from hashlib import blake2b
from typing import TYPE_CHECKING

from strata.clock import Clock, SystemClock
from strata.errors import ObjectExistsError, ObjectNotFoundError
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

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    from typing_extensions import Buffer

BACKEND = "memory"


@dataclass(frozen=True, slots=True)
class _Object:
    data: bytes
    modified_s: float


class _MemoryWriter:
    def __init__(self, path: str) -> None:
        self.guard = PieceGuard(path, backend=BACKEND)
        self.content = bytearray()

    async def write(self, data: Buffer) -> None:
        with self.guard.piece():
            self.content += view_bytes(data)


class MemoryStorage:
    """Keeps objects as long as it lives itself. No operation waits, so each is atomic on its event loop."""

    def __init__(self, *, clock: Clock | None = None) -> None:
        self._clock = clock or SystemClock()
        self._objects: dict[str, _Object] = {}

    def __repr__(self) -> str:
        return f"MemoryStorage({len(self._objects)} objects)"

    @property
    def local_files(self) -> None:
        """It has no files."""

    async def write(self, path: str, data: Buffer) -> None:
        """Put the object in place, over any older one."""
        self._objects[check_key(path)] = _Object(bytes(view_bytes(data)), self._clock.wall_s())

    async def write_new(self, path: str, data: Buffer) -> None:
        """Put the object in place only if there is none."""
        if check_key(path) in self._objects:
            raise ObjectExistsError(path, backend=BACKEND)
        await self.write(path, data)

    async def read(self, path: str, *, start: int = 0, length: int | None = None, etag: str | None = None) -> bytes:
        """Return exactly ``length`` bytes from ``start``, or all from there."""
        check_range(start, length)
        data = self._find(path).data
        if etag is not None:
            check_etag(path, etag, _etag(data), backend=BACKEND)
        end = len(data) if length is None else start + length
        check_end(path, max(start, end), len(data), backend=BACKEND)
        return data[start:end]

    async def read_into(self, path: str, buffer: Buffer, *, start: int = 0) -> None:
        """Fill the buffer with the bytes from ``start``."""
        check_range(start, None)
        view = view_writable(buffer)
        data = self._find(path).data
        check_end(path, start + len(view), len(data), backend=BACKEND)
        view[:] = memoryview(data)[start : start + len(view)]

    async def exists(self, path: str) -> bool:
        """Whether there is an object at ``path``."""
        return check_key(path) in self._objects

    async def delete(self, path: str) -> None:
        """Remove the object; one that is not there is fine."""
        self._objects.pop(check_key(path), None)

    async def list(self, prefix: str = "") -> AsyncIterator[ObjectInfo]:
        """Yield every object below ``prefix`` that was there when the listing began."""
        checked = check_prefix(prefix)
        for path, found in list(self._objects.items()):
            if not checked or path.startswith(f"{checked}/"):
                yield ObjectInfo(path, len(found.data), found.modified_s, _etag(found.data))

    @asynccontextmanager
    async def writer(self, path: str, *, size_bytes: int | None = None) -> AsyncIterator[_MemoryWriter]:
        """Collect the pieces, and publish them when the block ends normally."""
        writer = _MemoryWriter(check_key(path))
        yield writer
        writer.guard.check()
        await self.write(path, writer.content)

    def _find(self, path: str) -> _Object:
        try:
            return self._objects[check_key(path)]
        except KeyError:
            raise ObjectNotFoundError(path, backend=BACKEND) from None


def _etag(data: bytes) -> str:
    return blake2b(data, digest_size=16).hexdigest()
