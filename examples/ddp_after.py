"""The same with Strata: data, state and position survive any failure, and go on at any number of workers."""

import sys
from pathlib import Path

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel

import strata


def main() -> None:
    folder = Path(sys.argv[1])
    run = strata.join(checkpoints=folder / "ddp", save_every="10 steps")
    dist.init_process_group("gloo")
    torch.manual_seed(0)
    model = DistributedDataParallel(
        torch.nn.Sequential(torch.nn.Linear(64, 32), torch.nn.Tanh(), torch.nn.Linear(32, 10))
    )
    optimizer = torch.optim.Adam(model.parameters(), lr=0.01)
    data = run.dataset(folder / "data", order="global", global_batch_size=32, drop_last=True, to="torch")
    for step in run.steps({"model": model, "optimizer": optimizer}, data, epochs=4, recover=False):
        with step:
            x, y = step.batch["x"], step.batch["y"]
            optimizer.zero_grad()
            loss = torch.nn.functional.cross_entropy(model(x), y)
            loss.backward()
            optimizer.step()
            step.report(loss=loss.item())
    print(f"rank {dist.get_rank()}: loss {loss.item():.3f}")
    dist.destroy_process_group()
    run.close()


if __name__ == "__main__":
    main()
