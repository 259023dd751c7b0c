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
from strata.config import Settings, load_settings, source_of

# What follows the script belongs to it, options included.
CONTEXT = {"allow_extra_args": True, "allow_interspersed_args": False}


def run_job(
    *,
    context: typer.Context,
    nproc: Annotated[int, typer.Option("--nproc", min=1, help="How many workers to start on this machine.")] = 1,
    minimum: Annotated[
        int | None,
        typer.Option("--min", min=1, help="How many workers the job needs to run.", show_default="all of them"),
    ] = None,
    maximum: Annotated[
        int | None, typer.Option("--max", min=1, help="How many workers the job may have.", show_default="no limit")
    ] = None,
    max_restarts: Annotated[
        int,
        typer.Option(min=0, help="How many restarts per hour before the launcher gives up; use 0 under Kubernetes."),
    ] = 10,
    standalone: Annotated[
        bool, typer.Option("--standalone", help="Start a coordinator too, for a job on one machine.")
    ] = False,
    coordinator: Annotated[
        str | None, typer.Option("--coordinator", help="The coordinator's host:port.", show_default="COORDINATOR_URL")
    ] = None,
    job: Annotated[str | None, typer.Option("--job", help="The job's name.", show_default="JOB_ID, or default")] = None,
    name: Annotated[
        str | None,
        typer.Option("--name", help="The prefix of these workers' ids.", show_default="the host's name"),
    ] = None,
    nnodes: Annotated[int, typer.Option(min=1, help="How many machines start workers.")] = 1,
    node_rank: Annotated[int, typer.Option(min=0, help="Which of these machines this is, from 0 on.")] = 0,
    grace: Annotated[
        float, typer.Option(min=0.1, help="How many seconds workers have to save and leave after Ctrl-C or SIGTERM.")
    ] = 30.0,
    takeover: Annotated[
        bool, typer.Option("--takeover", help="Take the job over from a launcher that runs it already.")
    ] = False,
    watchdog: Annotated[
        float | None,
        typer.Option(
            min=0,
            help="Seconds that a step may take before its worker counts as hung; 0 turns that off.",
            show_default="from the run's own step times",
        ),
    ] = None,
    log_level: Annotated[
        str | None,
        typer.Option(help="What Strata logs: debug, info, warning or error.", show_default="STRATA_LOG_LEVEL, or info"),
    ] = None,
    log: Annotated[
        str | None, typer.Option("--log", help="Write metrics to tensorboard:DIRECTORY, or wandb[:PROJECT].")
    ] = None,
    module: Annotated[bool, typer.Option("--module", "-m", help="Run a Python module, as python -m does.")] = False,
    script: Annotated[str, typer.Argument(help="The training script, or any program, and its arguments.")],
) -> int:
    """Start workers, restart those that die, and exit with the job's exit code.

    Every worker gets COORDINATOR_URL, JOB_ID, WORKER_ID, JOB_FOLDER and the variables of torchrun, such as RANK and
    MASTER_ADDR. Ctrl-C asks all of them to save and leave; a second one kills them. Exit codes: 0 finished, 143
    preempted, 130 stopped by Ctrl-C, else that of the first worker that failed.
    """
    from strata.run.checkpoint_path import check_checkpoint_path, check_checkpoint_store
    from strata.run.job_folder import home_of
    from strata.run.launch.launcher import Launcher
    from strata.run.launch.plan import LaunchPlan
    from strata.run.launch.restart_policy import RestartPolicy

    settings = load_settings(
        coordinator_url=coordinator,
        job_id=job,
        strata_watchdog_s=watchdog,
        strata_log_level=log_level,
        strata_log_to=log,
    )
    if standalone and coordinator is not None:
        raise typer.BadParameter("--standalone brings its own coordinator; leave one of the two out")
    if not standalone and settings.coordinator_url is None:
        raise typer.BadParameter("there is no coordinator; set --coordinator or COORDINATOR_URL, or use --standalone")
    if settings.storage_backend == "local" and source_of("local_storage_path") != "default":
        check_checkpoint_path(settings.local_storage_path, source="LOCAL_STORAGE_PATH")
    check_checkpoint_store(settings)
    check_checkpoint_path(home_of(settings), source=source_of("jobs_path"), name="JOBS_PATH")
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
            home=home_of(settings),
            takeover=takeover,
            environment=_environment(settings),
        )
    except ValueError as error:
        raise typer.BadParameter(str(error)) from error
    return asyncio.run(Launcher(plan).run())


def _environment(settings: Settings) -> dict[str, str]:
    """Return what workers are told of the options."""
    names = ("strata_log_level", "strata_watchdog_s", "strata_log_to")
    return {name.upper(): str(value) for name in names if (value := getattr(settings, name)) is not None}


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
