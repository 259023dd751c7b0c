"""Tensor parallel in pairs of ranks, and FSDP2 across the pairs: DTensors on a mesh of two dimensions as state."""

from __future__ import annotations

import sys
from pathlib import Path

import strata
import torch
import torch.distributed as dist
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, parallelize_module


def main() -> None:
    folder, until = Path(sys.argv[1]), int(sys.argv[2]) if len(sys.argv) > 2 else 40
    run = strata.join(checkpoints=folder / "tensor_parallel", save_every="10 steps")
    dist.init_process_group("gloo")
    torch.manual_seed(0)
    model = torch.nn.Sequential(torch.nn.Linear(64, 32), torch.nn.Tanh(), torch.nn.Linear(32, 10))
    width = 2 if dist.get_world_size() % 2 == 0 else 1
    mesh = init_device_mesh("cpu", (dist.get_world_size() // width, width), mesh_dim_names=("data", "tensor"))
    parallelize_module(model, mesh["tensor"], {"0": ColwiseParallel(), "2": RowwiseParallel()})
    fully_shard(model, mesh=mesh["data"])
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)
    for step in run.steps({"model": model, "optimizer": optimizer}, until=until, recover=False):
        with step:
            # The ranks of one pair must see the same batch.
            chance = torch.Generator().manual_seed(step.number * 1000 + mesh.get_local_rank("data"))
            x = torch.randn(16, 64, generator=chance)
            optimizer.zero_grad()
            loss = torch.nn.functional.cross_entropy(model(x), (x[:, :10]).argmax(dim=1))
            loss.backward()
            optimizer.step()
            step.report(loss=loss.item())
    loss = run.metrics.get("loss", float("nan"))  # none where the training was over already
    print(f"rank {run.rank} of {run.world_size}: step {run.step_number}, loss {loss:.3f}")
    dist.destroy_process_group()
    run.close()


if __name__ == "__main__":
    main()
