"""Blocks: which rectangle of a sharded tensor a rank holds, and which rank writes what several hold. Pure.

Every rank computes the same answer from the layout alone, so nothing is asked of other ranks.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from itertools import pairwise, product

# Consecutive indices of one dimension: the first one, and how many.
Run = tuple[int, int]
# How one dimension of a mesh cuts a tensor: its dimension and the split factor, which is 1 unless an inner dimension of
# the mesh cut it first (FSDP over tensor parallel). None: every rank along this dimension holds the same.
Cut = tuple[int, int] | None

# A smaller block is never cut between those who hold it: it would cost more than it saves.
CUT_BYTES = 64 << 10
# A block is cut if it is larger than this part of what one rank has to write.
CUT_SHARE = 4


@dataclass(frozen=True, slots=True)
class Block:
    """A rectangle of a whole tensor, and who holds it, as numbers within the mesh."""

    start: tuple[int, ...]
    shape: tuple[int, ...]
    holders: tuple[int, ...] = ()


@dataclass(frozen=True, slots=True)
class Held:
    """The layout of one tensor that is held more than once: what all ranks of ``mesh`` see alike.

    With ``first_writes``, blocks that are not worth cutting are all written by their first holder: they then are of one
    rank, should ranks not hold the same.
    """

    mesh: tuple[int, ...]
    itemsize: int
    blocks: tuple[Block, ...]
    first_writes: bool = False


@dataclass(frozen=True, slots=True)
class Share:
    """Rows of a block, from ``row`` on, and the one who writes them. A block without dimensions counts as one row."""

    row: int
    rows: int
    writer: int


@lru_cache(maxsize=65536)
def find_blocks(
    shape: tuple[int, ...], mesh: tuple[int, ...], cuts: tuple[Cut, ...], coordinate: tuple[int, ...]
) -> tuple[Block, ...]:
    """The blocks that the rank at ``coordinate`` of a mesh holds, in the order of its local tensor; empty ones not."""
    dimensions: list[list[Run]] = [[(0, size)] for size in shape]
    for count, cut, index in zip(mesh, cuts, coordinate, strict=True):
        if cut is not None:
            dimension, factor = cut
            dimensions[dimension] = _take_chunk(dimensions[dimension], count, index, factor)
    blocks = (
        Block(tuple(start for start, _ in runs), tuple(length for _, length in runs)) for runs in product(*dimensions)
    )
    return tuple(block for block in blocks if 0 not in block.shape)


def find_all_blocks(shape: tuple[int, ...], mesh: tuple[int, ...], cuts: tuple[Cut, ...]) -> tuple[Block, ...]:
    """Every block of the whole tensor with its holders, numbered along the mesh in C order."""
    cut_axes = [range(count) if cut is not None else range(1) for count, cut in zip(mesh, cuts, strict=True)]
    free_axes = [range(1) if cut is not None else range(count) for count, cut in zip(mesh, cuts, strict=True)]
    steps = [math.prod(mesh[axis + 1 :]) for axis in range(len(mesh))]
    found = []
    for coordinate in product(*cut_axes):
        base = sum(index * step for index, step in zip(coordinate, steps, strict=True))
        holders = tuple(
            base + sum(index * step for index, step in zip(free, steps, strict=True)) for free in product(*free_axes)
        )
        found += [Block(block.start, block.shape, holders) for block in find_blocks(shape, mesh, cuts, coordinate)]
    return tuple(found)


@dataclass(frozen=True, slots=True)
class Mesh:
    """How a tensor lies on a mesh: its ranks in C order, its shape, and how each of its dimensions cuts the tensor."""

    ranks: tuple[int, ...]
    shape: tuple[int, ...]
    cuts: tuple[Cut, ...]


def find_repeated_blocks(shape: tuple[int, ...], mesh: Mesh, world_size: int) -> tuple[Block, ...] | None:
    """Every block with all its holders if the mesh is one of several alike that all ranks together make up.

    None if ranks 0 to ``world_size`` cannot be such meshes: this one is not regular, or does not divide them.
    """
    steps = [math.prod(mesh.shape[axis + 1 :]) for axis in range(len(mesh.shape))]
    strides = [
        mesh.ranks[step] - mesh.ranks[0] if size > 1 else 1 for step, size in zip(steps, mesh.shape, strict=True)
    ]
    if min(strides, default=1) < 1:
        return None

    def locate(rank: int) -> tuple[int, ...]:
        return tuple(rank // stride % size for stride, size in zip(strides, mesh.shape, strict=True))

    places = list(product(*map(range, mesh.shape)))
    everyone = Counter(map(locate, range(world_size)))
    is_regular = list(map(locate, mesh.ranks)) == places and len(everyone) == len(places)
    if not is_regular or len(set(everyone.values())) != 1:
        return None
    holders: dict[Block, list[int]] = {}
    for rank in range(world_size):
        for block in find_blocks(shape, mesh.shape, mesh.cuts, locate(rank)):
            holders.setdefault(block, []).append(rank)
    return tuple(Block(block.start, block.shape, tuple(found)) for block, found in holders.items())


def _take_chunk(runs: Sequence[Run], count: int, index: int, factor: int) -> list[Run]:
    """What chunk number ``index`` of ``count`` has of these runs, cut as ``torch.chunk`` does."""
    total = sum(length for _, length in runs)
    taken: list[Run] = []
    outer = -(-total // factor) if total else 0
    for number in range(factor):
        low, high = min(number * outer, total), min((number + 1) * outer, total)
        inner = -(-(high - low) // count)
        taken += _cut_runs(runs, min(low + index * inner, high), min(low + (index + 1) * inner, high))
    joined: list[Run] = []
    for start, length in taken:
        if joined and joined[-1][0] + joined[-1][1] == start:
            joined[-1] = (joined[-1][0], joined[-1][1] + length)
        else:
            joined.append((start, length))
    return joined or [(0, 0)]


def _cut_runs(runs: Sequence[Run], low: int, high: int) -> list[Run]:
    found, position = [], 0
    for start, length in runs:
        first, last = max(low, position), min(high, position + length)
        if first < last:
            found.append((start + first - position, last - first))
        position += length
    return found


@lru_cache(maxsize=16)
def choose_writers(tensors: tuple[Held, ...]) -> tuple[dict[tuple[int, ...], tuple[Share, ...]], ...]:
    """Say for every block, by its start, who writes which of its rows, so that all write about equally much.

    Largest first, each to who has least. What is large beside a rank's share is cut. Meshes are balanced each by
    itself: a rank of one need not know what is on another.
    """
    chosen: list[dict[tuple[int, ...], tuple[Share, ...]]] = [{} for _ in tensors]
    for mesh in dict.fromkeys(held.mesh for held in tensors):
        mine = [(number, held) for number, held in enumerate(tensors) if held.mesh == mesh]
        total = sum(_size(block, held) for _, held in mine for block in held.blocks)
        limit = max(CUT_BYTES, total // (len(mesh) * CUT_SHARE))
        pieces = []
        for number, held in mine:
            for block in held.blocks:
                rows = block.shape[0] if block.shape else 1
                count = max(1, min(len(block.holders), rows, -(-_size(block, held) // limit)))
                edges = [rows * each // count for each in range(count + 1)]
                row_bytes = _size(block, held) // rows
                for low, high in pairwise(edges):
                    pieces.append(((high - low) * row_bytes, number, block, low, high - low))
        loads = dict.fromkeys(range(len(mesh)), 0)
        fixed = {number for number, held in mine if held.first_writes}
        # What has no choice comes first, so that the others make up for it.
        pieces.sort(key=lambda piece: (piece[1] not in fixed or piece[0] >= CUT_BYTES, -piece[0]))
        for size, number, block, row, rows in pieces:
            writer = min(block.holders, key=lambda holder: (loads[holder], holder))
            if number in fixed and size < CUT_BYTES and rows == (block.shape[0] if block.shape else 1):
                writer = block.holders[0]
            loads[writer] += size
            shares = chosen[number].get(block.start, ())
            chosen[number][block.start] = (*shares, Share(row, rows, writer))
    return tuple(chosen)


def choose_backups(holders: Sequence[int], writer: int) -> tuple[int, ...]:
    """Return who keeps a copy of what one of the holders of a block writes: two of five or more, one of three or four.

    With two holders that differ, the right one is unknown.
    """
    count = 2 if len(holders) >= 5 else 1 if len(holders) >= 3 else 0
    position = holders.index(writer)
    return tuple(holders[(position + each) % len(holders)] for each in range(1, count + 1))


def _size(block: Block, held: Held) -> int:
    return math.prod(block.shape) * held.itemsize
