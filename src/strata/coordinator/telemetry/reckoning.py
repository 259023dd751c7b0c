"""What the history of a job comes to: goodput, time lost by cause, time between failures, and who is slow. Pure."""

from __future__ import annotations

import math
from bisect import bisect_left
from collections.abc import Collection, Iterable, Mapping, Reversible, Sequence
from dataclasses import dataclass
from statistics import median

from strata.cluster.values import PARTS
from strata.coordinator.telemetry.job_history import JobHistory, RecentSteps, WorkerTrack

DOWN = "down"
RECENT_S = 600.0
# A rank straggles if it was so much slower than the others' median, for so many steps on end.
STRAGGLING_RATIO = 1.25
STRAGGLING_STEPS = 10
# Less than this a step is noise, whatever the ratio.
LEAST_EXCESS_S = 0.002


@dataclass(frozen=True, slots=True)
class Reckoning:
    """Where the wall time of a job went: seconds by part, which add up to ``wall_s``."""

    wall_s: float
    parts: Mapping[str, float]

    def plus(self, seconds: Mapping[str, float]) -> Reckoning:
        """Return it with time by part that no worker has reported yet."""
        parts = {part: each + seconds.get(part, 0.0) for part, each in self.parts.items()}
        return Reckoning(self.wall_s + math.fsum(seconds.values()), parts)

    @property
    def goodput(self) -> float | None:
        """The share of the wall time that became kept steps; None before there is any."""
        return self.parts["compute"] / self.wall_s if self.wall_s > 0 else None


@dataclass(frozen=True, slots=True)
class Straggler:
    """A rank that is slower than the others."""

    worker_id: str
    rank: int
    steps: int
    step_s: float
    median_s: float
    cause: str

    @property
    def ratio(self) -> float:
        """How many times as long as the others it takes."""
        return self.step_s / max(self.median_s, 1e-9)


def reckon(seconds: Sequence[float], *, wall_s: float) -> Reckoning:
    """Divide the wall time: what nobody reported is time without a worker. More than the wall cannot be covered."""
    covered_s = math.fsum(seconds)
    scale = min(1.0, wall_s / covered_s) if covered_s > 0 else 0.0
    parts = {name: scale * each for name, each in zip(PARTS, seconds, strict=True)}
    parts[DOWN] = max(0.0, wall_s - math.fsum(parts.values()))
    return Reckoning(wall_s, parts)


def reckon_job(history: JobHistory) -> Reckoning:
    """Reckon the whole life of a job."""
    wall_s = 0.0 if history.began_s is None or history.until_s is None else history.until_s - history.began_s
    return reckon(history.tiers.total().job_parts(), wall_s=wall_s)


def reckon_recent(history: JobHistory, *, recent_s: float = RECENT_S) -> Reckoning:
    """Reckon the last minutes of a job."""
    if history.began_s is None or history.until_s is None:
        return reckon([0.0] * len(PARTS), wall_s=0.0)
    since_s = max(history.began_s, history.until_s - recent_s)
    inside = history.tiers.since(since_s)
    seconds = [math.fsum(column) for column in zip(*(bucket.job_parts() for bucket in inside), strict=True)]
    begin_s = max(history.began_s, min((bucket.start_s for bucket in inside), default=since_s))
    return reckon(seconds or [0.0] * len(PARTS), wall_s=history.until_s - begin_s)


def mtbf_s(history: JobHistory) -> float | None:
    """Return the mean time between failures; None if there were none."""
    if history.began_s is None or history.until_s is None or not history.failures:
        return None
    return (history.until_s - history.began_s) / history.failures


def find_stragglers(
    tracks: Mapping[str, WorkerTrack],
    present: Iterable[str],
    *,
    ratio: float = STRAGGLING_RATIO,
    least_steps: int = STRAGGLING_STEPS,
) -> list[Straggler]:
    """Return who is slower than the others' median for long enough, the slowest first."""
    means: dict[str, RecentSteps] = {}
    for name in present:
        track = tracks.get(name)
        if track is not None and track.recent:
            if track.mean is None:
                track.mean = _mean(track.recent)
            means[name] = track.mean
    if len(means) < 2:
        return []
    owns_s = {name: mean.own_s for name, mean in means.items()}
    ordered = sorted(owns_s.values())
    # The median without one value lies between these, so that most are not slow without a closer look.
    least_s = _median_without(ordered, ordered[-1])
    found: list[Straggler] = []
    for name, own_s in owns_s.items():
        if own_s <= least_s * ratio:
            continue
        others_s = _median_without(ordered, own_s)
        limit_s = max(others_s * ratio, others_s + LEAST_EXCESS_S)
        if own_s <= limit_s:
            continue
        slow = _tail_above(tracks[name].recent, limit_s)
        steps = sum(each.steps for each in slow)
        if steps >= least_steps:
            mean = _mean(slow)
            others = [each for other, each in means.items() if other != name]
            cause = _largest_excess(mean, others)
            found.append(Straggler(name, tracks[name].account.rank, steps, mean.own_s, others_s, cause))
    return sorted(found, key=lambda each: each.step_s, reverse=True)


def _mean(rows: Collection[RecentSteps]) -> RecentSteps:
    """Return rows as one, in seconds a step."""
    steps = sum(row.steps for row in rows)
    data_s, compute_s, save_s = (sum(row[place] for row in rows) / steps for place in (3, 4, 5))
    last = max(rows, key=lambda row: row.at_s)
    return RecentSteps(last.at_s, last.step, 1, data_s, compute_s, save_s)


def _median_without(ordered: Sequence[float], value: float) -> float:
    """Return the median of sorted values without one of them, without sorting again for each worker."""
    place, rest = bisect_left(ordered, value), len(ordered) - 1

    def pick(at: int) -> float:
        return ordered[at if at < place else at + 1]

    return (pick((rest - 1) // 2) + pick(rest // 2)) / 2


def _tail_above(rows: Reversible[RecentSteps], limit_s: float) -> list[RecentSteps]:
    """Return the last rows that are all above a limit."""
    tail: list[RecentSteps] = []
    for row in reversed(rows):
        if row.own_s <= limit_s:
            break
        tail.append(row)
    return tail[::-1]


def _largest_excess(mean: RecentSteps, others: Sequence[RecentSteps]) -> str:
    """Say where the difference is: in the part that exceeds the others' median most."""
    excess = {
        "data": mean.data_s - median(each.data_s for each in others),
        "compute": mean.compute_s - median(each.compute_s for each in others),
        "save": mean.save_s - median(each.save_s for each in others),
    }
    return max(excess, key=excess.__getitem__)
