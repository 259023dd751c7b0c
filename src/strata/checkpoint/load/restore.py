"""Restoring: from a manifest to a state, every byte of it checked."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import numpy as np

from strata.checkpoint.format.random_state import RANDOM_STATE, without_random_state
from strata.checkpoint.load.fitting import DROPPED, Fitting, select
from strata.checkpoint.load.part_reader import Reader, Request
from strata.checkpoint.load.slicing import Strided, UncoveredError, Wanted, place
from strata.checkpoint.save.staging import allocate
from strata.errors import DamagedCheckpointError, StateMismatchError

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from strata.checkpoint.format.manifest import Manifest
    from strata.checkpoint.format.rewind_record import Rewind
    from strata.cluster.values import Divergence
    from strata.errors import CheckpointError

# Strided blocks are read and copied in batches, so that loading another slicing needs this much memory and no more.
BATCH_BYTES = 256 << 20


@dataclass(frozen=True, slots=True)
class Restored:
    """A state as it was saved, and what was said about it. ``skipped`` says which newer ones could not be.

    ``unused`` are the paths of what the checkpoint has and ``like`` did not ask for. ``rewinds`` are those of the job
    until now: they say which batches it passes over. ``diverged`` says which ranks held other values than most when it
    was saved, and whether it is suspect.
    """

    data: Any
    step: int
    epoch: int
    metadata: dict[str, Any]
    cursors: dict[str, Any]
    generation: int
    skipped: list[CheckpointError] = field(default_factory=list)
    job_id: str = ""
    unused: list[str] = field(default_factory=list)
    rewinds: tuple[Rewind, ...] = ()
    diverged: Divergence | None = None


async def restore(
    manifest: Manifest, reader: Reader, *, like: Any = None, only: Sequence[str] = ()
) -> tuple[Any, list[str]]:
    """Return the state, or what ``only`` selects of it, in the form of ``like``, and what ``like`` did not ask for."""
    if manifest.is_opaque:
        return await _restore_bytes(manifest, reader, like), []
    structure = manifest.structure
    if not isinstance(like, dict) or RANDOM_STATE not in like:
        structure = without_random_state(structure)
    if only:
        structure = select(structure, only)
        if structure is DROPPED:
            raise StateMismatchError(manifest.step, ", ".join(only), "nothing in the checkpoint matches")
    fitting = Fitting(manifest)
    build = fitting.take(structure) if like is None else fitting.fit(like, structure)
    fitting.part_shared()
    fitting.memories = await read_blocks(manifest, reader, fitting.wanted)
    data = build()
    fitting.check_shared()
    return data, [] if like is None else fitting.unused(structure)


async def read_blocks(manifest: Manifest, reader: Reader, wanted: Sequence[Wanted]) -> list[memoryview]:
    """Read blocks of tensors, checked; return the memory of each, its elements in order."""
    try:
        placement = await asyncio.to_thread(place, manifest, wanted)
    except UncoveredError as error:
        problem = "the stored slices do not make up the tensor"
        raise DamagedCheckpointError(manifest.step, problem, part="metadata.json", tensor=str(error)) from None
    await reader.fetch(placement.requests)
    for batch in _batches(placement.strided):
        begun = [(strided, *strided.begin()) for strided in batch]
        await reader.fetch([request for _, request, _ in begun])
        for strided, _, source in begun:
            np.copyto(strided.into, source)
    return placement.memories


def _batches(strided: Sequence[Strided]) -> Iterator[list[Strided]]:
    batch: list[Strided] = []
    size = 0
    for each in strided:
        batch.append(each)
        size += each.size_bytes
        if size >= BATCH_BYTES:
            yield batch
            batch, size = [], 0
    if batch:
        yield batch


async def _restore_bytes(manifest: Manifest, reader: Reader, like: Any) -> bytes:
    if like is not None and not isinstance(like, bytes | bytearray | memoryview):
        raise StateMismatchError(manifest.step, "", f"it holds bytes, and a {type(like).__name__} is expected")
    view = memoryview(allocate(manifest.size_bytes))[: manifest.size_bytes]
    await reader.fetch([Request(0, 0, view)] if manifest.parts else [])
    return view.tobytes()
