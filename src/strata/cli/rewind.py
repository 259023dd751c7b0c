"""``strata rewind``: have a job go on from an older checkpoint, and pass over batches of its data."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Annotated

import typer

from strata.cli.checkpoints.arguments import open_where
from strata.cli.output import AsJson, print_json
from strata.config import Settings, load_settings

if TYPE_CHECKING:
    from strata.checkpoint.format.rewind_record import Rewind
    from strata.storage import Storage

TIMEOUT_S = 30.0


def rewind(
    job: Annotated[str, typer.Argument(help="The job's id.", show_default=False)],
    *,
    to_step: Annotated[int, typer.Option("--to-step", min=0, help="The checkpoint to go on from.", show_default=False)],
    skip_batches: Annotated[
        list[str] | None,
        typer.Option(
            "--skip-batches",
            help="Batches not to train on, FIRST..LAST, both included. May be repeated.",
            metavar="RANGE",
        ),
    ] = None,
    dataset: Annotated[
        str | None,
        typer.Option("--dataset", help="The dataset of the batches.", show_default="the only one that the job has"),
    ] = None,
    checkpoints: Annotated[
        str | None,
        typer.Option(
            "--checkpoints",
            help="Where the job's checkpoints are: a directory or a URL.",
            show_default="as for workers",
        ),
    ] = None,
    coordinator: Annotated[
        str | None, typer.Option("--coordinator", help="The coordinator's host:port.", show_default="COORDINATOR_URL")
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Reset a stopped job to an older checkpoint, model and data position, and optionally skip batches.

    Batch N is what step N trains on. Newer checkpoints are set aside: no restart takes them, and they are kept until
    you delete them. The job must not run: stop it first, with Ctrl-C or SIGTERM.
    """
    from strata.checkpoint.manager import CheckpointManager
    from strata.run.rewinding import parse_batches, rewind_job

    settings = load_settings(coordinator_url=coordinator, job_id=job)
    try:
        skips = [parse_batches(each) for each in skip_batches or []]
    except ValueError as error:
        raise typer.BadParameter(f"--skip-batches: {error}") from error
    with _not_running(settings), CheckpointManager(storage=_open(checkpoints), job_id=settings.job_id) as manager:
        done = rewind_job(manager, settings.job_id, to_step, skips, dataset)
        if settings.coordinator_url is not None:
            _tell(settings.coordinator_url, settings.job_id, done)
    if as_json:
        print_json(done.to_json())
        return
    sys.stdout.write(f"job {settings.job_id}: {done}\n")
    if done.set_aside:
        steps = ", ".join(map(str, done.set_aside))
        sys.stdout.write(f"steps {steps} are set aside; `strata ckpt prune WHERE --rewound` deletes them\n")


def _open(checkpoints: str | None) -> Storage:
    from strata.checkpoint.location import find_storage

    return find_storage(None, None) if checkpoints is None else open_where(checkpoints)


@contextmanager
def _not_running(settings: Settings) -> Iterator[None]:
    """Raise RewindError if someone works on the job; no launcher on this machine begins it within the block."""
    from strata.errors import RewindError
    from strata.run.job_folder import home_of
    from strata.run.launch.group.claim import JobTakenError, LauncherRecord, StandaloneClaim

    if settings.coordinator_url is not None and (workers := _find_workers(settings.coordinator_url, settings.job_id)):
        names = ", ".join(workers[:5])
        problem = f"it is running, with {len(workers)} workers ({names}); stop it first, with Ctrl-C or SIGTERM"
        raise RewindError(settings.job_id, problem)
    record = LauncherRecord.of_this_process("strata rewind", nproc=0, node_rank=0)
    claim = StandaloneClaim(home_of(settings), settings.job_id, record)
    try:
        claim.take(takeover=False)
    except JobTakenError as error:
        problem = f"it is run by {error.holder}; stop that first, with Ctrl-C or SIGTERM"
        raise RewindError(settings.job_id, problem) from None
    try:
        yield
    finally:
        claim.release()


def _find_workers(url: str, job_id: str) -> list[str]:
    from strata.client.unary import ask
    from strata.wire._generated import coordinator_pb2 as pb

    status = ask(url, lambda stub: stub.GetStatus(pb.GetStatus(), timeout=TIMEOUT_S))
    found = next((job for job in status.jobs if job.job_id == job_id), None)
    if found is None or not found.present:
        return []
    return [worker.worker_id for worker in found.workers if worker.state not in ("left", "failed")]


def _tell(url: str, job_id: str, done: Rewind) -> None:
    """Have the coordinator take newer checkpoints out of its index, and note the rewind in the job's events."""
    from strata.client.unary import ask
    from strata.wire._generated import coordinator_pb2 as pb

    request = pb.RewindJob(job_id=job_id, number=done.number, to_step=done.to_step, reason=str(done))
    ask(url, lambda stub: stub.RewindJob(request, timeout=TIMEOUT_S))
