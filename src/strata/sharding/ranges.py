"""Sets of integers as sorted runs, so that a billion consumed samples cost a few numbers."""

from __future__ import annotations

import base64
import zlib
from collections.abc import Iterator, Sequence

import numpy as np

from strata.errors import DamagedRecordError
from strata.sharding.permutation import Ints

# Up to here a list of numbers is short enough, and can be read by people.
_MANY_RUNS = 256
# More is not a set that anyone wrote, but text that grows without end.
_MAX_RUNS_BYTES = 1 << 30


class RangeSet:
    """A set of non-negative integers: ascending runs [start, stop) that neither overlap nor touch. Immutable."""

    __slots__ = ("_starts", "_stops")

    def __init__(self, starts: Ints | Sequence[int] = (), stops: Ints | Sequence[int] = ()) -> None:
        """Make the union of the ranges [start, stop), given in any order; empty ones count for nothing."""
        begin, end = np.asarray(starts, dtype=np.int64), np.asarray(stops, dtype=np.int64)
        if len(begin) and int(begin.min()) < 0:
            raise ValueError(f"a range starts at {begin.min()}; use 0 or more")
        some = end > begin
        begin, end = begin[some], end[some]
        order = np.argsort(begin, kind="stable")
        begin, reach = begin[order], np.maximum.accumulate(end[order])
        # A run begins where no range before it reaches, not even by touching.
        first = np.ones(len(begin), dtype=np.bool_)
        first[1:] = begin[1:] > reach[:-1]
        self._starts = begin[first]
        self._stops = reach[np.append(first[1:], True)] if len(begin) else reach

    @property
    def starts(self) -> Ints:
        """Where the runs begin."""
        return self._starts

    @property
    def stops(self) -> Ints:
        """Where the runs end; the stop itself is not in the run."""
        return self._stops

    @property
    def count(self) -> int:
        """How many integers are in the set."""
        return int((self._stops - self._starts).sum())

    def union(self, other: RangeSet) -> RangeSet:
        """Return what is in either set."""
        return RangeSet(np.append(self._starts, other.starts), np.append(self._stops, other.stops))

    @classmethod
    def covered_twice(cls, starts: Ints, stops: Ints) -> RangeSet:
        """Return what more than one of the ranges [start, stop) covers."""
        edges = np.concatenate((starts, stops))
        order = np.argsort(edges, kind="stable")
        depth = np.cumsum(np.where(order < len(starts), 1, -1))
        # Between an edge and the next, the depth is the number of ranges that cover what lies between.
        deep = np.flatnonzero(depth[:-1] > 1)
        return cls(edges[order[deep]], edges[order[deep + 1]])

    def intersection(self, other: RangeSet) -> RangeSet:
        """Return what is in both sets."""
        return RangeSet.covered_twice(np.append(self._starts, other.starts), np.append(self._stops, other.stops))

    def complement(self, end: int) -> RangeSet:
        """Return what of [0, ``end``) is not in this set."""
        return RangeSet(np.append(0, np.minimum(self._stops, end)), np.append(np.minimum(self._starts, end), end))

    def within(self, start: int, stop: int) -> RangeSet:
        """Return what of [``start``, ``stop``) is in this set."""
        first = int(np.searchsorted(self._stops, start, side="right"))
        last = int(np.searchsorted(self._starts, stop, side="left"))
        return RangeSet(np.maximum(self._starts[first:last], start), np.minimum(self._stops[first:last], stop))

    def first(self, runs: int) -> RangeSet:
        """Return the first ``runs`` runs of the set."""
        return RangeSet(self._starts[:runs], self._stops[:runs])

    def to_runs(self) -> list[int] | str:
        """Return the set as alternating lengths of what is not in it and what is, from 0 on; many of them as text.

        Many runs come from many shards, whose lengths repeat: as compressed text they take a tenth of a list.
        """
        edges = np.empty(2 * len(self._starts), dtype=np.int64)
        edges[0::2], edges[1::2] = self._starts, self._stops
        runs = edges.copy()
        runs[1:] -= edges[:-1]
        if len(runs) > _MANY_RUNS:
            return base64.b64encode(zlib.compress(runs.astype("<i8").tobytes(), 9)).decode()
        listed: list[int] = runs.tolist()
        return listed

    @classmethod
    def from_runs(cls, runs: object) -> RangeSet:
        """Return the set that :meth:`to_runs` wrote, or raise DamagedRecordError."""
        found = _unpack(runs) if isinstance(runs, str) else runs
        if not isinstance(found, list) or len(found) % 2 or not all(type(run) is int for run in found):
            raise DamagedRecordError("range set", "it is not a list of pairs of whole numbers")
        if any(run < 1 for run in found[1:]) or any(run < 0 for run in found[:1]) or sum(found) >= 2**63:
            raise DamagedRecordError("range set", "its runs are not in ascending order")
        edges = np.cumsum(np.array(found, dtype=np.int64))
        return cls(edges[0::2], edges[1::2])

    def __iter__(self) -> Iterator[tuple[int, int]]:
        return zip(self._starts.tolist(), self._stops.tolist(), strict=True)

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, RangeSet):
            return NotImplemented
        return np.array_equal(self._starts, other.starts) and np.array_equal(self._stops, other.stops)

    def __hash__(self) -> int:
        return hash((self._starts.tobytes(), self._stops.tobytes()))

    def __repr__(self) -> str:
        shown = ", ".join(f"{start}-{stop}" for start, stop in list(self)[:4])
        more = f", and {len(self._starts) - 4} more runs" if len(self._starts) > 4 else ""
        return f"RangeSet({shown}{more})"


def _unpack(text: str) -> list[int]:
    stream = zlib.decompressobj()
    try:
        data = stream.decompress(base64.b64decode(text, validate=True), _MAX_RUNS_BYTES)
        runs: list[int] = np.frombuffer(data, "<i8").tolist()
    except (ValueError, zlib.error) as error:
        raise DamagedRecordError("range set", f"its text cannot be read ({error})") from error
    if not stream.eof:
        raise DamagedRecordError("range set", "its text is cut off")
    return runs
