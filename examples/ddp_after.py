"""The same with Strata: data, state and position survive any failure, and go on at any number of workers."""

import sys
from pathlib import Path

import strata
import torch
import torch.distributed as dist
from strata.integrations.torch_process_group import init_process_group
from torch.nn.parallel import DistributedDataParallel


def main() -> None:
    folder = Path(sys.argv[1])
    run = strata.join(checkpoints=folder / "ddp", save_every="10 steps")
    init_process_group(run, "gloo")
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
    print(f"rank {run.rank}: step {run.step_number}, loss {run.metrics.get('loss', float('nan')):.3f}")
    dist.destroy_process_group()
    run.close()


if __name__ == "__main__":
    main()
