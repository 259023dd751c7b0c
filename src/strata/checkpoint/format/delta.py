"""Delta: which chunks of a part changed since its parent, and where every byte of it then is. Pure.

A delta part has the parent's size, chunk for chunk. Unchanged chunks stay where they are, and extents point
straight at the object that holds them: however many deltas follow each other, a restore reads one level deep.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from strata.checkpoint.format.digest import chunk_count, digest_chunks
from strata.checkpoint.format.manifest import Extent

if TYPE_CHECKING:
    from collections.abc import Sequence

    from strata.checkpoint.format.manifest import PartRecord

# So many chunks are looked at first. If all of them changed, the state is dense, and it is written in full
# without waiting for the other digests: trying costs next to nothing.
SAMPLES = 16
# Above this share of changed chunks a full part is the better one: it can be opened by itself and frees its parents.
DENSE = 0.8


@dataclass(frozen=True, slots=True)
class Changes:
    """Digests of all chunks, and the runs [first, last) of those that differ from the parent's."""

    digests: list[bytes]
    runs: list[tuple[int, int]]


def find_changes(view: memoryview, parent: PartRecord) -> Changes | None:
    """Compare with the parent; None if a full part is to be written."""
    count = chunk_count(len(view))
    if len(view) != parent.size_bytes or count == 0:
        return None
    samples = sorted({index * count // SAMPLES for index in range(SAMPLES)})
    if all(digest != parent.chunks[index] for index, digest in zip(samples, digest_chunks(view, samples), strict=True)):
        return None
    digests = digest_chunks(view)
    changed = [index for index in range(count) if digests[index] != parent.chunks[index]]
    if len(changed) > DENSE * count:
        return None
    return Changes(digests, _runs(changed))


def _runs(indices: Sequence[int]) -> list[tuple[int, int]]:
    runs: list[tuple[int, int]] = []
    for index in indices:
        if runs and runs[-1][1] == index:
            runs[-1] = (runs[-1][0], index + 1)
        else:
            runs.append((index, index + 1))
    return runs


def merge_extents(parent: Sequence[Extent], written: Sequence[tuple[int, Extent]]) -> tuple[Extent, ...]:
    """Lay newly written extents, each with its start in the part, over the parent's."""
    merged: list[Extent] = []
    position = 0
    for start, extent in written:
        merged.extend(cut_extents(parent, position, start))
        merged.append(extent)
        position = start + extent.length
    merged.extend(cut_extents(parent, position, sum(extent.length for extent in parent)))
    return tuple(_join(merged))


def cut_extents(extents: Sequence[Extent], start: int, end: int) -> list[Extent]:
    """The extents of the bytes from ``start`` to ``end`` of a part."""
    found: list[Extent] = []
    position = 0
    for extent in extents:
        low, high = max(start, position), min(end, position + extent.length)
        if low < high:
            found.append(Extent(extent.path, extent.offset + low - position, high - low))
        position += extent.length
        if position >= end:
            break
    return found


def _join(extents: Sequence[Extent]) -> list[Extent]:
    joined: list[Extent] = []
    for extent in extents:
        last = joined[-1] if joined else None
        if last is not None and last.path == extent.path and last.offset + last.length == extent.offset:
            joined[-1] = Extent(last.path, last.offset, last.length + extent.length)
        else:
            joined.append(extent)
    return joined
