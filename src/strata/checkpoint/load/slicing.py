"""Placement: which bytes of which part go where in memory, for any slicing of any tensor. Pure.

A block that lies in one piece on both sides is read straight into place. Any other is read as the one range that
spans it, in bounded pieces, and copied by its strides.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import product
from typing import TYPE_CHECKING, Any

import numpy as np

from strata.checkpoint.format.digest import CHUNK_BYTES
from strata.checkpoint.format.dtypes import DTYPES
from strata.checkpoint.format.layout import ALIGN_BYTES, VECTOR_BYTES
from strata.checkpoint.load.part_reader import Request
from strata.checkpoint.save.staging import allocate

if TYPE_CHECKING:
    from strata.checkpoint.format.manifest import Manifest, StoredSlice

# Tensors that lie side by side in a part are restored into one piece of memory, up to this size: one kept alive
# keeps at most so many bytes of its neighbours.
SPAN_BYTES = 256 << 20
# Smaller memory comes from the heap: whole pages of its own would be mostly empty.
PAGES_BYTES = 1 << 20
# The most that is read for one strided block before its values are copied to their place.
BLOCK_BYTES = 64 << 20


@dataclass(frozen=True, slots=True)
class Wanted:
    """A block of a stored tensor, and the memory for it if it is there already."""

    name: str
    start: tuple[int, ...]
    shape: tuple[int, ...]
    target: memoryview | None = None


@dataclass(frozen=True, slots=True)
class Strided:
    """A range that spans a block with holes in it; its values go ``into`` place after it was read."""

    part: int
    offset: int
    size_bytes: int
    into: np.ndarray[Any, Any]
    strides: tuple[int, ...]

    def begin(self) -> tuple[Request, np.ndarray[Any, Any]]:
        """Return what to read and, as an array of the block's shape, what to copy then."""
        scratch = bytearray(self.size_bytes)
        source: np.ndarray[Any, Any] = np.ndarray(
            self.into.shape, dtype=self.into.dtype, buffer=scratch, strides=self.strides
        )
        return Request(self.part, self.offset, memoryview(scratch)), source


@dataclass(frozen=True, slots=True)
class Placement:
    """What is read into place, what takes a copy, and for every wanted block the memory that will hold it."""

    requests: list[Request]
    strided: list[Strided]
    memories: list[memoryview]


class UncoveredError(Exception):
    """The slices of a tensor do not make up what is wanted of it; the argument is its name."""


def place(manifest: Manifest, wanted: Sequence[Wanted]) -> Placement:
    """Find memory for every wanted block, and the transfers that fill it."""
    memories = [each.target for each in wanted]
    transfers: list[Request | Strided] = []
    alone: list[tuple[int, int, int, int]] = []
    for index, each in enumerate(wanted):
        tensor = manifest.tensors[each.name]
        nbytes = math.prod(each.shape) * DTYPES[tensor.dtype].itemsize
        stored = tensor.slices[0] if len(tensor.slices) == 1 else None
        whole = stored is not None and (stored.start, stored.shape) == (each.start, each.shape)
        memory = memories[index]
        if nbytes == 0:
            memories[index] = memoryview(bytearray())
        elif stored is not None and whole and memory is None:
            alone.append((stored.part, stored.offset, nbytes, index))
        elif stored is not None and whole and memory is not None:
            transfers.append(Request(stored.part, stored.offset, memory))
        else:
            memory = memory if memory is not None else allocate_aligned(nbytes)
            memories[index] = memory
            transfers.extend(_place_blocks(manifest, each, memory))
    for request, pieces in _place_spans(alone):
        transfers.append(request)
        for index, start, end in pieces:
            memories[index] = request.target[start:end]
    return Placement(
        [each for each in transfers if isinstance(each, Request)],
        [each for each in transfers if isinstance(each, Strided)],
        [memory for memory in memories if memory is not None],
    )


def allocate_aligned(size_bytes: int) -> memoryview:
    """Return memory that is not filled, aligned as kernels want it."""
    if size_bytes >= PAGES_BYTES:
        return memoryview(allocate(size_bytes))[:size_bytes]
    memory = np.empty(size_bytes + VECTOR_BYTES, np.uint8)
    first = -memory.ctypes.data % VECTOR_BYTES
    return memory[first : first + size_bytes].data


