"""``strata run``: start the workers of a job on this machine and keep them running."""

from __future__ import annotations

import asyncio
import shutil
import socket
import sys
from pathlib import Path
from typing import Annotated

import typer

from strata import ids
from strata.config import load_settings

# What follows the script belongs to it, options included.
CONTEXT = {"allow_extra_args": True, "ignore_unknown_options": True, "allow_interspersed_args": False}


def run_job(
    *,
    context: typer.Context,
    nproc: Annotated[int, typer.Option("--nproc", min=1, help="How many workers to start on this machine.")] = 1,
    minimum: Annotated[
        int | None,
        typer.Option("--min", min=1, help="How many workers the job needs to run.", show_default="all of them"),
    ] = None,
    maximum: Annotated[
        int | None, typer.Option("--max", min=1, help="How many it may have.", show_default="no limit")
    ] = None,
    max_restarts: Annotated[
        int,
        typer.Option(min=0, help="How many restarts an hour before giving up; 0 under Kubernetes."),
    ] = 10,
    standalone: Annotated[
        bool, typer.Option("--standalone", help="Bring a coordinator of its own, for a job on one machine.")
    ] = False,
    coordinator: Annotated[
        str | None, typer.Option("--coordinator", help="Where the coordinator is.", show_default="COORDINATOR_URL")
    ] = None,
    job: Annotated[str | None, typer.Option("--job", help="The job's name.", show_default="JOB_ID, or default")] = None,
    name: Annotated[
        str | None,
        typer.Option("--name", help="What the names of these workers begin with.", show_default="the host's name"),
    ] = None,
    nnodes: Annotated[int, typer.Option(min=1, help="How many machines start workers.")] = 1,
    node_rank: Annotated[int, typer.Option(min=0, help="Which of them this is, from 0 on.")] = 0,
    grace: Annotated[float, typer.Option(min=0.1, help="Seconds that workers have after Ctrl-C or SIGTERM.")] = 30.0,
    module: Annotated[bool, typer.Option("--module", "-m", help="Run a Python module, as python -m does.")] = False,
    script: Annotated[str, typer.Argument(help="The training script, or any program, and its arguments.")],
) -> int:
    """Start workers, restart the dead, and leave with the job's exit code.

    Every worker gets COORDINATOR_URL, JOB_ID, WORKER_ID, RANK, LOCAL_RANK and WORLD_SIZE. Ctrl-C asks all of them to
    end; a second one is less polite.
    """
    from strata.run.launcher import Launcher, LaunchPlan
    from strata.run.restarts import RestartPolicy

    settings = load_settings(coordinator_url=coordinator, job_id=job)
    if standalone and coordinator is not None:
        raise typer.BadParameter("--standalone brings its own coordinator; leave one of the two out")
    if not standalone and settings.coordinator_url is None:
        raise typer.BadParameter("there is no coordinator; set --coordinator or COORDINATOR_URL, or use --standalone")
    try:
        plan = LaunchPlan(
            command=(*_program(script, is_module=module), *context.args),
            nproc=nproc,
            name=name or ids.make_name(socket.gethostname(), default="worker"),
            job_id=settings.job_id,
            coordinator_url=None if standalone else settings.coordinator_url,
            nnodes=nnodes,
            node_rank=node_rank,
            min_workers=minimum,
            max_workers=maximum,
            grace_s=grace,
            restarts=RestartPolicy(max_restarts=max_restarts),
        )
    except ValueError as error:
        raise typer.BadParameter(str(error)) from error
    return asyncio.run(Launcher(plan).run())


def _program(script: str, *, is_module: bool) -> list[str]:
    """Return how to start what was named: a module, a Python script, or any program."""
    if is_module:
        return [sys.executable, "-m", script]
    if script.endswith(".py"):
        if not Path(script).is_file():
            raise ValueError(f"there is no script {script!r}; give its path")
        return [sys.executable, script]
    if shutil.which(script) is None:
        raise ValueError(f"there is no program {script!r}; give its path, or a script that ends with .py")
    return [script]
