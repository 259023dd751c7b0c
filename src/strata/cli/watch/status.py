"""``strata status`` and ``strata events``: what the jobs are doing, for operators."""

from __future__ import annotations

import sys
import time
from collections.abc import Iterator
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Annotated, Any

import typer

from strata.cli.output import AsJson, escape, print_json, print_json_line, print_table
from strata.cli.progress import can_redraw
from strata.cli.watch.followed_events import follow_events
from strata.cli.watch.interrupts import insistent_interrupts
from strata.cli.watch.replicas import ask_replicas, print_replicas
from strata.config import load_settings

if TYPE_CHECKING:
    from strata.wire._generated import coordinator_pb2 as pb

DEFAULT_URL = "127.0.0.1:50051"
TIMEOUT_S = 5.0
# What a worker that stands still says of itself; it is told in a sentence of its own.
_STALL = ("stalled_s", "limit_s", "waiting", "in_collective", "collectives", "paused")
# In the HTTP API; a line of a terminal has no room for them.
_MEMORY = ("rss_bytes", "gpu_memory_bytes")
Url = Annotated[
    str | None,
    typer.Option(
        "--coordinator", help="The coordinator's host:port.", show_default=f"COORDINATOR_URL, or {DEFAULT_URL}"
    ),
]


def show_status(
    *,
    coordinator: Url = None,
    watch: Annotated[bool, typer.Option("--watch", help="Refresh every second until Ctrl-C.")] = False,
    as_json: AsJson = False,
) -> None:
    """Show replicas of the coordinator, and workers, datasets, barriers and checkpoints of all jobs."""
    url = _url(coordinator)
    with insistent_interrupts():
        while True:
            status, replicas = _ask_status(url)
            if as_json:
                print_json({**_as_dict(status), "replicas": replicas})
            else:
                if watch:
                    sys.stdout.write("\x1b[2J\x1b[H" if can_redraw(sys.stdout) else "\n")
                print_replicas(replicas)
                _print_status(status)
            if not watch:
                return
            sys.stdout.flush()
            time.sleep(1.0)


def show_events(
    *,
    coordinator: Url = None,
    job: Annotated[str, typer.Option(help="Show only this job.")] = "",
    follow: Annotated[
        bool, typer.Option("--follow", "-f", help="Print new events as they come, until Ctrl-C.")
    ] = False,
    audit: Annotated[
        bool, typer.Option("--audit", help="Show only what someone did, with which token and from where.")
    ] = False,
    as_json: AsJson = False,
) -> None:
    """Show what happened: who joined, failed or left, which checkpoints were committed or aborted, and why."""
    url = _url(coordinator)
    with insistent_interrupts():
        for event in follow_events(url, job) if follow else _ask_events(url, job):
            if audit and not event.by and not event.address:
                continue
            when = datetime.fromtimestamp(event.time_s, UTC).strftime("%Y-%m-%d %H:%M:%S")
            if as_json:
                print_json_line(_as_dict(event))
            else:
                who = f" {event.worker_id}" if event.worker_id else ""
                cause = f" [{event.cause}]" if event.cause else ""
                line = f"{event.job_id}{who}  {event.kind}{cause}: {event.reason}"
                if audit:
                    line = f"{event.by or 'nobody'} at {event.address}  {line}"
                sys.stdout.write(f"{when}  {escape(line)}\n")
            sys.stdout.flush()


def _url(given: str | None) -> str:
    return load_settings(coordinator_url=given).coordinator_url or DEFAULT_URL


def _ask_status(url: str) -> tuple[pb.Status, list[dict[str, Any]]]:
    from strata.client.unary import ask
    from strata.wire._generated import coordinator_pb2 as pb

    status: pb.Status = ask(url, lambda stub: stub.GetStatus(pb.GetStatus(), timeout=TIMEOUT_S))
    return status, ask_replicas(url, ask(url, lambda stub: stub.Describe(pb.Describe(), timeout=TIMEOUT_S)))


def _ask_events(url: str, job_id: str) -> list[pb.Event]:
    from strata.client.unary import ask
    from strata.wire._generated import coordinator_pb2 as pb

    request = pb.StreamEvents(job_id=job_id, once=True)
    events: list[pb.Event] = ask(url, lambda stub: list(stub.StreamEvents(request, timeout=TIMEOUT_S)))
    return events


