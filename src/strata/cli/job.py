"""``strata job``: the jobs that a coordinator remembers, and how to make it forget one."""

from __future__ import annotations

import sys
from typing import Annotated

import typer

from strata.cli.output import AsJson, print_json, print_table
from strata.cli.watch.status import DEFAULT_URL, Url
from strata.config import load_settings

app = typer.Typer(help="List and remove the jobs that the coordinator remembers.", no_args_is_help=True)
TIMEOUT_S = 30.0
Name = Annotated[str, typer.Argument(help="The job.", show_default=False)]


@app.command("ls", epilog="Example: strata job ls --coordinator 10.0.0.5:50051")
def list_jobs(*, coordinator: Url = None, as_json: AsJson = False) -> None:
    """List all jobs, with their states, workers and checkpoints."""
    from strata.client.unary import ask
    from strata.wire._generated import coordinator_pb2 as pb

    status = ask(_url(coordinator), lambda stub: stub.GetStatus(pb.GetStatus(), timeout=TIMEOUT_S))
    rows = [
        {
            "job": job.job_id,
            "state": job.state,
            "workers": job.present,
            "departed": len(job.workers) - job.present,
            "generation": job.generation,
            "checkpoints": job.total_checkpoints,
            "last_step": max((checkpoint.step for checkpoint in job.checkpoints), default=None),
        }
        for job in status.jobs
    ]
    if as_json:
        print_json(rows)
    elif not rows:
        sys.stdout.write("no jobs yet\n")
    else:
        columns = ("job", "state", "workers", "departed", "generation", "checkpoints", "last step")
        print_table(columns, (["-" if cell is None else str(cell) for cell in row.values()] for row in rows))


@app.command("rm", epilog="Example: strata job rm llm-7b")
def remove_job(job: Name, *, coordinator: Url = None) -> None:
    """Make the coordinator forget a job without workers; its checkpoints stay in storage."""
    from strata.client.unary import ask
    from strata.wire._generated import coordinator_pb2 as pb

    request = pb.RemoveJob(job_id=job, reason="removed by an operator")
    ask(_url(coordinator), lambda stub: stub.RemoveJob(request, timeout=TIMEOUT_S))
    sys.stdout.write(f"job {job} is forgotten; its checkpoints are where they were\n")


@app.command("forget", epilog="Example: strata job forget llm-7b 1200")
def forget_checkpoint(
    job: Name,
    step: Annotated[int, typer.Argument(min=0, help="The step of the checkpoint.", show_default=False)],
    *,
    coordinator: Url = None,
) -> None:
    """Make the coordinator forget a checkpoint that cannot be used, even the newest; workers go back to the one before.

    Nothing is deleted from storage.
    """
    from strata.client.unary import ask
    from strata.wire._generated import coordinator_pb2 as pb

    request = pb.ForgetCheckpoints(job_id=job, steps=[step], even_newest=True)
    ask(_url(coordinator), lambda stub: stub.ForgetCheckpoints(request, timeout=TIMEOUT_S))
    sys.stdout.write(f"step {step} of job {job} is forgotten\n")


def _url(coordinator: str | None) -> str:
    return load_settings(coordinator_url=coordinator).coordinator_url or DEFAULT_URL
