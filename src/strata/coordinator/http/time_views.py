"""From the history of a job to answers about time: goodput, series, and step times by rank. Pure."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from functools import partial

import numpy as np
from pydantic_core import to_json

from strata.cluster.values import PARTS
from strata.coordinator.http import answers as a
from strata.coordinator.http import series_answers as s
from strata.coordinator.http.job_views import describe_straggler
from strata.coordinator.http.known import Encoded, Known
from strata.coordinator.http.snapshot import JobCopy
from strata.coordinator.http.summaries import find_unreported, summarize
from strata.coordinator.telemetry.buckets import WIDTHS_S, Bucket, quantile, resample
from strata.coordinator.telemetry.reckoning import mtbf_s, reckon_job, reckon_recent

_RESTORE = PARTS.index("restore")


def make_goodput(known: Known, job_id: str | None) -> s.Goodput:
    """Say where the time of a job went."""
    job = known.job(job_id)
    return describe_goodput(known, job, summarize(known, job))


def describe_goodput(known: Known, job: JobCopy, summary: a.JobSummary) -> s.Goodput:
    """Say where the time of a job went, whose summary is made already."""
    history = known.history.find(job.key)
    unreported = find_unreported(history, job)
    reckoned = reckon_job(history).plus(unreported)
    return s.Goodput(
        job_id=job.job_id,
        began_s=history.began_s,
        until_s=None if history.until_s is None else history.until_s + math.fsum(unreported.values()),
        wall_s=reckoned.wall_s,
        goodput=reckoned.goodput,
        recent_goodput=reckon_recent(history).plus(unreported).goodput,
        parts=[
            s.LostTime(part=part, seconds=seconds, share=seconds / reckoned.wall_s if reckoned.wall_s > 0 else 0.0)
            for part, seconds in reckoned.parts.items()
        ],
        steps=history.kept_steps,
        repeated_steps=history.lost_steps,
        steps_at_risk=summary.steps_at_risk,
        failures=history.failures,
        mtbf_s=mtbf_s(history),
        restarts=[s.CauseCount(cause=cause, count=count) for cause, count in sorted(history.causes.items())],
        stragglers=[describe_straggler(each) for each in known.stragglers(job)],
        slowest=[s.SlowestRank(**each._asdict()) for each in history.ranks.slowest()],
    )


def make_series(
    known: Known, job_id: str | None, *, since_s: float | None, until_s: float | None, points: int
) -> s.Series:
    """Return the series of a job in at most ``points`` intervals."""
    job = known.job(job_id)
    history = known.history.find(job.key)
    buckets = list(history.tiers)
    if not buckets:
        rows: list[Bucket] = []
        width_s = WIDTHS_S[0]
    else:
        begin_s = max(buckets[0].start_s, since_s or 0.0)
        end_s = max(bucket.start_s + bucket.width_s for bucket in buckets)
        end_s = end_s if until_s is None else min(end_s, until_s)
        # Whole intervals of the finest kind, so that none stays empty between two others.
        width_s = WIDTHS_S[0] * max(1, math.ceil((end_s - begin_s) / points / WIDTHS_S[0]))
        begin_s = math.floor(begin_s / width_s) * width_s
        rows = (
            resample(buckets, since_s=begin_s, until_s=max(end_s, begin_s), width_s=width_s) if end_s > begin_s else []
        )
        rows = rows[-points:]
    requests = _requests(known, rows, width_s)
    names = sorted({name for row in rows for name in row.metrics})
    marks = [mark for mark in history.marks if rows and rows[0].start_s <= mark.at_s]
    return s.Series(
        job_id=job.job_id,
        resolution_s=width_s,
        at_s=[row.start_s + width_s / 2 for row in rows],
        step=[row.step or None for row in rows],
        steps_per_s=_column(rows, lambda row: row.steps / row.covered_s if row.covered_s else None),
        samples_per_s=_column(rows, lambda row: row.samples / row.covered_s if row.covered_s else None),
        step_s=_column(rows, _step_s),
        workers=_column(rows, lambda row: row.worker_s / row.covered_s if row.covered_s else None),
        parts=s.PartSeries(**{part: _column(rows, partial(_share_of_part, place)) for place, part in enumerate(PARTS)}),
        barrier_p50_s=_column(rows, lambda row: quantile(row.waits, 0.5)),
        barrier_p99_s=_column(rows, lambda row: quantile(row.waits, 0.99)),
        checkpoint_bytes_per_s=_column(
            rows, lambda row: row.commit_bytes / max(row.commit_s, 1e-3) if row.commits else None
        ),
        requests_per_s=requests,
        metrics={name: _column(rows, partial(_mean_of_metric, name)) for name in names},
        marks=[s.Mark(at_s=mark.at_s, kind=mark.kind, label=mark.label, step=mark.step) for mark in marks],
    )


def make_step_times(known: Known, job_id: str | None, *, offset: int, limit: int) -> Encoded:
    """Return own step times by rank; with many ranks a page of them, and the median and the slowest of all."""
    job = known.job(job_id)
    ranks = known.history.find(job.key).ranks
    times, table = ranks.table()
    shown = range(offset, min(offset + limit, len(table)))
    # Of columns of which nothing is known there is neither.
    has_some = np.isfinite(table).any(axis=0)
    median, slowest = np.full(len(times), np.nan), np.full(len(times), None)
    if has_some.any():
        median[has_some] = np.nanmedian(table[:, has_some], axis=0)
        slowest[has_some] = np.nanargmax(table[:, has_some], axis=0)
    # The fields of StepTimes, without checks: there may be a million numbers.
    fields = {
        "job_id": job.job_id,
        "resolution_s": ranks.column_s,
        "at_s": times,
        "ranks": list(shown),
        "worker_ids": [ranks.name(rank) for rank in shown],
        "total_ranks": len(table),
        "rows": table[offset : offset + limit].astype(np.float64).round(6).tolist(),
        "median_s": median.tolist(),
        "slowest": slowest.tolist(),
    }
    return Encoded(to_json(fields, inf_nan_mode="null"))


def _column(rows: Sequence[Bucket], take: Callable[[Bucket], float | None]) -> list[float | None]:
    values = (take(row) for row in rows)
    return [None if value is None or not math.isfinite(value) else round(value, 9) for value in values]


def _share_of_part(place: int, row: Bucket) -> float | None:
    return row.job_parts()[place] / row.covered_s if row.covered_s else None


def _mean_of_metric(name: str, row: Bucket) -> float | None:
    if name not in row.metrics:
        return None
    total, count = row.metrics[name]
    return total / count


def _step_s(row: Bucket) -> float | None:
    """Seconds a step, without time spent on restoring."""
    return (row.covered_s - row.job_parts()[_RESTORE]) / row.steps if row.steps > 0 else None


def _requests(known: Known, rows: Sequence[Bucket], width_s: float) -> list[float | None]:
    if not known.is_whole:
        return [None] * len(rows)
    if not rows:
        return []
    until_s = rows[-1].start_s + width_s
    same = resample(list(known.history.requests), since_s=rows[0].start_s, until_s=until_s, width_s=width_s)
    return [row.requests / width_s if row.requests else None for row in same[: len(rows)]]
