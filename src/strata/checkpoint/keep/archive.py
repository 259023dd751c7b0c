"""The archive: looking into checkpoints without restoring them: verify, export, compare."""

from __future__ import annotations

import asyncio
import math
import os
import uuid
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from strata.checkpoint.format import layout
from strata.checkpoint.format.dtypes import DTYPES
from strata.checkpoint.format.random_state import list_state_tensors, without_random_state
from strata.checkpoint.format.tensors import Tensor
from strata.checkpoint.format.tree import Leaf, show_path, walk
from strata.checkpoint.keep.catalog import Catalog, Scan
from strata.checkpoint.keep.comparison import Difference, compare_values, count_nonfinite
from strata.checkpoint.load.part_reader import Reader
from strata.checkpoint.load.restore import read_blocks, restore
from strata.checkpoint.load.slicing import Wanted
from strata.errors import CheckpointNotFoundError

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable, Iterator, Mapping, Sequence
    from contextlib import AbstractAsyncContextManager
    from pathlib import Path

    from strata.checkpoint.format.manifest import Manifest
    from strata.storage import Storage

# Tensors are read in groups of about this size: neighbours share their chunks, and memory stays small.
GROUP_BYTES = 128 << 20
# How much of a storage is looked through for the names of other jobs.
LOOK_OBJECTS = 1000


@dataclass(frozen=True, slots=True)
class Deep:
    """What a deep look found in a checkpoint whose bytes are all good: numbers that no training wants.

    ``unread`` are tensors of types that NumPy does not know without ml_dtypes.
    """

    tensors: int
    nonfinite: dict[str, int]
    unread: list[str] = field(default_factory=list)


