"""Buckets: what happened in a job within one interval of time, and tiers of them that grow coarser with age. Pure."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

from strata.cluster.values import PARTS

# Recent time is kept finely, older time coarsely: 20 minutes, 6 hours, 7 days. What is older is only in the totals.
WIDTHS_S = (2.0, 30.0, 600.0)
KEPT = (600, 720, 1_008)
# Waits are counted in bins that grow by a half, from a tenth of a millisecond to hours.
_FIRST_S, _GROWTH = 1e-4, 1.5
MAX_METRICS = 32
# So many of the newest buckets may still change: a report covers the time since the one before it, maybe a long step.
OPEN = 120


@dataclass(slots=True)
class Bucket:
    """One interval. ``parts`` and ``worker_s`` are sums over workers.

    ``covered_s`` is how long anyone reported for, and ``steps`` how many anyone did: all workers do the same ones.
    """

    start_s: float
    width_s: float
    covered_s: float = 0.0
    parts: list[float] = field(default_factory=lambda: [0.0] * len(PARTS))
    worker_s: float = 0.0
    steps: float = 0.0
    samples: float = 0.0
    step: int = 0
    commits: int = 0
    commit_bytes: int = 0
    commit_s: float = 0.0
    requests: int = 0
    waits: dict[int, int] = field(default_factory=dict)
    """How many barriers were waited at for how long, by bin."""
    metrics: dict[str, list[float]] = field(default_factory=dict)
    """By name the sum and the number of what was reported."""
    is_unsaved: bool = False
    """Whether it holds something that is not in the file."""
    is_settled: bool = False
    """Whether it is in the running total of its tiers."""

    def job_parts(self) -> list[float]:
        """Return the seconds of the job by part; they add up to ``covered_s``."""
        total_s = math.fsum(self.parts)
        if total_s <= 0:
            return [*([0.0] * (len(PARTS) - 1)), self.covered_s]
        return [self.covered_s * part / total_s for part in self.parts]

    def fold(self, other: Bucket) -> None:
        """Take over what another bucket holds, in seconds of the job, however many workers it had."""
        mine, others = self.job_parts(), other.job_parts()
        self.parts = [a + b for a, b in zip(mine, others, strict=True)]
        self.covered_s += other.covered_s
        self.worker_s += other.worker_s
        self.steps += other.steps
        self.samples += other.samples
        self.step = max(self.step, other.step)
        self.commits += other.commits
        self.commit_bytes += other.commit_bytes
        self.commit_s += other.commit_s
        self.requests += other.requests
        for place, count in other.waits.items():
            self.waits[place] = self.waits.get(place, 0) + count
        for name, (total, number) in other.metrics.items():
            self.note_metric(name, total, number)

    def note_metric(self, name: str, total: float, count: float = 1) -> None:
        """Note a number of the training loop; of very many names only the first are kept."""
        known = self.metrics.get(name)
        if known is not None:
            known[0] += total
            known[1] += count
        elif len(self.metrics) < MAX_METRICS:
            self.metrics[name] = [total, count]

    def note_wait(self, wait_s: float) -> None:
        """Note how long a barrier took."""
        place = bin_of(wait_s)
        self.waits[place] = self.waits.get(place, 0) + 1


def bin_of(wait_s: float) -> int:
    """Return the bin that a wait is counted in."""
    return 0 if wait_s <= _FIRST_S else min(64, 1 + math.floor(math.log(wait_s / _FIRST_S) / math.log(_GROWTH)))


def quantile(waits: dict[int, int], share: float) -> float | None:
    """Return a wait that ``share`` of all are not longer than, to within half of it; None without any."""
    total = sum(waits.values())
    seen = 0
    for place in sorted(waits):
        seen += waits[place]
        if seen >= share * total:
            return float(_FIRST_S * _GROWTH ** (place - 0.5))
    return None


class Tiers:
    """All buckets of a job. A bucket that is too old for its tier is folded into one of the next, and at last into the
    totals: so nothing is counted twice and nothing is lost, and their number is bounded.
    """

    def __init__(self, *, widths_s: Sequence[float] = WIDTHS_S, kept: Sequence[int] = KEPT) -> None:
        self.widths_s, self._kept = tuple(widths_s), tuple(kept)
        self.tiers: list[dict[int, Bucket]] = [{} for _ in self.widths_s]
        self.older = Bucket(0.0, 0.0)
        """What is too old for every tier, as one bucket."""
        self._settled: Bucket | None = None
        """What all settled buckets come to; None if one of them changed. To add up all of them takes milliseconds."""
        self._total: Bucket | None = None
        """The total, as long as nothing is noted."""

    def at(self, time_s: float) -> Bucket:
        """Return the finest bucket of a time, to add to it."""
        bucket = self._at(0, math.floor(time_s / self.widths_s[0]))
        bucket.is_unsaved = True
        self._total = None
        if bucket.is_settled or bucket.width_s != self.widths_s[0]:
            self._settled = None
        return bucket

    def put(self, tier: int, bucket: Bucket) -> None:
        """Put a bucket back that was kept in a file; one whose time in its tier is over is in a coarser one already."""
        buckets, place = self.tiers[tier], math.floor(bucket.start_s / self.widths_s[tier])
        if len(buckets) >= self._kept[tier] and place < min(buckets):
            return
        buckets[place] = bucket
        self._total = self._settled = None
        self._trim(tier)

    def __iter__(self) -> Iterator[Bucket]:
        """Yield all buckets, oldest first, each time in the finest form that is known."""
        yield from sorted((each for tier in self.tiers for each in tier.values()), key=lambda each: each.start_s)

    def since(self, time_s: float) -> list[Bucket]:
        """Return the buckets of which a part is after a time, in any order."""
        return [each for tier in self.tiers for each in tier.values() if each.start_s + each.width_s > time_s]

    def total(self) -> Bucket:
        """Return everything that was ever noted, as one bucket; only what is new is added up."""
        if self._total is None:
            self._total = self._add_up()
        return self._total

    def split(self, newest: int) -> tuple[Bucket, list[Bucket]]:
        """Return all but the newest buckets of the finest tier as one bucket, and those as they are."""
        places = sorted(self.tiers[0])
        fresh = [self.tiers[0][place] for place in places[max(0, len(places) - newest) :]]
        first_s = fresh[0].start_s if fresh else math.inf
        older = Bucket(0.0, 0.0)
        for bucket in (self.older, *self):
            if bucket.width_s != self.widths_s[0] or bucket.start_s < first_s:
                older.fold(bucket)
        return older, fresh

    def _add_up(self) -> Bucket:
        finest = self.tiers[0]
        if self._settled is None:
            self._settled = Bucket(0.0, 0.0)
            for bucket in (self.older, *self):
                bucket.is_settled = False
            for bucket in (self.older, *(each for tier in self.tiers[1:] for each in tier.values())):
                self._settle(bucket)
        # The newest by their time: one that comes late may be old.
        fresh = sorted(place for place, bucket in finest.items() if not bucket.is_settled)
        for place in fresh[:-OPEN]:
            self._settle(finest[place])
        total = Bucket(0.0, 0.0)
        total.fold(self._settled)
        for place in fresh[-OPEN:]:
            total.fold(finest[place])
        return total

    def _settle(self, bucket: Bucket) -> None:
        assert self._settled is not None
        self._settled.fold(bucket)
        bucket.is_settled = True

    def _at(self, tier: int, place: int) -> Bucket:
        buckets = self.tiers[tier]
        bucket = buckets.get(place)
        if bucket is None:
            width_s = self.widths_s[tier]
            if len(buckets) >= self._kept[tier] and place < min(buckets):
                # It comes late, and its place in this tier is over.
                is_last = tier + 1 == len(self.tiers)
                return (
                    self.older if is_last else self._at(tier + 1, math.floor(place * width_s / self.widths_s[tier + 1]))
                )
            bucket = buckets[place] = Bucket(place * width_s, width_s)
            self._trim(tier)
        return bucket

    def _trim(self, tier: int) -> None:
        buckets = self.tiers[tier]
        while len(buckets) > self._kept[tier]:
            oldest = buckets.pop(min(buckets))
            if tier + 1 == len(self.tiers):
                coarser, is_new = self.older, False
            else:
                place, known = math.floor(oldest.start_s / self.widths_s[tier + 1]), self.tiers[tier + 1]
                is_new = place not in known
                coarser = self._at(tier + 1, place)
                is_new = is_new and known.get(place) is coarser
            # What is in the running total stays in it, by whatever bucket.
            if is_new and oldest.is_settled:
                coarser.is_settled = True
            elif not (coarser.is_settled and oldest.is_settled):
                self._settled = None
            coarser.fold(oldest)


def resample(buckets: Sequence[Bucket], *, since_s: float, until_s: float, width_s: float) -> list[Bucket]:
    """Return buckets of one width from ``since_s`` on, each with what began in it; empty ones are there too."""
    count = max(1, math.ceil((until_s - since_s) / width_s))
    rows = [Bucket(since_s + number * width_s, width_s) for number in range(count)]
    for bucket in buckets:
        # By its middle, so that a coarse one is not put before the time that it is of.
        middle_s = bucket.start_s + bucket.width_s / 2
        if since_s <= middle_s < since_s + count * width_s:
            rows[int((middle_s - since_s) / width_s)].fold(bucket)
    return rows
