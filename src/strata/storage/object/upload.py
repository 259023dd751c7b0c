"""Upload: one large object in parts, several at a time, in memory that does not grow with the object.

obstore takes an iterator of parts, and aborts the upload at the store if that iterator raises. It does not if
its own call is cancelled, so giving up always goes through the iterator.
"""

from __future__ import annotations

import asyncio
from contextlib import suppress
from typing import TYPE_CHECKING

import obstore

from strata.errors import StorageError
from strata.storage.object.error_mapping import translated
from strata.storage.protocol import PieceGuard, view_bytes
from strata.storage.waits import Request, note_progress

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    from typing_extensions import Buffer

    from strata.storage.object.object_ref import ObjectRef


class _AbandonedError(Exception):
    """The upload is not wanted any more; the store is told to forget its parts."""


class Upload:
    """Parts in, one object out when :meth:`finish` returns; after :meth:`abandon`, nothing."""

    def __init__(self, ref: ObjectRef) -> None:
        self._ref = ref
        # One part waits here while others are under way; a full queue is what holds the writer back.
        self._parts: asyncio.Queue[memoryview | bytes | None] = asyncio.Queue(maxsize=1)
        self._abandoned = asyncio.Event()
        self._task = asyncio.create_task(self._run(), name=f"upload {ref.path}")

    async def send(self, part: memoryview | bytes) -> None:
        """Hand over a part, which may not change until the upload ends; wait while many are under way."""
        await self._put(part)
        note_progress()

    async def finish(self) -> None:
        """Wait until the object is there."""
        await self._put(None)
        await asyncio.shield(self._task)

    async def abandon(self) -> None:
        """Give up: when this returns, no part is in use and the store was told to forget them."""
        self._abandoned.set()
        while not self._task.done():
            with suppress(asyncio.CancelledError):
                await asyncio.wait([self._task])
        self._task.exception()  # it is known, or the reason for all this

    async def _put(self, part: memoryview | bytes | None) -> None:
        putting = asyncio.create_task(self._parts.put(part))
        try:
            await asyncio.wait([putting, self._task], return_when=asyncio.FIRST_COMPLETED)
        finally:
            putting.cancel()
        if self._task.done() and part is not None:
            await self._task  # raises what ended it: it cannot end well before its last part

    async def _run(self) -> None:
        with translated(self._ref.path, self._ref.backend):
            await obstore.put_async(
                self._ref.store,
                self._ref.key,
                self._iterate(),
                use_multipart=True,
                chunk_size=self._ref.part_bytes,
                max_concurrency=self._ref.concurrency,
            )

    async def _iterate(self) -> AsyncIterator[memoryview | bytes]:
        abandoned = asyncio.create_task(self._abandoned.wait())
        try:
            while True:
                getting = asyncio.create_task(self._parts.get())
                await asyncio.wait([getting, abandoned], return_when=asyncio.FIRST_COMPLETED)
                if self._abandoned.is_set():
                    getting.cancel()
                    raise _AbandonedError
                part = getting.result()
                if part is None:
                    return
                yield part
        finally:
            abandoned.cancel()


class UploadWriter:
    """Gathers what it is given into parts; each byte is copied once, so the caller keeps its buffer."""

    def __init__(self, ref: ObjectRef, *, max_parts: int, where: str) -> None:
        self._ref = ref
        self._where = where
        self._max_parts = max_parts
        self._sent_parts = 0
        self._pending = bytearray()
        self._guard = PieceGuard(ref.path, backend=ref.backend)
        self._upload: Upload | None = None

    async def write(self, data: Buffer) -> None:
        """Append ``data``, and wait while many parts are under way."""
        with self._guard.piece(), Request(self._where, "write", self._ref.path):
            await self._append(view_bytes(data))

    async def publish(self) -> None:
        """Finish the object; one that fits a single part is put as a whole."""
        self._guard.check()
        with Request(self._where, "write", self._ref.path):
            await self._publish()

    async def _publish(self) -> None:
        if self._upload is None:
            with translated(self._ref.path, self._ref.backend):
                await obstore.put_async(self._ref.store, self._ref.key, bytes(self._pending), use_multipart=False)
            return
        if self._pending:
            await self._send(bytes(self._pending))
        await self._upload.finish()

    async def abandon(self) -> None:
        """Leave nothing behind."""
        if self._upload is not None:
            await self._upload.abandon()

    async def _append(self, view: memoryview) -> None:
        size = self._ref.part_bytes
        if self._pending:
            missing = size - len(self._pending)
            self._pending += view[:missing]
            view = view[missing:]
            if len(self._pending) == size:
                await self._send(bytes(self._pending))
                self._pending.clear()
        whole = len(view) - len(view) % size
        for start in range(0, whole, size):
            await self._send(bytes(view[start : start + size]))
        self._pending += view[whole:]

    async def _send(self, part: bytes) -> None:
        self._sent_parts += 1
        if self._sent_parts > self._max_parts:
            raise StorageError(
                f"it has more than {self._max_parts} parts of {self._ref.part_bytes} bytes",
                path=self._ref.path,
                backend=self._ref.backend,
                hint="open the storage with a larger part_bytes",
            )
        if self._upload is None:
            self._upload = Upload(self._ref)
        await self._upload.send(part)
