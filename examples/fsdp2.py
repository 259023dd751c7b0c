"""FSDP2: the sharded model and optimizer are the state as they are, and go on at any number of ranks."""

from __future__ import annotations

import sys
from pathlib import Path

import strata
import torch
import torch.distributed as dist
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard


def main() -> None:
    folder, until = Path(sys.argv[1]), int(sys.argv[2]) if len(sys.argv) > 2 else 40
    run = strata.join(checkpoints=folder / "fsdp2", save_every="10 steps")
    dist.init_process_group("gloo")
    torch.manual_seed(0)
    model = torch.nn.Sequential(torch.nn.Linear(64, 33), torch.nn.Tanh(), torch.nn.Linear(33, 10))
    mesh = init_device_mesh("cpu", (dist.get_world_size(),))
    for layer in (model[0], model[2], model):
        fully_shard(layer, mesh=mesh)
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)
    data = run.dataset(folder / "data", order="global", global_batch_size=36, drop_last=True, to="torch")
    for step in run.steps({"model": model, "optimizer": optimizer}, data, until=until, recover=False):
        with step:
            optimizer.zero_grad()
            loss = torch.nn.functional.cross_entropy(model(step.batch["x"]), step.batch["y"])
            loss.backward()
            optimizer.step()
            step.report(loss=loss.item())
    loss = run.metrics.get("loss", float("nan"))  # none where the training was over already
    print(f"rank {run.rank} of {run.world_size}: step {run.step_number}, loss {loss:.3f}")
    dist.destroy_process_group()
    run.close()


if __name__ == "__main__":
    main()
