"""The writer: a staged part to storage with its digests, then the manifest, always last.

Nothing that was there is written over: a part whose name is taken, by a dead save or by another process that saves the
same step at this moment, gets another name, and the manifest is put only if there is none. So whatever dies in between,
readers see the old checkpoints and no other.
"""

from __future__ import annotations

import asyncio
import uuid
from contextlib import suppress
from typing import TYPE_CHECKING, Any

from strata.checkpoint.format import layout
from strata.checkpoint.format.delta import find_changes, merge_extents
from strata.checkpoint.format.digest import CHUNK_BYTES, digest_behind, digest_part
from strata.checkpoint.format.manifest import Extent, Manifest, PartRecord, encode
from strata.checkpoint.format.manifest_reader import ManifestProblem, decode
from strata.errors import CheckpointError, CheckpointExistsError, ObjectExistsError, StorageError

if TYPE_CHECKING:
    from collections.abc import Coroutine

    from strata.checkpoint.save.staging import StagedImage
    from strata.storage import Storage


class Writer:
    """Writes parts and manifests below one job's checkpoints directory."""

    def __init__(self, storage: Storage, directory: str) -> None:
        self._storage = storage
        self._directory = directory

    async def check_free(self, step: int) -> None:
        """Raise CheckpointExistsError if the step is committed; a save then must not begin."""
        path = self._full(layout.manifest_name(step))
        if await self._storage.exists(path):
            raise CheckpointExistsError(step, path=path)

    async def write_part(
        self,
        image: StagedImage,
        *,
        step: int,
        part: int = 0,
        parts: int = 1,
        opaque: bool = False,
        token: str = "",
        parent: PartRecord | None = None,
    ) -> PartRecord:
        """Make a part durable and return its record; with a parent, only what differs from it is written."""
        if parent is not None:
            await asyncio.to_thread(image.wait_ready, image.size_bytes)
            changes = await asyncio.to_thread(find_changes, image.view, parent)
            if changes is not None:
                name = ""
                if changes.runs:
                    name = await self._free_name(step, part, parts, opaque=opaque, token=token, delta=True)
                return await self._write_changes(image.view, name, changes.digests, changes.runs, parent)
        name = await self._free_name(step, part, parts, opaque=opaque, token=token)
        try:
            chunks = await self._digest_during(image, self._write_whole(image, name))
        except ObjectExistsError:
            # Another process saves this step too, and took the name since it was seen to be free.
            name = layout.part_name(step, part, parts, opaque=opaque, token=_new_token())
            chunks = await self._digest_during(image, self._write_whole(image, name))
        size_bytes = len(image.view)
        extents = (Extent(name, 0, size_bytes),) if size_bytes else ()
        return PartRecord(size_bytes, digest_part(chunks), tuple(chunks), extents)

    async def _write_whole(self, image: StagedImage, name: str) -> None:
        if (files := self._storage.local_files) is not None:
            # What is staged is written while the rest is still being staged.
            await files.write_behind(self._full(name), image.view, image.take)
            return
        # Object stores copy what they stream, so there it is better to wait for the whole.
        await asyncio.to_thread(image.wait_ready, image.size_bytes)
        await self._storage.write(self._full(name), image.view)

    async def _digest_during(self, image: StagedImage, work: Coroutine[Any, Any, None]) -> list[bytes]:
        digests = asyncio.create_task(asyncio.to_thread(digest_behind, image.view, image.wait_ready))
        try:
            await work
        finally:
            # The thread reads the staged bytes, so they cannot be given back before it ends.
            await asyncio.wait([digests])
            # Where the write failed, it has said why; the same from the digests is not news.
            digests.exception()
        return digests.result()

    async def publish(self, manifest: Manifest, *, replaces: bool = False) -> int:
        """Commit: when this returns, the checkpoint exists, and before, it did not. Return the manifest's size.

        With ``replaces`` it takes the place of the one that is there.
        """
        path = self._full(layout.manifest_name(manifest.step))
        data = await asyncio.to_thread(_encode_checked, manifest)
        if replaces:
            await self._storage.write(path, data)
            return len(data)
        try:
            await self._storage.write_new(path, data)
        except ObjectExistsError as error:
            raise CheckpointExistsError(manifest.step, path=path) from error
        return len(data)

    async def report(self, manifest: Manifest, part: int, parts: int, *, token: str = "") -> str:
        """Say that a part is durable, to whoever will commit; return where this is said."""
        name = layout.report_name(manifest.step, part, parts, token=token)
        await self._storage.write(self._full(name), encode(manifest, "strata-part"))
        return name

    async def retract_report(self, step: int, part: int, parts: int) -> None:
        """Take back what an earlier attempt said about this part, before its bytes are written anew."""
        await self._storage.delete(self._full(layout.report_name(step, part, parts)))

    async def remove(self, record: PartRecord, step: int) -> None:
        """Remove the objects that a failed save wrote for this step; what cannot be removed is swept later."""
        for name in {extent.path for extent in record.extents if layout.step_of(extent.path) == step}:
            with suppress(StorageError):
                await self._storage.delete(self._full(name))

    async def _write_changes(
        self, view: memoryview, name: str, digests: list[bytes], runs: list[tuple[int, int]], parent: PartRecord
    ) -> PartRecord:
        written: list[tuple[int, Extent]] = []
        if runs:
            size_bytes = sum(min(last * CHUNK_BYTES, len(view)) - first * CHUNK_BYTES for first, last in runs)
            async with self._storage.writer(self._full(name), size_bytes=size_bytes) as writer:
                offset = 0
                for first, last in runs:
                    start, end = first * CHUNK_BYTES, min(last * CHUNK_BYTES, len(view))
                    await writer.write(view[start:end])
                    written.append((start, Extent(name, offset, end - start)))
                    offset += end - start
        return PartRecord(len(view), digest_part(digests), tuple(digests), merge_extents(parent.extents, written))

    async def _free_name(
        self, step: int, part: int, parts: int, *, opaque: bool, token: str, delta: bool = False
    ) -> str:
        name = layout.part_name(step, part, parts, opaque=opaque, delta=delta, token=token)
        if token or await self._claim(name, will_refuse=self._storage.local_files is not None and not delta):
            return name
        return layout.part_name(step, part, parts, opaque=opaque, delta=delta, token=_new_token())

    async def _claim(self, name: str, *, will_refuse: bool) -> bool:
        """Whether a name is this save's own: an empty object takes it, unless the write refuses a name that is taken.

        An upload replaces what is there, so that another process could replace what was committed meanwhile.
        """
        if will_refuse:
            return not await self._storage.exists(self._full(name))
        try:
            await self._storage.write_new(self._full(name), b"")
        except ObjectExistsError:
            return False
        return True

    def _full(self, name: str) -> str:
        return f"{self._directory}/{name}"


def _new_token() -> str:
    return uuid.uuid4().hex[:8]


def _encode_checked(manifest: Manifest) -> bytes:
    """The bytes of a manifest, read once before anyone is told of them: what is committed can be read."""
    data = encode(manifest)
    try:
        decode(data)
    except ManifestProblem as error:
        raise CheckpointError(f"step {manifest.step} was not committed, for it could not be read: {error}") from error
    return data
