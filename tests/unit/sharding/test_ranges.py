"""A set of ranges is the set of its integers, whatever is done to it."""

from __future__ import annotations

import itertools
import json
from collections import Counter

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from strata.errors import DamagedRecordError
from strata.sharding import RangeSet

PAIRS = st.lists(st.tuples(st.integers(0, 60), st.integers(0, 60)), max_size=12)


def build(pairs: list[tuple[int, int]]) -> tuple[RangeSet, set[int]]:
    ranges = RangeSet([start for start, _ in pairs], [stop for _, stop in pairs])
    return ranges, {number for start, stop in pairs for number in range(start, stop)}


def members(ranges: RangeSet) -> set[int]:
    return {number for start, stop in ranges for number in range(start, stop)}


@given(PAIRS)
def test_runs_are_sorted_and_neither_overlap_nor_touch(pairs: list[tuple[int, int]]) -> None:
    ranges, expected = build(pairs)
    assert members(ranges) == expected
    assert ranges.count == len(expected)
    edges = [edge for run in ranges for edge in run]
    assert all(first < second for first, second in itertools.pairwise(edges))


@given(PAIRS, PAIRS)
def test_union_is_the_union(first: list[tuple[int, int]], second: list[tuple[int, int]]) -> None:
    (left, left_twin), (right, right_twin) = build(first), build(second)
    assert members(left.union(right)) == left_twin | right_twin
    assert members(left.intersection(right)) == left_twin & right_twin
    assert left.union(right) == right.union(left)
    assert hash(left.union(right)) == hash(right.union(left))


@given(PAIRS)
def test_what_is_covered_twice_is_found(pairs: list[tuple[int, int]]) -> None:
    real = [(start, stop) for start, stop in pairs if start < stop]
    times = Counter(number for start, stop in real for number in range(start, stop))
    twice = RangeSet.covered_twice(np.array([a for a, _ in real], np.int64), np.array([b for _, b in real], np.int64))
    assert members(twice) == {number for number, count in times.items() if count > 1}


@given(PAIRS, st.integers(0, 70))
def test_complement_is_what_is_not_there(pairs: list[tuple[int, int]], end: int) -> None:
    ranges, expected = build(pairs)
    assert members(ranges.complement(end)) == set(range(end)) - expected


@given(PAIRS, st.integers(0, 70), st.integers(0, 70))
def test_within_is_the_part_that_lies_there(pairs: list[tuple[int, int]], start: int, stop: int) -> None:
    ranges, expected = build(pairs)
    assert members(ranges.within(start, stop)) == expected & set(range(start, stop))


@given(PAIRS)
def test_runs_bring_back_an_equal_set_through_json(pairs: list[tuple[int, int]]) -> None:
    ranges, _ = build(pairs)
    assert RangeSet.from_runs(json.loads(json.dumps(ranges.to_runs()))) == ranges


def test_a_billion_samples_in_sequence_are_two_numbers() -> None:
    assert RangeSet([0], [10**9]).to_runs() == [0, 10**9]


@given(st.lists(st.integers(1, 2**40), min_size=300, max_size=400).filter(lambda runs: len(runs) % 2 == 0))
def test_many_runs_are_text_that_brings_back_an_equal_set(lengths: list[int]) -> None:
    ranges = RangeSet.from_runs(lengths)
    written = json.loads(json.dumps(ranges.to_runs()))
    assert isinstance(written, str)
    assert RangeSet.from_runs(written) == ranges


def test_text_of_runs_that_was_damaged_is_refused() -> None:
    text = RangeSet(range(0, 1_000, 2), range(1, 1_001, 2)).to_runs()
    assert isinstance(text, str)
    for damaged in (text[:-8], "AAAA" + text[4:], text[:8] + "*" + text[9:], ""):
        with pytest.raises(DamagedRecordError, match="this is not a valid range set"):
            RangeSet.from_runs(damaged)


@pytest.mark.parametrize(
    "runs", [None, {}, "1,2", [1], [0, 0], [0, 5, 0, 5], [0, -5], [-1, 5], [0, 1.5], [True, 1], [0, 2**63], ["0", "1"]]
)
def test_what_is_not_a_list_of_runs_is_refused(runs: object) -> None:
    with pytest.raises(DamagedRecordError, match="this is not a valid range set"):
        RangeSet.from_runs(runs)


def test_a_set_of_ranges_equals_no_value_of_another_type() -> None:
    assert RangeSet([0], [5]) != [(0, 5)]


def test_negative_integers_are_refused_and_a_long_set_is_shown_short() -> None:
    with pytest.raises(ValueError, match="a range starts at -1"):
        RangeSet([-1], [5])
    many = RangeSet(range(0, 100, 10), range(5, 105, 10))
    assert repr(many) == "RangeSet(0-5, 10-15, 20-25, 30-35, and 6 more runs)"
