"""Metrics in Prometheus' text format. No label has a value for each worker, so a thousand workers add no series."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import takewhile

from prometheus_client import CollectorRegistry
from prometheus_client.core import (
    CounterMetricFamily,
    GaugeMetricFamily,
    HistogramMetricFamily,
    InfoMetricFamily,
    Metric,
)
from prometheus_client.exposition import CONTENT_TYPE_LATEST as CONTENT_TYPE
from prometheus_client.exposition import generate_latest
from prometheus_client.registry import Collector

from strata.cluster.commands import WorkerState
from strata.cluster.lifecycle.job_state import JobState
from strata.cluster.values import PARTS, snake_case
from strata.coordinator.http.known import Known
from strata.coordinator.http.snapshot import JobCopy
from strata.coordinator.http.summaries import summarize
from strata.coordinator.telemetry.feed import LATENCY_BOUNDS_S, Feed
from strata.coordinator.telemetry.observations import Histogram
from strata.coordinator.telemetry.reckoning import DOWN, reckon_job

# Of so many jobs are there series; the ones with most workers.
MAX_JOBS = 100

__all__ = ["CONTENT_TYPE", "render_metrics"]


def render_metrics(known: Known, feed: Feed, *, failed_attempts: int = 0) -> bytes:
    """Return all metrics as text."""
    registry = CollectorRegistry(auto_describe=False)
    registry.register(_Metrics(known, feed, failed_attempts))
    return generate_latest(registry)


class _Metrics(Collector):
    """What is known at one moment, as metrics."""

    def __init__(self, known: Known, feed: Feed, failed_attempts: int) -> None:
        self._failed_attempts = failed_attempts
        self._known = known
        self._feed = feed

    def collect(self) -> Iterator[Metric]:
        yield from self._coordinator()
        if self._known.is_whole:
            yield from self._requests()
            yield from self._observed()
        jobs = sorted(self._known.snapshot.jobs.values(), key=lambda job: (-len(job.present), job.job_id))[:MAX_JOBS]
        yield from self._workers(jobs)
        yield from self._jobs(jobs)
        yield from self._time(jobs)

    def _coordinator(self) -> Iterator[Metric]:
        snapshot = self._known.snapshot
        info = InfoMetricFamily("strata_build", "The version of the coordinator.")
        info.add_metric([], {"version": self._known.facts.version})
        yield info
        yield GaugeMetricFamily(
            "strata_coordinator_start_time_seconds",
            "When the coordinator started, in seconds since 1970.",
            self._known.facts.started_s,
        )
        leadership = self._known.leadership
        is_leader = leadership.is_leader
        yield GaugeMetricFamily(
            "strata_coordinator_is_leader", "Whether this coordinator leads; one without replicas does.", is_leader
        )
        yield GaugeMetricFamily(
            "strata_coordinator_term", "The last election that this replica knows of.", leadership.leader.term
        )
        # One of several tenants would count what the others do; a standby shows no tenant's.
        if self._known.is_whole or not is_leader:
            yield GaugeMetricFamily(
                "strata_journal_applied_entries",
                "The last entry of a journal in etcd that this replica knows; what a standby lacks is its lag.",
                leadership.applied,
            )
        yield GaugeMetricFamily(
            "strata_coordinator_ready",
            "Whether a leader takes durable commands, or a standby could lead.",
            float(not (snapshot.refusal if is_leader else leadership.problem)),
        )
        # A standby takes none by design, which is nothing to be woken for.
        if is_leader:
            yield GaugeMetricFamily(
                "strata_journal_accepts_writes",
                "Whether durable commands are taken: 1, or 0 while the journal refuses.",
                float(not snapshot.refusal),
            )
        yield GaugeMetricFamily("strata_channels", "Connections of workers that are open.", snapshot.channels)
        yield GaugeMetricFamily("strata_jobs", "Jobs that the coordinator remembers.", len(snapshot.jobs))

    def _requests(self) -> Iterator[Metric]:
        yield CounterMetricFamily(
            "strata_access_refused", "Attempts to connect without a good token.", self._failed_attempts
        )
        latency = HistogramMetricFamily(
            "strata_request_duration_seconds",
            "From a command's arrival until its answer may be sent, durable if need be, by kind.",
            labels=["command"],
        )
        refused = CounterMetricFamily("strata_requests_refused", "Commands answered with an error.", labels=["command"])
        for kind, seen in sorted(self._feed.latencies.items(), key=lambda each: each[0].__name__):
            name = snake_case(kind)
            latency.add_metric([name], _cumulate(LATENCY_BOUNDS_S, seen.counts), seen.sum_s)
            refused.add_metric([name], seen.refused)
        yield latency
        yield refused

    def _observed(self) -> Iterator[Metric]:
        seen = self._known.history.observations
        yield _histogram(
            "strata_barrier_wait_seconds",
            "How long the first worker at a barrier waited for the last.",
            seen.barrier_waits,
        )
        phases = HistogramMetricFamily(
            "strata_save_phase_seconds", "Phases of each worker's saves, in seconds.", labels=["phase"]
        )
        for phase, histogram in seen.save_phases.items():
            phases.add_metric([phase], _cumulate(histogram.bounds_s, histogram.counts), histogram.sum_s)
        yield phases
        yield _histogram(
            "strata_checkpoint_commit_seconds",
            "From the first part of a checkpoint that was reported until its commit.",
            seen.commit_s,
        )
        yield CounterMetricFamily("strata_checkpoints_committed", "Checkpoints committed.", seen.committed)
        yield CounterMetricFamily("strata_checkpoints_aborted", "Checkpoints given up.", seen.aborted)
        yield CounterMetricFamily("strata_checkpoint_written_bytes", "Bytes of committed parts.", seen.committed_bytes)
        yield CounterMetricFamily("strata_saves_failed", "Saves of single workers that failed.", seen.failed_saves)
        changes = CounterMetricFamily(
            "strata_generation_changes", "Changes of the membership of any job, by cause.", labels=["cause"]
        )
        for cause, count in sorted(seen.changes.items()):
            changes.add_metric([cause], count)
        yield changes
        spent = CounterMetricFamily(
            "strata_worker_time_seconds", "Seconds of all workers, by what they were spent on.", labels=["part"]
        )
        for part in PARTS:
            spent.add_metric([part], seen.part_s[part])
        yield spent
        yield CounterMetricFamily("strata_worker_steps", "Steps done by all workers, repeated ones too.", seen.steps)

    def _workers(self, jobs: Sequence[JobCopy]) -> Iterator[Metric]:
        workers = GaugeMetricFamily("strata_workers", "Workers by state.", labels=["job_id", "state"])
        for job in jobs:
            counts = dict.fromkeys(map(str, WorkerState), 0)
            for worker in job.workers:
                counts[worker.state] += 1
            for state, count in counts.items():
                workers.add_metric([job.job_id, state], count)
        yield workers

    def _jobs(self, jobs: Sequence[JobCopy]) -> Iterator[Metric]:
        summaries = [summarize(self._known, job) for job in jobs]
        states = GaugeMetricFamily(
            "strata_job_state", "1 for the state that the job is in, 0 for the others.", labels=["job_id", "state"]
        )
        for summary in summaries:
            for state in JobState:
                states.add_metric([summary.job_id, state], summary.state is state)
        yield states
        gauges = (
            ("strata_job_step", "The furthest step of any worker.", "step"),
            (
                "strata_job_missing_workers",
                "Workers that are missing before the job can run, also of one that has ended.",
                "waits_for",
            ),
            ("strata_job_steps_at_risk", "Steps since the checkpoint that a restart would restore.", "steps_at_risk"),
            ("strata_job_last_step_time_seconds", "When a new step was last heard of, since 1970.", "last_step_s"),
            ("strata_job_step_duration_seconds", "Seconds a step, as rank 0 averages it.", "step_s"),
            ("strata_job_samples_per_second", "Samples of all workers in a second.", "samples_per_s"),
            ("strata_job_goodput_ratio", "Share of wall time that became kept steps.", "goodput"),
            ("strata_job_generation", "The number of the job's membership.", "generation"),
        )
        for name, text, field in gauges:
            gauge = GaugeMetricFamily(name, text, labels=["job_id"])
            for summary in summaries:
                if (value := getattr(summary, field)) is not None:
                    gauge.add_metric([summary.job_id], value)
            yield gauge
        failures = CounterMetricFamily("strata_job_failures", "Losses of workers, by job.", labels=["job_id"])
        stragglers = GaugeMetricFamily(
            "strata_job_stragglers",
            "Ranks slower than the others, by where the difference is.",
            labels=["job_id", "cause"],
        )
        diverged = GaugeMetricFamily(
            "strata_job_diverged_ranks",
            "Ranks that held other values than most of replicated tensors, in the newest checkpoint.",
            labels=["job_id"],
        )
        suspect = GaugeMetricFamily(
            "strata_job_suspect_checkpoints",
            "Suspect checkpoints since the newest one that is not; a restart passes over them.",
            labels=["job_id"],
        )
        open_barriers = GaugeMetricFamily(
            "strata_job_barrier_open_since_seconds",
            "When the first worker arrived at the oldest open barrier, since 1970.",
            labels=["job_id"],
        )
        for job, summary in zip(jobs, summaries, strict=True):
            failures.add_metric([job.job_id], summary.failures)
            slow = self._known.stragglers(job)
            for cause in ("data", "compute", "save"):
                stragglers.add_metric([job.job_id, cause], sum(each.cause == cause for each in slow))
            newest_first = sorted(job.committed, key=lambda record: -record.step)
            newest = newest_first[0].diverged if newest_first else None
            diverged.add_metric([job.job_id], 0 if newest is None else len(newest.ranks))
            suspect.add_metric([job.job_id], sum(1 for _ in takewhile(lambda each: each.is_suspect, newest_first)))
            if job.barriers:
                open_barriers.add_metric([job.job_id], min(barrier.began_s for barrier in job.barriers))
        yield failures
        yield stragglers
        yield diverged
        yield suspect
        yield open_barriers

    def _time(self, jobs: Sequence[JobCopy]) -> Iterator[Metric]:
        spent = CounterMetricFamily(
            "strata_job_time_seconds",
            "Wall time of the job by what it was spent on; down is time without a worker.",
            labels=["job_id", "part"],
        )
        for job in jobs:
            history = self._known.history.find(job.key)
            reckoned = reckon_job(history)
            for part in (*PARTS, DOWN):
                spent.add_metric([job.job_id, part], history.never_falling(part, reckoned.parts[part]))
        yield spent


def _histogram(name: str, text: str, histogram: Histogram) -> HistogramMetricFamily:
    return HistogramMetricFamily(
        name, text, buckets=_cumulate(histogram.bounds_s, histogram.counts), sum_value=histogram.sum_s
    )


def _cumulate(bounds_s: Sequence[float], counts: Sequence[int]) -> list[tuple[str, float]]:
    rows: list[tuple[str, float]] = []
    total = 0
    for bound_s, count in zip(bounds_s, counts, strict=False):
        total += count
        rows.append((str(bound_s), total))
    return [*rows, ("+Inf", total + counts[len(bounds_s)])]
