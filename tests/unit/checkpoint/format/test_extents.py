"""Where the bytes of a delta part are: extents are compared with a list that has one entry per byte."""

from __future__ import annotations

from itertools import pairwise
from typing import TYPE_CHECKING

import pytest
from hypothesis import given
from hypothesis import strategies as st

from strata.checkpoint.format.delta import cut_extents, find_changes, merge_extents
from strata.checkpoint.format.digest import CHUNK_BYTES, digest_chunks, digest_part
from strata.checkpoint.format.manifest import Extent, PartRecord

if TYPE_CHECKING:
    from collections.abc import Sequence

PARENT = [Extent("step_1/full", 0, 10), Extent("step_2/delta", 0, 4), Extent("step_1/full", 14, 6)]


def places(extents: Sequence[Extent]) -> list[tuple[str, int]]:
    """Return the object and the offset of every byte of a part."""
    return [(extent.path, extent.offset + index) for extent in extents for index in range(extent.length)]


@st.composite
def written_runs(draw: st.DrawFn) -> list[tuple[int, Extent]]:
    """Generate runs of a part of 20 bytes, some of them side by side, and written to one object in their order."""
    edges = sorted(draw(st.sets(st.integers(0, 20), max_size=8)))
    runs, offset = [], 0
    for start, end in pairwise(edges):
        if draw(st.booleans()):
            runs.append((start, Extent("step_3/delta", offset, end - start)))
            offset += end - start
    return runs


@given(written_runs())
def test_every_byte_is_where_it_was_written_last(runs: list[tuple[int, Extent]]) -> None:
    expected = places(PARENT)
    for start, extent in runs:
        expected[start : start + extent.length] = places([extent])
    assert places(merge_extents(PARENT, runs)) == expected


@given(written_runs())
def test_bytes_that_are_side_by_side_in_an_object_are_one_extent(runs: list[tuple[int, Extent]]) -> None:
    merged = merge_extents(PARENT, runs)
    assert all(extent.length for extent in merged)
    for left, right in pairwise(merged):
        assert (left.path, left.offset + left.length) != (right.path, right.offset)


def test_extents_of_two_objects_are_never_joined() -> None:
    after = [(4, Extent("step_3/delta", 4, 6))]
    assert merge_extents([Extent("step_1/full", 0, 10)], after) == (
        Extent("step_1/full", 0, 4),
        Extent("step_3/delta", 4, 6),
    )


@given(st.integers(0, 20), st.integers(0, 20))
def test_a_cut_has_the_bytes_from_its_start_to_its_end(start: int, end: int) -> None:
    found = cut_extents(PARENT, start, end)
    assert places(found) == places(PARENT)[start:end]
    assert all(extent.length for extent in found)


def record(data: bytes) -> PartRecord:
    """Return the record of a full part with these bytes."""
    chunks = tuple(digest_chunks(memoryview(data)))
    return PartRecord(len(data), digest_part(chunks), chunks, (Extent("step_1/full", 0, len(data)),))


def change(data: bytes, chunks: Sequence[int]) -> bytes:
    """Return the bytes with one of each of these chunks changed."""
    changed = bytearray(data)
    for index in chunks:
        changed[index * CHUNK_BYTES] ^= 1
    return bytes(changed)


CHUNKS = 10


@pytest.mark.parametrize(
    ("chunks", "runs"),
    [
        ([], []),
        ([0], [(0, 1)]),
        ([9], [(9, 10)]),
        ([1, 2, 3, 7], [(1, 4), (7, 8)]),
        (range(8), [(0, 8)]),
    ],
)
def test_changed_chunks_are_found_as_runs(chunks: Sequence[int], runs: list[tuple[int, int]]) -> None:
    before = bytes(CHUNKS * CHUNK_BYTES)
    after = change(before, chunks)
    changes = find_changes(memoryview(after), record(before))
    assert changes is not None
    assert changes.runs == runs
    assert changes.digests == digest_chunks(memoryview(after))


@pytest.mark.parametrize("chunks", [9, CHUNKS])
def test_a_part_of_which_nearly_all_changed_is_written_in_full(chunks: int) -> None:
    before = bytes(CHUNKS * CHUNK_BYTES)
    assert find_changes(memoryview(change(before, range(chunks))), record(before)) is None


@pytest.mark.parametrize("size_bytes", [0, 999, 1_001])
def test_a_part_of_another_size_is_written_in_full(size_bytes: int) -> None:
    assert find_changes(memoryview(bytes(size_bytes)), record(bytes(1_000))) is None


def test_a_part_without_bytes_is_written_in_full() -> None:
    assert find_changes(memoryview(b""), record(b"")) is None
