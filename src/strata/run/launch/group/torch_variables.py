"""The environment variables that torchrun sets, so that a script for torchrun runs unmodified."""

from __future__ import annotations

from dataclasses import dataclass

ROLE = "default"


@dataclass(frozen=True, slots=True, kw_only=True)
class Place:
    """The place of one worker in one start of its group."""

    rank: int
    world_size: int
    local_rank: int
    local_world_size: int
    group_rank: int = 0
    """The number of its launcher among those of the job."""
    group_world_size: int = 1


@dataclass(frozen=True, slots=True, kw_only=True)
class Start:
    """One start of the group: where its rank 0 listens, and how many starts there were before."""

    master_addr: str
    master_port: int
    restarts: int = 0


def torch_variables(
    place: Place, start: Start, *, run_id: str, max_restarts: int, inherited: dict[str, str]
) -> dict[str, str]:
    """Return the variables as torch documents them; ``inherited`` is the environment of the launcher."""
    variables = {
        "RANK": place.rank,
        "WORLD_SIZE": place.world_size,
        "LOCAL_RANK": place.local_rank,
        "LOCAL_WORLD_SIZE": place.local_world_size,
        "GROUP_RANK": place.group_rank,
        "GROUP_WORLD_SIZE": place.group_world_size,
        # There is one role, so the places in it are those in the group.
        "ROLE_NAME": ROLE,
        "ROLE_RANK": place.rank,
        "ROLE_WORLD_SIZE": place.world_size,
        "MASTER_ADDR": start.master_addr,
        "MASTER_PORT": start.master_port,
        "TORCHELASTIC_RESTART_COUNT": start.restarts,
        "TORCHELASTIC_MAX_RESTARTS": max_restarts,
        "TORCHELASTIC_RUN_ID": run_id,
        # Rank 0 serves the store: a launcher without torch cannot.
        "TORCHELASTIC_USE_AGENT_STORE": False,
        "TORCH_NCCL_ASYNC_ERROR_HANDLING": inherited.get("TORCH_NCCL_ASYNC_ERROR_HANDLING", "1"),
    }
    if limits_threads(inherited, nproc=place.local_world_size):
        variables["OMP_NUM_THREADS"] = 1
    return {name: str(value) for name, value in variables.items()}


def limits_threads(inherited: dict[str, str], *, nproc: int) -> bool:
    """Whether each worker gets one thread for OpenMP, as with torchrun: several that each use all cores are slower."""
    return nproc > 1 and "OMP_NUM_THREADS" not in inherited
