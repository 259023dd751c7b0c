"""What the model has seen of one epoch, as ranges of positions: as large as its number of reports, not of samples."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np

from strata.sharding import EpochOrder, GlobalCursor, RangeSet, StickyCursor
from strata.sharding.cursor import check_spans, span_ranges

Span = tuple[int, int, int]
Reports = list[tuple[int, tuple[Span, ...]]]
# An audit names so many samples of each kind; in a shuffled epoch, which ones these are is reckoned one by one.
MAX_NAMED_SAMPLES = 1 << 16


@dataclass(frozen=True)
class FoundSamples:
    """Samples that an audit found: how many there are, and the first :data:`MAX_NAMED_SAMPLES` of the epoch by name."""

    count: int
    named: RangeSet

    def __iter__(self) -> Iterator[tuple[int, int]]:
        return iter(self.named)

    @classmethod
    def at(cls, order: EpochOrder, positions: RangeSet) -> FoundSamples:
        """Return the samples at these positions."""
        if not order.shuffle:
            return cls(positions.count, positions)
        # The runs that the first positions to be named are in, and not one more.
        ends = np.cumsum(positions.stops - positions.starts)
        runs = int(np.searchsorted(ends, MAX_NAMED_SAMPLES)) + 1
        some = [np.arange(start, min(stop, start + MAX_NAMED_SAMPLES)) for start, stop in positions.first(runs)]
        named = order.samples_at(np.concatenate(some)[:MAX_NAMED_SAMPLES]) if some else np.empty(0, dtype=np.int64)
        return cls(positions.count, RangeSet(named, named + 1))


@dataclass(frozen=True)
class Audit:
    """What the model has seen of an epoch: all of it once, or how much and where it has not."""

    total_samples: int
    missing: FoundSamples
    repeated: FoundSamples
    skipped: FoundSamples
    """What of the dataset could not be read, and is left out on purpose; it is neither missing nor repeated."""
    passed_over: FoundSamples
    """What the model has not seen because a rewind skips it; it is not missing."""

    @property
    def is_exactly_once(self) -> bool:
        """Whether every sample that could be read was seen, and none twice."""
        return self.missing.count == self.repeated.count == 0


@dataclass(frozen=True, eq=False)
class EpochView:
    """An epoch as it was at one moment, to be looked at in another thread."""

    order: EpochOrder
    base: RangeSet
    repeats: RangeSet
    later: Reports
    reports: int
    """How many of ``later`` count; a list of reports only ever grows at its end, or is replaced."""
    passed_over: RangeSet
    """What of all this the model has not seen, because a rewind skips it."""

    def is_same(self, other: EpochView) -> bool:
        """Whether nothing has happened between the two moments."""
        if self.order != other.order or self.reports != other.reports:
            return False
        return (self.later is other.later or not self.reports) and (self.base is other.base or self.base == other.base)

    def total(self, up_to_step: int | None = None) -> tuple[RangeSet, RangeSet]:
        """Return what was seen until a step, or until now, and what of it more than once since the base."""
        reports = self.later[: self.reports]
        kept = [spans for step, spans in reports if up_to_step is None or step <= up_to_step]
        rows = np.array([span for spans in kept for span in spans], dtype=np.int64).reshape(-1, 3)
        starts, stops = span_ranges(self.order, rows)
        starts, stops = np.append(self.base.starts, starts), np.append(self.base.stops, stops)
        return RangeSet(starts, stops), RangeSet.covered_twice(starts, stops)

    def audit(self, skipped: RangeSet) -> Audit:
        """Say how many samples the model has not seen and how many more than once, and name the first of them."""
        consumed, repeated = self.total()
        missing = consumed.complement(self.order.total_samples)
        return Audit(
            self.order.total_samples,
            FoundSamples.at(self.order, missing),
            FoundSamples.at(self.order, self.repeats.union(repeated)),
            FoundSamples(skipped.count, skipped),
            FoundSamples.at(self.order, self.passed_over.intersection(consumed)),
        )


class EpochLedger:
    """The consumed positions of one epoch: what a checkpoint holds, and what came after it, step by step.

    Reports are only kept when they come, and put together when someone asks: reports come by the thousand in a second,
    and questions with a checkpoint or a change of workers.
    """

    def __init__(self, order: EpochOrder) -> None:
        self.order = order
        self._base = RangeSet()
        self._repeated = RangeSet()
        self._later: Reports = []
        self._passed_over = RangeSet()

    def view(self) -> EpochView:
        """Return the epoch as it is now."""
        return EpochView(self.order, self._base, self._repeated, self._later, len(self._later), self._passed_over)

    def add(self, step: int, spans: tuple[Span, ...], *, is_passed_over: bool = False) -> None:
        """Note that the model has seen these samples in ``step``; seeing one again is noted too, not hidden.

        Those that are passed over on purpose are behind the job as well.
        """
        check_spans(self.order, spans)
        self._later.append((step, spans))
        if is_passed_over:
            starts, stops = span_ranges(self.order, np.array(spans, dtype=np.int64).reshape(-1, 3))
            self._passed_over = self._passed_over.union(RangeSet(starts, stops))

    def settle(self, step: int) -> None:
        """Fold what a committed checkpoint of ``step`` holds into one set; cuts before it are not asked for again."""
        self._base, repeated = self.view().total(step)
        self._repeated = self._repeated.union(repeated)
        self._later = [(at_step, spans) for at_step, spans in self._later if at_step > step]

    def cursor(self, step: int) -> GlobalCursor | StickyCursor:
        """Return the data position of exactly ``step``."""
        consumed, _ = self.view().total(step)
        if self.order.window_shards > 1 and consumed == RangeSet([0], [consumed.count]):
            return GlobalCursor(self.order.epoch, consumed.count)
        return StickyCursor(self.order.epoch, consumed)

    def passed_over(self, consumed: RangeSet) -> RangeSet:
        """Return what of these positions the model has not seen because a rewind skips it."""
        return self._passed_over.intersection(consumed)

    def roll_back(self, consumed: RangeSet, passed_over: RangeSet) -> None:
        """Forget everything but what a restored checkpoint has seen, and passed over."""
        self._base, self._repeated, self._later, self._passed_over = consumed, RangeSet(), [], passed_over

    def record(self) -> dict[str, Any]:
        """Return what must survive a restart of the coordinator."""
        return {
            "base": self._base.to_runs(),
            "repeated": self._repeated.to_runs(),
            "later": list(self._later),
            "passed_over": self._passed_over.to_runs(),
        }

    def restore(self, record: dict[str, Any]) -> None:
        """Take over what :meth:`record` returned."""
        self._base, self._repeated = RangeSet.from_runs(record["base"]), RangeSet.from_runs(record["repeated"])
        self._passed_over = RangeSet.from_runs(record.get("passed_over", []))
        self._later = [(step, tuple((a, b, c) for a, b, c in spans)) for step, spans in record["later"]]
