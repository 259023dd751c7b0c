"""From what is known to answers about the coordinator, all jobs, and the page that has everything. Pure."""

from __future__ import annotations

from pydantic_core import to_json

from strata.coordinator.http import answers as a
from strata.coordinator.http import series_answers as s
from strata.coordinator.http.job_views import (
    describe_barriers,
    encode_workers,
    make_checkpoints,
    make_datasets,
)
from strata.coordinator.http.known import Encoded, Known
from strata.coordinator.http.summaries import summarize
from strata.coordinator.http.time_views import describe_goodput

SHOWN_CHECKPOINTS = 50


def make_health(known: Known) -> a.Health:
    """Say that it lives: whoever makes this answer has asked the coordinator's loop."""
    return a.Health(status="ok", version=known.facts.version, started_s=known.facts.started_s)


def make_readiness(known: Known) -> a.Readiness:
    """Say whether a leader takes durable commands, or a standby follows the journal and could lead."""
    leadership = known.leadership
    is_leader = leadership.is_leader
    reason = known.snapshot.refusal if is_leader else leadership.problem
    return a.Readiness(
        ready=not reason,
        reason=reason,
        role=a.ReplicaRole.LEADER if is_leader else a.ReplicaRole.STANDBY,
        leader=leadership.leader.grpc,
        term=leadership.leader.term,
    )


def make_status(known: Known) -> a.CoordinatorStatus:
    """Describe the coordinator itself."""
    snapshot, facts = known.snapshot, known.facts
    return a.CoordinatorStatus(
        version=facts.version,
        started_s=facts.started_s,
        journal=facts.journal,
        accepts_writes=not snapshot.refusal,
        reason=snapshot.refusal,
        channels=snapshot.channels,
        jobs=len(snapshot.jobs),
        workers=sum(len(job.present) for job in snapshot.jobs.values()),
        requests_total=snapshot.version if known.is_whole else None,
        requests_per_s=known.requests_per_s,
        grpc_port=facts.grpc_port,
        channel_port=facts.channel_port,
    )


def make_jobs(known: Known) -> a.Jobs:
    """Describe all jobs, by name."""
    return a.Jobs(jobs=[summarize(known, known.snapshot.jobs[job_id]) for job_id in sorted(known.snapshot.jobs)])


def make_dashboard(known: Known, job_id: str | None) -> s.Dashboard | Encoded:
    """Describe one job in full, by default the busiest; without any job the page is empty, not an error."""
    job = known.find_job() if job_id is None else known.job(job_id)
    jobs = make_jobs(known).jobs
    if job is None:
        return s.Dashboard(
            coordinator=make_status(known),
            jobs=jobs,
            job=None,
            workers=[],
            datasets=[],
            checkpoints=[],
            barriers=None,
            metrics=None,
            goodput=None,
        )
    summary = next(each for each in jobs if each.job_id == job.job_id)
    checkpoints, barriers = make_checkpoints(known, job), describe_barriers(known, job)
    goodput = describe_goodput(known, job, summary)
    committed = [each for each in checkpoints if each.state is a.CheckpointState.COMMITTED]
    # The fields of Dashboard, without checks: there may be ten thousand workers.
    others = {
        "coordinator": make_status(known),
        "jobs": jobs,
        "job": summary,
        "datasets": make_datasets(known, job),
        "checkpoints": checkpoints[:SHOWN_CHECKPOINTS],
        "barriers": barriers,
        "metrics": s.JobMetrics(
            steps_per_s=summary.steps_per_s,
            samples_per_s=summary.samples_per_s,
            tokens_per_s=summary.tokens_per_s,
            requests_per_s=known.requests_per_s,
            checkpoint_bytes_per_s=committed[0].bytes_per_s if committed else None,
            barrier_p50_s=barriers.wait_p50_s,
            barrier_p99_s=barriers.wait_p99_s,
            goodput=summary.goodput,
            recent_goodput=goodput.recent_goodput,
            steps_at_risk=summary.steps_at_risk,
            mtbf_s=goodput.mtbf_s,
            failures=summary.failures,
        ),
        "goodput": goodput,
    }
    return Encoded(b'%b,"workers":%b}' % (to_json(others)[:-1], encode_workers(known, job)))
