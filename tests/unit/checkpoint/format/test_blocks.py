"""Blocks of sharded tensors: they make up the tensor, and what several ranks hold is written once, by all alike."""

from __future__ import annotations

import math
from dataclasses import replace
from itertools import product

import numpy as np
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from strata.checkpoint.format.blocks import (
    CUT_BYTES,
    Block,
    Cut,
    Held,
    Mesh,
    Share,
    choose_writers,
    find_all_blocks,
    find_blocks,
    find_repeated_blocks,
)


@st.composite
def layouts(draw: st.DrawFn) -> tuple[tuple[int, ...], tuple[int, ...], tuple[Cut, ...]]:
    """A shape, a mesh, and how each dimension of the mesh cuts the tensor."""
    shape = tuple(draw(st.lists(st.integers(0, 9), min_size=1, max_size=3)))
    mesh = tuple(draw(st.lists(st.integers(1, 4), min_size=1, max_size=3)))
    cut = st.none() | st.tuples(st.integers(0, len(shape) - 1), st.integers(1, 3))
    return shape, mesh, tuple(draw(cut) for _ in mesh)


@given(layouts())
# The second cut takes pieces of both runs of the first one, and those of the second run are joined.
@example(((12,), (2, 1), ((0, 2), (0, 3))))
def test_the_blocks_of_all_ranks_cover_every_element_as_often_as_it_is_held(
    layout: tuple[tuple[int, ...], tuple[int, ...], tuple[Cut, ...]],
) -> None:
    shape, mesh, cuts = layout
    counts = np.zeros(shape, int)
    for coordinate in product(*map(range, mesh)):
        for block in find_blocks(shape, mesh, cuts, coordinate):
            counts[tuple(slice(low, low + size) for low, size in zip(block.start, block.shape, strict=True))] += 1
    replicas = math.prod(count for count, cut in zip(mesh, cuts, strict=True) if cut is None)
    assert (counts == replicas).all()
    every = find_all_blocks(shape, mesh, cuts)
    assert all(len(block.holders) == replicas for block in every)
    assert sum(math.prod(block.shape) for block in every) == math.prod(shape)
    for number, coordinate in enumerate(product(*map(range, mesh))):
        mine = {(block.start, block.shape) for block in every if number in block.holders}
        assert mine == {(block.start, block.shape) for block in find_blocks(shape, mesh, cuts, coordinate)}


def test_neighbouring_rows_that_one_rank_holds_are_one_block() -> None:
    """The second cut goes through both of the runs that the first one leaves to a rank, and takes all of them."""
    cuts = ((0, 2), (0, 3))
    assert find_blocks((12,), (2, 1), cuts, (0, 0)) == (Block((0,), (3,)), Block((6,), (3,)))
    assert find_blocks((12,), (2, 1), cuts, (1, 0)) == (Block((3,), (3,)), Block((9,), (3,)))


def test_five_rows_over_four_ranks_leave_the_last_one_empty() -> None:
    found = [find_blocks((5, 3), (4,), ((0, 1),), (rank,)) for rank in range(4)]
    assert found == [(Block((0, 0), (2, 3)),), (Block((2, 0), (2, 3)),), (Block((4, 0), (1, 3)),), ()]


@given(st.lists(st.tuples(st.integers(1, 300), st.integers(1, 3000)), min_size=1, max_size=12), st.integers(2, 8))
def test_replicated_tensors_are_written_once_and_equally_by_all(shapes: list[tuple[int, int]], ranks: int) -> None:
    holders = tuple(range(ranks))
    tensors = tuple(Held(holders, 4, (Block((0, 0), shape, holders),)) for shape in shapes)
    loads = [0] * ranks
    for shape, shares in zip(shapes, choose_writers(tensors), strict=True):
        rows = sorted((share.row, share.rows) for share in shares[0, 0])
        assert rows[0][0] == 0
        assert [low + count for low, count in rows] == [low for low, _ in rows[1:]] + [shape[0]]
        for share in shares[0, 0]:
            loads[share.writer] += share.rows * shape[1] * 4
    widest_row = max(width for _, width in shapes) * 4
    assert max(loads) - min(loads) <= max(CUT_BYTES, sum(loads) // (4 * ranks)) + widest_row


@given(layouts(), st.data())
def test_a_mesh_of_some_ranks_is_held_as_if_the_mesh_of_all_repeated_it(
    layout: tuple[tuple[int, ...], tuple[int, ...], tuple[Cut, ...]], data: st.DataObject
) -> None:
    shape, everyone, cuts = layout
    kept = sorted(data.draw(st.sets(st.sampled_from(range(len(everyone))))))
    ranks = np.arange(math.prod(everyone)).reshape(everyone)
    place = data.draw(st.tuples(*(st.integers(0, size - 1) for size in everyone)))
    mine = ranks[tuple(slice(None) if axis in kept else place[axis] for axis in range(len(everyone)))]
    mesh = Mesh(tuple(mine.flatten().tolist()), mine.shape, tuple(cuts[axis] for axis in kept))
    found = find_repeated_blocks(shape, mesh, ranks.size)
    whole = tuple(cut if axis in kept else None for axis, cut in enumerate(cuts))
    expected = {block.start: block for block in find_all_blocks(shape, everyone, whole)}
    assert found is not None
    assert {block.start: (block.shape, sorted(block.holders)) for block in found} == {
        start: (block.shape, sorted(block.holders)) for start, block in expected.items()
    }


@pytest.mark.parametrize("ranks", [(0, 1, 3, 4), (0, 3), (1, 0), (0, 1, 2, 3, 4), (4, 5, 6)])
def test_a_mesh_that_does_not_repeat_over_all_ranks_has_no_known_siblings(ranks: tuple[int, ...]) -> None:
    assert find_repeated_blocks((8, 8), Mesh(ranks, (len(ranks),), ((0, 1),)), 8) is None


@pytest.mark.parametrize("shape", [(), (1,), (300,)])
def test_small_tensors_are_written_whole_and_by_the_first_rank_where_it_must_write(shape: tuple[int, ...]) -> None:
    holders, start = (0, 1, 2), (0,) * len(shape)
    small = Held(holders, 4, (Block(start, shape, holders),))
    rows = shape[0] if shape else 1
    shared = [found[start] for found in choose_writers((small,) * 3)]
    assert shared == [(Share(0, rows, 0),), (Share(0, rows, 1),), (Share(0, rows, 2),)], "each by another one"
    first = replace(small, first_writes=True)
    assert [found[start] for found in choose_writers((first,) * 3)] == [(Share(0, rows, 0),)] * 3