def _place_spans(alone: list[tuple[int, int, int, int]]) -> Iterator[tuple[Request, list[tuple[int, int, int]]]]:
    """Group whole tensors that follow each other in a part, and give each group one piece of memory.

    In it they lie as in the part. What is not aligned there gets a place of its own, where it is.
    """
    alone.sort()
    group: list[tuple[int, int, int, int]] = []
    for each in alone:
        part, offset, nbytes, index = each
        if offset % VECTOR_BYTES:
            yield Request(part, offset, allocate_aligned(nbytes)), [(index, 0, nbytes)]
            continue
        if group:
            last_part, last_offset, last_bytes, _ = group[-1]
            follows = part == last_part and offset == last_offset + last_bytes
            if not follows or offset - group[0][1] >= SPAN_BYTES:
                yield _span(group)
                group = []
        group.append(each)
    if group:
        yield _span(group)


def _span(group: list[tuple[int, int, int, int]]) -> tuple[Request, list[tuple[int, int, int]]]:
    part, base = group[0][0], group[0][1]
    size = group[-1][1] + group[-1][2] - base
    # Memory is as far from a page's start as the bytes are in the file, so that direct reads need no copy.
    skew = base % ALIGN_BYTES
    view = memoryview(allocate(skew + size))[skew : skew + size] if size >= PAGES_BYTES else allocate_aligned(size)
    pieces = [(index, offset - base, offset - base + nbytes) for _, offset, nbytes, index in group]
    return Request(part, base, view), pieces


def _place_blocks(manifest: Manifest, wanted: Wanted, memory: memoryview) -> Iterator[Request | Strided]:
    tensor = manifest.tensors[wanted.name]
    element = np.dtype(f"V{DTYPES[tensor.dtype].itemsize}")
    target = np.frombuffer(memory, element).reshape(wanted.shape)
    covered = 0
    for stored in tensor.slices:
        low = tuple(map(max, stored.start, wanted.start))
        high = tuple(
            min(a + n, b + m) for a, n, b, m in zip(stored.start, stored.shape, wanted.start, wanted.shape, strict=True)
        )
        if any(first >= last for first, last in zip(low, high, strict=True)):
            continue
        covered += math.prod(last - first for first, last in zip(low, high, strict=True))
        for first, last in _cut_rows(stored, low, high, element.itemsize):
            yield _transfer(stored, first, last, wanted, target, memory)
    if covered != math.prod(wanted.shape):
        raise UncoveredError(wanted.name)


def _cut_rows(
    stored: StoredSlice, low: tuple[int, ...], high: tuple[int, ...], itemsize: int
) -> Iterator[tuple[tuple[int, ...], tuple[int, ...]]]:
    """Cut a block so that what spans each piece is bounded, and has no chunk in it that nobody wants.

    It has dimensions: a tensor without them is one element, and is read whole.
    """
    axis = 0
    while axis < len(low) and math.prod(stored.shape[axis + 1 :]) * itemsize >= CHUNK_BYTES:
        # Between two rows there may be whole chunks: these dimensions are taken row by row, unless rows are whole.
        if all(
            b - a == size
            for a, b, size in zip(low[axis + 1 :], high[axis + 1 :], stored.shape[axis + 1 :], strict=True)
        ):
            break
        axis += 1
    row_bytes = math.prod(stored.shape[axis + 1 :]) * itemsize
    rows = max(1, BLOCK_BYTES // max(1, row_bytes))
    for outer in product(*(range(low[each], high[each]) for each in range(axis))):
        after = tuple(each + 1 for each in outer)
        for row in range(low[axis], high[axis], rows):
            yield (*outer, row, *low[axis + 1 :]), (*after, min(row + rows, high[axis]), *high[axis + 1 :])


def _transfer(
    stored: StoredSlice,
    low: tuple[int, ...],
    high: tuple[int, ...],
    wanted: Wanted,
    target: np.ndarray[Any, Any],
    memory: memoryview,
) -> Request | Strided:
    itemsize = target.dtype.itemsize
    block = tuple(last - first for first, last in zip(low, high, strict=True))
    strides = _strides(stored.shape)
    first = sum((a - b) * step for a, b, step in zip(low, stored.start, strides, strict=True))
    span = sum((size - 1) * step for size, step in zip(block, strides, strict=True)) + 1
    offset = stored.offset + first * itemsize
    into = target[tuple(slice(a - b, a - b + n) for a, b, n in zip(low, wanted.start, block, strict=True))]
    if span == math.prod(block) and into.flags.c_contiguous:
        begin = sum((a - b) * s for a, b, s in zip(low, wanted.start, _strides(wanted.shape), strict=True)) * itemsize
        return Request(stored.part, offset, memory[begin : begin + span * itemsize])
    return Strided(stored.part, offset, span * itemsize, into, tuple(step * itemsize for step in strides))


def _strides(shape: Sequence[int]) -> tuple[int, ...]:
    """How many elements apart neighbours of each dimension are."""
    steps, step = [], 1
    for size in reversed(shape):
        steps.append(step)
        step *= size
    return tuple(reversed(steps))
