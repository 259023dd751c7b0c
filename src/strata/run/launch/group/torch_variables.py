"""The environment variables that torchrun sets, so that a script for torchrun runs unmodified."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

ROLE = "default"


@dataclass(frozen=True, slots=True, kw_only=True)
class Start:
    """One start of the group, as one launcher sees it: where rank 0 listens, and the ranks of the workers here."""

    master_addr: str
    master_port: int
    ranks: Mapping[int, int]
    """The rank of each worker here, by its local number. Those that were left out have none."""
    world_size: int
    group_rank: int = 0
    """The number of this launcher among those that start the group."""
    group_world_size: int = 1
    restarts: int = 0
    """How many starts there were before."""


def torch_variables(
    start: Start, member: int, *, run_id: str, max_restarts: int, inherited: Mapping[str, str]
) -> dict[str, str]:
    """Return the variables of one worker as torch documents them; ``inherited`` is the launcher's environment."""
    rank, nproc = start.ranks[member], len(start.ranks)
    variables = {
        "RANK": rank,
        "WORLD_SIZE": start.world_size,
        "LOCAL_RANK": sorted(start.ranks).index(member),
        "LOCAL_WORLD_SIZE": nproc,
        "GROUP_RANK": start.group_rank,
        "GROUP_WORLD_SIZE": start.group_world_size,
        # There is one role, so the places in it are those in the group.
        "ROLE_NAME": ROLE,
        "ROLE_RANK": rank,
        "ROLE_WORLD_SIZE": start.world_size,
        "MASTER_ADDR": start.master_addr,
        "MASTER_PORT": start.master_port,
        "TORCHELASTIC_RESTART_COUNT": start.restarts,
        "TORCHELASTIC_MAX_RESTARTS": max_restarts,
        "TORCHELASTIC_RUN_ID": run_id,
        # Rank 0 serves the store: a launcher without torch cannot.
        "TORCHELASTIC_USE_AGENT_STORE": False,
        "TORCH_NCCL_ASYNC_ERROR_HANDLING": inherited.get("TORCH_NCCL_ASYNC_ERROR_HANDLING", "1"),
    }
    if limits_threads(inherited, nproc=nproc):
        variables["OMP_NUM_THREADS"] = 1
    return {name: str(value) for name, value in variables.items()}


def limits_threads(inherited: Mapping[str, str], *, nproc: int) -> bool:
    """Whether each worker gets one thread for OpenMP, as with torchrun: several that each use all cores are slower."""
    return nproc > 1 and "OMP_NUM_THREADS" not in inherited
