"""One rank of four that hold a state in every way that gloo ranks can share one, and save it with a manager alone.

    python -m tests.testbed.programs.replicated_worker FOLDER RANK

The ranks are a mesh of two by two. Step 1 has the same values everywhere; at step 2 the last rank holds others, in one
tensor that is sharded in pairs and in one that is replicated in pairs.
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh
from torch.distributed.tensor import DTensor, Placement, Replicate, Shard

from strata.checkpoint import CheckpointManager

WORLD_SIZE = 4
REPLICATED = ("model.*", "optimizer.*")
ROWS, COLUMNS = 301, 128


def whole(number: int) -> torch.Tensor:
    """The values of a tensor, which no two tensors share."""
    return torch.arange(ROWS * COLUMNS, dtype=torch.float32).reshape(ROWS, COLUMNS) + number


def hold(number: int, mesh: DeviceMesh, placements: list[Placement], off: float) -> DTensor:
    """A tensor on a mesh; ``off`` is how far the values of this rank are off."""
    spread = DTensor.from_local(whole(number), mesh, [Replicate()] * mesh.ndim, run_check=False)
    held = spread.redistribute(mesh, placements)
    return DTensor.from_local(
        held.to_local() + off, mesh, placements, run_check=False, shape=held.shape, stride=held.stride()
    )


def build(rank: int, mesh: DeviceMesh, *, is_off: bool) -> dict[str, Any]:
    """The state of one rank."""
    off = float(is_off and rank == WORLD_SIZE - 1)
    model = {
        "hsdp": hold(1, mesh, [Replicate(), Shard(0)], off),
        "fsdp_over_tp": hold(2, mesh, [Shard(0), Shard(1)], 0.0),
        "replicated": hold(3, mesh, [Replicate(), Replicate()], 0.0),
        # On two of the four ranks, and on the other two alike: in neighbours, and in every second one.
        "tp": hold(4, mesh["tp"], [Shard(0)], off),
        "dp": hold(5, mesh["dp"], [Shard(1)], 0.0),
        "tp_bias": hold(6, mesh["tp"], [Replicate()], 0.0),
        "plain": whole(7),
        "small": torch.arange(7.0),
        "scalar": torch.tensor(5.0),
    }
    return {"model": model, "optimizer": {"step": torch.tensor(3)}, f"rng{rank}": torch.full((5,), rank), "epoch": 2}


def main(folder: Path, rank: int) -> None:
    """Save both steps; rank 0 commits them."""
    dist.init_process_group("gloo", init_method=f"file://{folder}/meet", rank=rank, world_size=WORLD_SIZE)
    mesh = init_device_mesh("cpu", (2, 2), mesh_dim_names=("dp", "tp"))
    with CheckpointManager(folder / "run", keep_count=None) as manager:
        for step in (1, 2):
            state = build(rank, mesh, is_off=step == 2)
            manager.save(state, step, part=rank, parts=WORLD_SIZE, replicated=REPLICATED)
            dist.barrier()
            if rank == 0:
                manager.commit(step)
            dist.barrier()
        # What was saved is read back onto the same meshes, by each rank what it holds.
        like = build(rank, mesh, is_off=True)
        restored = manager.load(1, like={"model": like["model"]}).data["model"]
        for name, expected in build(rank, mesh, is_off=False)["model"].items():
            found = restored[name]
            if isinstance(expected, DTensor):
                found, expected = found.to_local(), expected.to_local()
            if not torch.equal(found, expected):
                sys.exit(f"{name} came back with other values")
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    main(Path(sys.argv[1]), int(sys.argv[2]))
