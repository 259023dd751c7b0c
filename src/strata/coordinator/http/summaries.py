"""A job at a glance: its state in one word and why, and the numbers on top of it. Pure."""

from __future__ import annotations

from strata.cluster.lifecycle.job_state import JobState, Verdict, judge, waits_on_others
from strata.coordinator.http import answers as a
from strata.coordinator.http.job_views import finite
from strata.coordinator.http.known import Known
from strata.coordinator.http.snapshot import JobCopy, WorkerCopy
from strata.coordinator.telemetry.job_history import JobHistory
from strata.coordinator.telemetry.reckoning import reckon_job


def summarize(known: Known, job: JobCopy) -> a.JobSummary:
    """Describe a job at a glance."""
    history = known.history.find(job.key)
    present = job.present
    first = present[0] if present else None
    said = {} if first is None else first.resources
    step = max((worker.step for worker in present), default=history.step)
    committed = max((record.step for record in job.committed), default=None)
    # A restart passes over suspect checkpoints if there is another one.
    restored = max((record.step for record in job.committed if not record.is_suspect), default=committed)
    step_s, total = finite(said.get("step_s")), finite(said.get("total_steps"))
    state, reason = _judge(job)
    return a.JobSummary(
        job_id=job.job_id,
        state=state,
        reason=reason,
        generation=job.generation,
        workers=len(present),
        departed=len(job.workers) - len(present),
        waits_for=job.waits_for,
        min_workers=job.min_workers,
        max_workers=job.max_workers,
        step=step,
        epoch=max((worker.epoch for worker in present), default=_last_epoch(job)),
        total_steps=int(total) if total and 0 < total < 1e15 else None,
        step_s=step_s,
        steps_per_s=1 / step_s if step_s else None,
        samples_per_s=_sum(present, "samples_per_s"),
        tokens_per_s=_sum(present, "tokens_per_s"),
        last_step_s=history.last_step_s,
        committed_step=committed,
        steps_at_risk=max(0, step - restored) if restored is not None and present else None,
        goodput=reckon_job(history).plus(find_unreported(history, job)).goodput,
        failures=history.failures,
        last_failure_s=history.last_failure_s,
    )


def find_unreported(history: JobHistory, job: JobCopy) -> dict[str, float]:
    """Return the seconds since the last report of a job that does no steps, by part.

    Workers report their time with their steps. Without this, goodput would not fall before a stall, or a wait for
    workers, is over. What it is taken for holds until the workers report it themselves.
    """
    present = job.present
    tracks = (history.workers.get(worker.worker_id) for worker in present)
    heard_s = max((track.heard_s for track in tracks if track is not None), default=0.0)
    if history.until_s is None or heard_s <= history.until_s:
        return {}
    unreported_s = heard_s - history.until_s
    match _judge(job)[0]:
        case JobState.WAITING:
            return {"wait": unreported_s}
        case JobState.RECOVERING:
            return {"restore": unreported_s}
        case JobState.STALLED:
            # As when the stalled workers are restarted: their step is lost, and the others have waited for them.
            share = sum(waits_on_others(worker) for worker in present) / len(present)
            return {"wait": share * unreported_s, "repeated": (1 - share) * unreported_s}
        case _:
            return {}


def _judge(job: JobCopy) -> Verdict:
    return judge(job.present, waits_for=job.waits_for, ending=job.ending)


def _last_epoch(job: JobCopy) -> int:
    """Return where a job without workers was: its newest checkpoint says so also after a restart."""
    newest = max(job.committed, key=lambda record: record.step, default=None)
    return max((worker.epoch for worker in job.workers), default=0) if newest is None else newest.epoch


def _sum(workers: tuple[WorkerCopy, ...], name: str) -> float | None:
    values = [worker.resources[name] for worker in workers if name in worker.resources]
    return finite(sum(values)) if values else None