class Archive:
    """One job's checkpoints, for people and programs that look at them."""

    def __init__(self, storage: Storage, job_id: str) -> None:
        self._storage = storage
        self._directory = layout.checkpoints_directory(job_id)
        self._catalog = Catalog(storage, self._directory)

    async def scan(self) -> Scan:
        """All checkpoints, and why some cannot be read; CheckpointNotFoundError if the job has nothing here."""
        scan = await self._catalog.scan()
        if not scan.objects:
            raise await self._nothing_here()
        return scan

    async def require(self) -> None:
        """Raise CheckpointNotFoundError if the job has nothing here."""
        async for _ in self._storage.list(self._directory):
            return
        raise await self._nothing_here()

    async def _nothing_here(self) -> CheckpointNotFoundError:
        jobs: set[str] = set()
        looked = 0
        async for info in self._storage.list():
            job, found, _ = info.path.partition("/checkpoints/")
            jobs |= {job} if found else set()
            looked += 1
            if looked >= LOOK_OBJECTS:
                break
        job = self._directory.partition("/")[0]
        if jobs:
            problem = f"there is no job {job!r}; choose with --job: {', '.join(sorted(jobs)[:10])}"
        else:
            problem = "there are no checkpoints; is the path right?" if looked else "there is nothing at this path"
        return CheckpointNotFoundError(None, path=repr(self._storage), problem=problem)

    async def read(self, step: int) -> Manifest:
        """The manifest of a step."""
        return await self._catalog.read(step)

    def reading(self, step: int) -> AbstractAsyncContextManager[Manifest]:
        """Lend the manifest of a step whose bytes are read in the block: no other process prunes them meanwhile."""
        return self._catalog.reading(step)

    async def verify(self, manifest: Manifest, on_bytes: Callable[[int], None]) -> None:
        """Read every byte of a checkpoint; raise DamagedCheckpointError at the first that is not as it was saved."""
        reader = Reader(self._storage, self._directory, manifest, on_bytes)
        for part in range(len(manifest.parts)):
            await reader.verify(part)

    async def verify_deeply(self, manifest: Manifest, on_bytes: Callable[[int], None]) -> Deep:
        """Read every byte as :meth:`verify` does, then every tensor, and count NaN and infinity."""
        await self.verify(manifest, on_bytes)
        reader = Reader(self._storage, self._directory, manifest)
        nonfinite: dict[str, int] = {}
        unread: list[str] = []
        for names in _groups(manifest, list(manifest.tensors)):
            memories = await read_blocks(manifest, reader, [_whole(manifest, name) for name in names])
            for name, memory in zip(names, memories, strict=True):
                count = await asyncio.to_thread(count_nonfinite, manifest.tensors[name].dtype, memory)
                if count is None:
                    unread.append(name)
                elif count:
                    nonfinite[name] = count
        return Deep(len(manifest.tensors), nonfinite, unread)

    async def restore(self, manifest: Manifest, on_bytes: Callable[[int], None]) -> Any:
        """Return the whole state, every byte of it checked."""
        data, _ = await restore(manifest, Reader(self._storage, self._directory, manifest, on_bytes))
        return data

    async def export(
        self,
        manifest: Manifest,
        target: Path,
        on_bytes: Callable[[int], None],
        names: Mapping[str, str] | None = None,
    ) -> None:
        """Write one safetensors file with every tensor whole, or the bytes as they were; all of it or nothing.

        ``names`` selects tensors and says what they are called in the file.
        """
        # Beside the target, so that giving it its name is one step.
        partial = target.with_name(f".{target.name}.{uuid.uuid4().hex[:8]}")
        try:
            with partial.open("xb") as file:
                async for data in self._export(manifest, on_bytes, names):
                    await asyncio.to_thread(file.write, data)
                await asyncio.to_thread(os.fsync, file.fileno())
            partial.replace(target)
        finally:
            partial.unlink(missing_ok=True)

    async def _export(
        self, manifest: Manifest, on_bytes: Callable[[int], None], names: Mapping[str, str] | None
    ) -> AsyncIterator[bytes | memoryview]:
        reader = Reader(self._storage, self._directory, manifest)
        called = names if names is not None else {name: name for name in list_state_tensors(manifest)}
        original = {target: name for name, target in called.items()}
        if manifest.is_opaque:
            data, _ = await restore(manifest, reader)
            on_bytes(len(data))
            yield data
            return
        leaves = {
            called[name]: Leaf(Tensor("numpy", each.dtype, each.shape, None), each.shape, (0,) * len(each.shape))
            for name, each in manifest.tensors.items()
            if name in called
        }
        plan = layout.plan_part(leaves)
        yield plan.head
        for group in _groups(manifest, [original[place.name] for place in plan.places]):
            for memory in await read_blocks(manifest, reader, [_whole(manifest, name) for name in group]):
                yield memory
                on_bytes(len(memory))

    async def diff(self, left: Manifest, right: Manifest, on_bytes: Callable[[int], None]) -> list[Difference]:
        """Say what differs from ``left`` to ``right``: tensors by their values, and plain values."""
        found = list(_diff_plain(left, right))
        comparable = []
        for name in dict.fromkeys([*list_state_tensors(left), *list_state_tensors(right)]):
            a, b = left.tensors.get(name), right.tensors.get(name)
            if a is None or b is None:
                found.append(Difference(name, "added" if a is None else "removed", "tensor"))
            elif a.dtype != b.dtype:
                found.append(Difference(name, "type", f"{a.dtype} -> {b.dtype}"))
            elif a.shape != b.shape:
                found.append(Difference(name, "shape", f"{list(a.shape)} -> {list(b.shape)}"))
            else:
                comparable.append(name)
        comparable.sort(key=lambda name: [(s.part, s.offset) for s in left.tensors[name].slices])
        readers = [Reader(self._storage, self._directory, each) for each in (left, right)]
        for names in _groups(left, comparable):
            wanted = [_whole(left, name) for name in names]
            ours = await read_blocks(left, readers[0], wanted)
            theirs = await read_blocks(right, readers[1], wanted)
            for name, a_bytes, b_bytes in zip(names, ours, theirs, strict=True):
                change = await asyncio.to_thread(compare_values, name, left.tensors[name].dtype, a_bytes, b_bytes)
                found += [change] if change is not None else []
                on_bytes(len(a_bytes))
        if left.is_opaque and right.is_opaque and left.parts[0].digest != right.parts[0].digest:
            found.append(Difference("model.bin", "values", f"{left.size_bytes} -> {right.size_bytes} bytes"))
        if not found and without_random_state(left.structure) != without_random_state(right.structure):
            found.append(Difference("(state)", "type", "kinds of containers, keys or tensors, or empty containers"))
        return sorted(found, key=lambda each: each.name)


def _whole(manifest: Manifest, name: str) -> Wanted:
    shape = manifest.tensors[name].shape
    return Wanted(name, (0,) * len(shape), shape)


def _groups(manifest: Manifest, names: Sequence[str]) -> Iterator[list[str]]:
    group: list[str] = []
    size = 0
    for name in names:
        tensor = manifest.tensors[name]
        group.append(name)
        size += math.prod(tensor.shape) * DTYPES[tensor.dtype].itemsize
        if size >= GROUP_BYTES:
            yield group
            group, size = [], 0
    if group:
        yield group


def _diff_plain(left: Manifest, right: Manifest) -> Iterator[Difference]:
    if left.is_opaque or right.is_opaque:
        if left.is_opaque != right.is_opaque:
            yield Difference("(state)", "type", "bytes and a tree")
        return
    a, b = _plain_of(left), _plain_of(right)
    for name in {**a, **b}:
        if name not in a or name not in b:
            yield Difference(name, "added" if name not in a else "removed", "plain value")
        elif repr(a[name]) != repr(b[name]):
            yield Difference(name, "values", f"{a[name]!r:.40} -> {b[name]!r:.40}")


def _plain_of(manifest: Manifest) -> dict[str, Any]:
    return {
        show_path(path): node
        for path, node in walk(manifest.structure)
        if not (isinstance(node, dict) and "tensor" in node)
    }
