"""Download: ranges of one object in parallel, straight into the caller's memory.

The first answer names the object's version, and every further range asks for that version, so an object
that is replaced meanwhile is read again from the start, never mixed.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

import obstore

from strata.errors import CorruptObjectError, ObjectChangedError, StorageError, StorageUnavailableError
from strata.storage.object.error_mapping import PreconditionFailedError, RangeError, translated
from strata.storage.protocol import check_end
from strata.storage.waits import note_problem, note_progress

if TYPE_CHECKING:
    from collections.abc import Iterator

    from obstore import GetOptions, GetResult

    from strata.storage.object.object_ref import ObjectRef

# How often an object may be replaced while it is read.
VERSION_ATTEMPTS = 5
# How often the answer to one range may break off.
STREAM_ATTEMPTS = 4
# Pieces that are copied into place as they come; larger ones would only wait longer for their last byte.
PIECE_BYTES = 1 << 20


async def read_into(ref: ObjectRef, view: memoryview, start: int) -> None:
    """Fill ``view`` with the bytes from ``start``."""
    for _ in range(VERSION_ATTEMPTS):
        try:
            first = await _open_first(ref, start, len(view))
            if first is not None:
                check_end(ref.path, start + len(view), first.meta["size"], backend=ref.backend)
                await _fill(ref, view, start, first)
        except PreconditionFailedError:
            continue
        return
    raise _kept_changing(ref)


async def read_bytes(ref: ObjectRef, start: int, length: int | None, etag: str | None = None) -> bytes:
    """Return ``length`` bytes from ``start``, or all from there; with an ``etag``, of that version alone."""
    for _ in range(VERSION_ATTEMPTS):
        try:
            first = await _open_first(ref, start, length, etag)
            if first is None:
                return b""
            size = first.meta["size"]
            end = size if length is None else start + length
            check_end(ref.path, max(start, end), size, backend=ref.backend)
            buffer = bytearray(end - start)
            await _fill(ref, memoryview(buffer), start, first)
            return bytes(buffer)
        except PreconditionFailedError:
            if etag is not None:
                raise ObjectChangedError(ref.path, backend=ref.backend) from None
            continue
    raise _kept_changing(ref)


async def _open_first(ref: ObjectRef, start: int, length: int | None, etag: str | None = None) -> GetResult | None:
    """Ask for the first range; None if there is an object but nothing in it to read."""
    if length != 0:
        wanted = ref.range_bytes if length is None else min(length, ref.range_bytes)
        try:
            options: GetOptions = {"range": (start, start + wanted)}
            if etag is not None:
                options["if_match"] = etag
            return await _get(ref, options)
        except RangeError:
            pass  # it ends before; the question is where
    with translated(ref.path, ref.backend):
        wanted_version: GetOptions = {"head": True} if etag is None else {"head": True, "if_match": etag}
        size = (await obstore.get_async(ref.store, ref.key, options=wanted_version)).meta["size"]
    check_end(ref.path, start + (length or 0), size, backend=ref.backend)
    return None


async def _fill(ref: ObjectRef, view: memoryview, start: int, first: GetResult) -> None:
    etag = first.meta["e_tag"]
    offsets = iter(range(ref.range_bytes, len(view), ref.range_bytes))
    lanes = min(ref.concurrency, -(-len(view) // ref.range_bytes))
    try:
        async with asyncio.TaskGroup() as group:
            group.create_task(_fill_lane(ref, view, start, offsets, etag, first))
            for _ in range(lanes - 1):
                group.create_task(_fill_lane(ref, view, start, offsets, etag, None))
    except BaseExceptionGroup as group_error:
        raise group_error.exceptions[0] from None


async def _fill_lane(
    ref: ObjectRef,
    view: memoryview,
    start: int,
    offsets: Iterator[int],
    etag: str | None,
    first: GetResult | None,
) -> None:
    """Fetch the first range if it is given, then one range after the other until none is left."""
    if first is not None:
        await _fetch(ref, view[: ref.range_bytes], start, etag, first)
    for offset in offsets:
        await _fetch(ref, view[offset : offset + ref.range_bytes], start + offset, etag, None)


async def _fetch(ref: ObjectRef, part: memoryview, start: int, etag: str | None, result: GetResult | None) -> None:
    """Fill ``part``; an answer that breaks off is asked for again, and that request waits for a store that is away."""
    options: GetOptions = {"range": (start, start + len(part))}
    if etag is not None:
        options["if_match"] = etag
    attempts_left = STREAM_ATTEMPTS
    while True:
        try:
            return await _copy(ref, result or await _get(ref, options), part)
        except (StorageUnavailableError, CorruptObjectError):
            attempts_left -= 1
            if not attempts_left:
                raise
            note_problem("the answer broke off")
            result = None


async def _get(ref: ObjectRef, options: GetOptions) -> GetResult:
    with translated(ref.path, ref.backend):
        result = await obstore.get_async(ref.store, ref.key, options=options)
    note_progress()
    return result


async def _copy(ref: ObjectRef, result: GetResult, part: memoryview) -> None:
    position = 0
    with translated(ref.path, ref.backend):
        async for piece in result.stream(min_chunk_size=PIECE_BYTES):
            received = memoryview(piece)
            part[position : position + len(received)] = received
            position += len(received)
            note_progress()
    if position != len(part):
        raise CorruptObjectError(
            ref.path, backend=ref.backend, problem=f"the store sent {position} bytes of {len(part)}"
        )


def _kept_changing(ref: ObjectRef) -> StorageError:
    return StorageError(
        f"it was replaced {VERSION_ATTEMPTS} times while it was read",
        path=ref.path,
        backend=ref.backend,
        hint="let its writers pause, or read what they write under another path",
    )
