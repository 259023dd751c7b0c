"""What the coordinator adds to the traces of jobs, from what each command came to; on the coordinator's own loop.

A job has traces if its workers do: they keep the seed under a key. The root of each trace is rank 0's.
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import replace

from strata.cluster import Cluster
from strata.cluster import commands as c
from strata.cluster import events as e
from strata.cluster.job import Job
from strata.errors import BarrierCancelledError, BarrierTimeoutError
from strata.tracing.trace_names import (
    TRACES_KEY,
    Attribute,
    Span,
    TraceName,
    barrier_trace,
    checkpoint_trace,
    recovery_trace,
)
from strata.tracing.traces import Tracing

# So many workers that failed at once are named.
MAX_NAMED = 16


class JobsTraces:
    """The spans of all jobs that trace."""

    def __init__(self, tracing: Tracing) -> None:
        self._tracing = tracing

    def note(
        self, cluster: Cluster, command: c.Command, effects: Sequence[e.Effect], *, at_s: float, now_s: float
    ) -> AbstractContextManager[object]:
        """Record what a command that is durable came to; return the trace that its events are to be logged within."""
        if not isinstance(command, c.JobCommand) or command.job_id not in cluster:
            return nullcontext()
        job = cluster.job(command.job_id)
        seed = job.keys.get(TRACES_KEY).value
        if not seed:
            return nullcontext()
        traces = self._tracing.of(seed.decode(errors="replace"))
        # The cluster's clock is as steady as the monotonic one, and began elsewhere.
        shift_s = time.monotonic() - now_s
        about = checkpoint_trace(command.generation, command.step) if isinstance(command, c.ReportPart) else None
        for about, span in describe(job, command, effects, at_s=at_s, now_s=now_s):
            traces.record(about, replace(span, began_s=span.began_s + shift_s, ended_s=span.ended_s + shift_s))
        return nullcontext() if about is None else traces.within(about)


def describe(
    job: Job, command: c.JobCommand, effects: Sequence[e.Effect], *, at_s: float, now_s: float
) -> Iterator[tuple[TraceName, Span]]:
    """Yield what a command adds to which trace. It was applied at ``at_s``, and was durable at ``now_s``."""
    for effect in effects:
        match effect:
            case e.ManifestWanted() if isinstance(command, c.ReportPart):
                yield _describe_collecting(job, effect, at_s=at_s)
            case e.CheckpointCommitted() if isinstance(command, c.ConfirmCommit):
                attributes: dict[str, Attribute] = {"strata.writer": command.worker_id}
                yield checkpoint_trace(command.generation, command.step), Span("journal", at_s, now_s, attributes)
            case e.BarrierReleased():
                # One that is told again, because it was lost, was not released by this command.
                found = next((r for r in reversed(job.barriers.history) if r.at_s <= at_s), None)
                if found is not None and (found.name, found.at_s) == (effect.name, at_s):
                    attributes = {"strata.workers": len(found.arrivals)}
                    attributes |= {"strata.first": found.arrivals[0], "strata.last": found.arrivals[-1]}
                    trace = barrier_trace(effect.generation, effect.name, effect.round)
                    yield trace, Span("meeting", at_s - effect.waited_s, at_s, attributes)
            case e.BarrierFailed(error=BarrierTimeoutError() | BarrierCancelledError() as error):
                trace = barrier_trace(job.membership.generation, effect.name, effect.round)
                yield trace, Span("meeting", at_s, at_s, {"strata.workers": len(effect.to)}, str(error))
            # Nobody goes on after a worker that has finished: the others are about to.
            case e.GenerationChanged(cause=cause) if cause is not e.Cause.FINISHED:
                yield _describe_change(job, command, effect, at_s=at_s, now_s=now_s)
            case _:
                pass


def _describe_collecting(job: Job, wanted: e.ManifestWanted, *, at_s: float) -> tuple[TraceName, Span]:
    pending = job.commits.pending.get(wanted.step)
    attributes: dict[str, Attribute] = {
        "strata.parts": len(wanted.reports),
        "strata.bytes": sum(report.size_bytes for report in wanted.reports),
        "strata.writer": wanted.to[0],
    }
    began_s = at_s if pending is None else pending.begun_s
    return checkpoint_trace(wanted.generation, wanted.step), Span("collect", began_s, at_s, attributes)


def _describe_change(
    job: Job, command: c.JobCommand, changed: e.GenerationChanged, *, at_s: float, now_s: float
) -> tuple[TraceName, Span]:
    attributes: dict[str, Attribute] = {"strata.cause": str(changed.cause), "strata.reason": changed.reason}
    began_s = at_s
    if isinstance(command, c.FailWorkers):
        lost = {worker_id for worker_id, _ in command.workers}
        attributes["strata.workers"] = ", ".join(sorted(lost)[:MAX_NAMED])
        # Since it was last heard nobody knew that it was gone: that long did it take to find out.
        began_s = min((m.last_seen_s for m in job.membership.everyone() if m.worker_id in lost), default=at_s)
    return recovery_trace(changed.generation), Span("detect", min(began_s, at_s), now_s, attributes)
