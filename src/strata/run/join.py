"""join(): from what the environment says to a run."""

from __future__ import annotations

import os
import socket
from collections.abc import Mapping
from typing import Any

from strata import ids
from strata.checkpoint import CheckpointManager
from strata.config import load_settings
from strata.errors import ConfigError, ConfigProblem
from strata.run.checkpoint_path import check_checkpoint_path
from strata.run.exits import goodbye_of
from strata.run.job_folder import find_folder
from strata.run.logs import configure_logging
from strata.run.loop.cadence import Cadence, parse_cadence
from strata.run.loop.run import Run
from strata.run.process_start import find_start_s
from strata.run.randomness.randomness import Randomness
from strata.run.team.protocol import Team
from strata.run.team.solo_team import LocalTeam
from strata.run.watchdog.monitor import Monitor
from strata.run.watchdog.waits import Waits
from strata.tracing.environment import open_tracing

JOIN_TIMEOUT_S = 600.0


def join(
    *,
    checkpoints: str | os.PathLike[str] | None = None,
    save_every: str | int | Cadence = "auto",
    local: bool = False,
    coordinator_url: str | None = None,
    job_id: str | None = None,
    worker_id: str | None = None,
    rank: int | None = None,
    world_size: int | None = None,
    timeout_s: float = JOIN_TIMEOUT_S,
    watchdog_s: float | None = None,
    log: str | None = None,
    seed: int | None = None,
    random_state: bool = True,
    checkpoint_options: Mapping[str, Any] | None = None,
) -> Run:
    """Join a job and return this worker's run, when the job has as many workers as it needs.

    What is not given comes from COORDINATOR_URL, JOB_ID, WORKER_ID, RANK and WORLD_SIZE, which ``strata run`` sets.
    ``checkpoints`` is a directory or URL that all workers reach, by default the store of the environment;
    ``save_every`` is "auto", "500 steps", "10 min" or a :class:`Cadence`; ``checkpoint_options`` go to
    CheckpointManager. ``watchdog_s`` is how long a step may take before this worker counts as hung, by default what
    follows from its own step times; 0 turns the watchdog off. ``log`` writes metrics to
    "tensorboard:DIRECTORY" or "wandb". ``seed`` seeds the generators of random numbers, and ``random_state=False``
    leaves them out of checkpoints. With ``local=True`` the same script
    runs alone, without a coordinator.
    """
    cadence = parse_cadence(save_every)
    settings = load_settings(
        coordinator_url=coordinator_url,
        job_id=job_id,
        worker_id=worker_id,
        rank=rank,
        world_size=world_size,
        strata_watchdog_s=watchdog_s,
        strata_log_to=log,
        strata_seed=seed,
    )
    configure_logging(settings)
    if checkpoints is not None:
        check_checkpoint_path(checkpoints, source="argument")
    elif settings.storage_backend == "local":
        check_checkpoint_path(settings.local_storage_path, source="LOCAL_STORAGE_PATH")
    options = dict(checkpoint_options or {})
    name = settings.worker_id or _default_worker_id(settings.rank)
    identity = {"strata.job": settings.job_id, "strata.worker_id": name, "service.instance.id": name}
    tracing = open_tracing(os.environ, service="strata-worker", attributes=identity)
    team: Team
    waits, monitor = Waits(began_s=find_start_s()), Monitor()
    monitor.add(waits.tick)
    if local:
        team = LocalTeam(tracing)
    elif settings.coordinator_url is None:
        monitor.close()
        expected = "http://host:50051; strata run sets it, and join(local=True) needs none"
        raise ConfigError([ConfigProblem("COORDINATOR_URL", "environment", None, expected)])
    else:
        # Imported here: a run of one needs no gRPC, and loading it takes longer than the rest.
        from strata.run.team.coordinated_team import CoordinatedTeam

        team = CoordinatedTeam(
            settings.coordinator_url,
            name,
            job_id=settings.job_id,
            rank=settings.rank,
            world_size=settings.world_size,
            timeout_s=timeout_s,
            waits=waits,
            tracing=tracing,
        )
    try:
        options = {"traces": team.traces, **options}
        manager = CheckpointManager(checkpoints, job_id=settings.job_id, coordinator=team.client, **options)
        run = Run(
            team,
            manager,
            cadence,
            job_id=settings.job_id,
            worker_id=name,
            folder=find_folder(settings),
            waits=waits,
            monitor=monitor,
            randomness=Randomness(settings.strata_seed, is_kept=random_state),
            watchdog_s=settings.strata_watchdog_s,
            log_to=settings.strata_log_to,
        )
    except BaseException as error:
        monitor.close()
        cause, reason = goodbye_of(error)
        team.close(reason, cause=cause)
        raise
    return run


def _default_worker_id(rank: int | None) -> str:
    host = ids.make_name(socket.gethostname(), default="worker")
    return f"{host}-{os.getpid()}" if rank is None else f"worker-{rank}"