def _as_dict(message: Any) -> Any:
    from google.protobuf.json_format import MessageToDict

    return MessageToDict(message, preserving_proto_field_name=True, always_print_fields_with_no_presence=True)


def _print_status(status: pb.Status) -> None:
    if not status.jobs:
        sys.stdout.write("no jobs yet\n")
    for job in status.jobs:
        reason = f" ({escape(job.reason)})" if job.reason else ""
        sys.stdout.write(f"job {job.job_id}: {job.state}{reason}, generation {job.generation}\n")
        print_table(
            ("worker", "rank", "state", "step", "epoch", "speed", "reports", "heartbeat"), map(_row, job.workers)
        )
        for line in _lines(job):
            sys.stdout.write(f"{escape(line)}\n")


def _lines(job: pb.JobStatus) -> Iterator[str]:
    yield from filter(None, map(describe_stall, job.workers))
    for dataset in job.datasets:
        yield f"dataset {dataset.dataset_id}: {dataset.total_samples:,} samples in {dataset.total_shards:,} shards"
    for barrier in job.barriers:
        missing = ", ".join(barrier.missing[:5])
        yield f"barrier {barrier.name}: {barrier.arrived} of {barrier.expected}, missing {missing}"
    for pending in job.pending:
        what = "its manifest is being written" if pending.writing else f"missing {', '.join(pending.missing[:5])}"
        yield f"checkpoint step {pending.step}: {what}"
    for checkpoint in job.checkpoints[-5:]:
        yield f"checkpoint step {checkpoint.step}, epoch {checkpoint.epoch}: {checkpoint.manifest}"
    yield from map(describe_divergence, (each for each in job.checkpoints if each.HasField("diverged")))
    for rejected in job.rejected:
        yield f"checkpoint step {rejected.step} is not restored: {rejected.reason}"


def describe_divergence(checkpoint: pb.CommitRecord) -> str:
    """Say in words that replicas were not the same in a checkpoint, on which ranks, and where first."""
    from strata.cluster.values import Divergence
    from strata.wire import codec

    diverged = codec.read(Divergence, checkpoint.diverged)
    return f"checkpoint step {checkpoint.step} has replicas that diverged: {diverged}"


def describe_stall(worker: pb.WorkerStatus) -> str:
    """Say in words that a worker stands still, and what it does; nothing if it makes progress or is gone."""
    said, who = worker.resources, f"rank {worker.rank} ({worker.worker_id})"
    if worker.state in ("failed", "left"):
        return ""
    if said.get("paused"):
        return f"{who} is in a long phase that it announced, after step {worker.step}; its watchdog is paused"
    if "stalled_s" not in said:
        return ""
    still = f"{who} stands still for {said['stalled_s']:.0f} s in step {worker.step + 1}"
    if said.get("waiting"):
        return f"{still}: it waits for other workers at a barrier"
    if said.get("in_collective"):
        return f"{still}: it is in a collective"
    limit = f"; its watchdog's limit is {said['limit_s']:.0f} s" if "limit_s" in said else ""
    return f"{still}: it runs its own code{limit}"


def _row(worker: pb.WorkerStatus) -> tuple[str, ...]:
    reports = {name: value for name, value in worker.resources.items() if name not in (*_STALL, *_MEMORY)}
    step_s, samples_per_s = reports.pop("step_s", 0.0), reports.pop("samples_per_s", 0.0)
    total, data_wait_s = reports.pop("total_steps", 0.0), reports.pop("data_wait_s", 0.0)
    speed = [f"{1 / step_s:.3g} steps/s"] if step_s else []
    speed += [f"{samples_per_s:,.0f} samples/s"] if samples_per_s else []
    numbers = [f"{name} {value:.4g}" for name, value in sorted(reports.items())]
    numbers += [f"data wait {min(1.0, data_wait_s / step_s):.0%}"] if step_s and data_wait_s else []
    return (
        worker.worker_id,
        str(worker.rank),
        worker.state,
        f"{worker.step}/{total:.0f}" if total else str(worker.step),
        str(worker.epoch),
        ", ".join(speed),
        ", ".join(numbers),
        f"{worker.silent_s:.1f} s ago",
    )
