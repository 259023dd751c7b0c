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
from strata.run.cadence import Cadence, parse_cadence
from strata.run.local import LocalTeam
from strata.run.run import Run
from strata.run.team import Team

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
    checkpoint_options: Mapping[str, Any] | None = None,
) -> Run:
    """Join a job and return this worker's run, when the job has as many workers as it needs.

    What is not given comes from COORDINATOR_URL, JOB_ID, WORKER_ID, RANK and WORLD_SIZE, which ``strata run`` sets.
    ``checkpoints`` is a directory or URL that all workers reach, by default the store of the environment;
    ``save_every`` is "auto", "500 steps", "10 min" or a :class:`Cadence`; ``checkpoint_options`` go to
    CheckpointManager. With ``local=True`` the same script runs alone, without a coordinator.
    """
    cadence = parse_cadence(save_every)
    settings = load_settings(
        coordinator_url=coordinator_url, job_id=job_id, worker_id=worker_id, rank=rank, world_size=world_size
    )
    options = dict(checkpoint_options or {})
    name = settings.worker_id or _default_worker_id(settings.rank)
    team: Team
    if local:
        team = LocalTeam()
    elif settings.coordinator_url is None:
        expected = "http://host:50051; strata run sets it, and join(local=True) needs none"
        raise ConfigError([ConfigProblem("COORDINATOR_URL", "environment", None, expected)])
    else:
        # Imported here: a run of one needs no gRPC, and loading it takes longer than the rest.
        from strata.run.coordinated import CoordinatedTeam

        team = CoordinatedTeam(
            settings.coordinator_url,
            name,
            job_id=settings.job_id,
            rank=settings.rank,
            world_size=settings.world_size,
            timeout_s=timeout_s,
        )
    try:
        manager = CheckpointManager(checkpoints, job_id=settings.job_id, coordinator=team.client, **options)
        run = Run(team, manager, cadence, job_id=settings.job_id, worker_id=name)
    except BaseException:
        team.close()
        raise
    return run


def _default_worker_id(rank: int | None) -> str:
    host = ids.make_name(socket.gethostname(), default="worker")
    return f"{host}-{os.getpid()}" if rank is None else f"worker-{rank}"
