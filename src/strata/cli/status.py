"""``strata status`` and ``strata events``: what the jobs are doing, for people on call."""

from __future__ import annotations

import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Annotated, Any

import typer

from strata.cli.output import AsJson, print_json, print_table
from strata.config import load_settings
from strata.errors import CoordinatorLostError

if TYPE_CHECKING:
    from strata.wire._generated import coordinator_pb2 as pb

DEFAULT_URL = "127.0.0.1:50051"
TIMEOUT_S = 5.0
Url = Annotated[
    str | None,
    typer.Option("--coordinator", help="Where the coordinator is.", show_default=f"COORDINATOR_URL, or {DEFAULT_URL}"),
]


def show_status(
    *,
    coordinator: Url = None,
    watch: Annotated[bool, typer.Option("--watch", help="Show it anew every second, until Ctrl-C.")] = False,
    as_json: AsJson = False,
) -> None:
    """Show workers, datasets, barriers and checkpoints of all jobs."""
    with _connected(coordinator) as stub:
        while True:
            status = stub.status()
            if as_json:
                print_json(stub.as_dict(status))
            else:
                if watch:
                    sys.stdout.write("\x1b[2J\x1b[H" if sys.stdout.isatty() else "\n")
                _print_status(status)
            if not watch:
                return
            sys.stdout.flush()
            time.sleep(1.0)


def show_events(
    *,
    coordinator: Url = None,
    job: Annotated[str, typer.Option(help="Only of this job.")] = "",
    follow: Annotated[bool, typer.Option("--follow", "-f", help="Go on with what happens, until Ctrl-C.")] = False,
    as_json: AsJson = False,
) -> None:
    """Show what has happened: who joined, failed or left, what was committed or given up, and why."""
    with _connected(coordinator) as stub:
        for event in stub.events(job, follow=follow):
            when = datetime.fromtimestamp(event.time_s, UTC).strftime("%Y-%m-%d %H:%M:%S")
            if as_json:
                print_json(stub.as_dict(event))
            else:
                who = f" {event.worker_id}" if event.worker_id else ""
                sys.stdout.write(f"{when}  {event.job_id}{who}  {event.kind}: {event.reason}\n")
            sys.stdout.flush()


class _Stub:
    def __init__(self, stub: Any) -> None:
        self._stub = stub

    def status(self) -> pb.Status:
        from strata.wire._generated import coordinator_pb2 as pb

        status: pb.Status = self._stub.GetStatus(pb.GetStatus(), timeout=TIMEOUT_S)
        return status

    def events(self, job_id: str, *, follow: bool) -> Iterator[pb.Event]:
        from strata.wire._generated import coordinator_pb2 as pb

        timeout_s = None if follow else TIMEOUT_S
        yield from self._stub.StreamEvents(pb.StreamEvents(job_id=job_id, once=not follow), timeout=timeout_s)

    @staticmethod
    def as_dict(message: Any) -> Any:
        from google.protobuf.json_format import MessageToDict

        return MessageToDict(message, preserving_proto_field_name=True, always_print_fields_with_no_presence=True)


@contextmanager
def _connected(url: str | None) -> Iterator[_Stub]:
    import grpc

    from strata.client.connection import parse_address
    from strata.wire._generated import coordinator_pb2_grpc as stubs

    address = parse_address(load_settings(coordinator_url=url).coordinator_url or DEFAULT_URL)
    started_s = time.monotonic()
    with grpc.insecure_channel(address) as channel:
        try:
            yield _Stub(stubs.CoordinatorStub(channel))
        except grpc.RpcError as error:
            if error.code() in (grpc.StatusCode.UNAVAILABLE, grpc.StatusCode.DEADLINE_EXCEEDED):
                raise CoordinatorLostError(address, waited_s=time.monotonic() - started_s) from error
            raise


def _print_status(status: pb.Status) -> None:
    if not status.jobs:
        sys.stdout.write("no jobs yet\n")
    for job in status.jobs:
        waits = f", waits for {job.waits_for} more workers" if job.waits_for else ""
        sys.stdout.write(f"job {job.job_id}: generation {job.generation}{waits}\n")
        print_table(
            ("worker", "rank", "state", "step", "epoch", "speed", "reports", "last word"), map(_row, job.workers)
        )
        for dataset in job.datasets:
            sys.stdout.write(
                f"dataset {dataset.dataset_id}: {dataset.total_samples:,} samples in {dataset.total_shards:,} shards\n"
            )
        for barrier in job.barriers:
            missing = ", ".join(barrier.missing[:5])
            sys.stdout.write(f"barrier {barrier.name}: {barrier.arrived} of {barrier.expected}, missing {missing}\n")
        for pending in job.pending:
            what = "its manifest is being written" if pending.writing else f"missing {', '.join(pending.missing[:5])}"
            sys.stdout.write(f"checkpoint step {pending.step}: {what}\n")
        for checkpoint in job.checkpoints[-5:]:
            sys.stdout.write(f"checkpoint step {checkpoint.step}, epoch {checkpoint.epoch}: {checkpoint.manifest}\n")
        for rejected in job.rejected:
            sys.stdout.write(f"checkpoint step {rejected.step} cannot be restored: {rejected.reason}\n")


def _row(worker: pb.WorkerStatus) -> tuple[str, ...]:
    reports = dict(worker.resources)
    step_s, samples_per_s = reports.pop("step_s", 0.0), reports.pop("samples_per_s", 0.0)
    speed = [f"{1 / step_s:.3g} steps/s"] if step_s else []
    speed += [f"{samples_per_s:,.0f} samples/s"] if samples_per_s else []
    return (
        worker.worker_id,
        str(worker.rank),
        worker.state,
        str(worker.step),
        str(worker.epoch),
        ", ".join(speed),
        ", ".join(f"{name} {value:.4g}" for name, value in sorted(reports.items())),
        f"{worker.silent_s:.1f} s ago",
    )
