"""A training script with torch's dropout, which writes the loss of each of its steps to FOLDER/said, to the last bit.

python -m tests.testbed.programs.dropout_worker FOLDER UNTIL PACE_S [--blocks] [--local]

With --blocks random numbers and sums are by block; without it each rank draws its own, as most scripts do.
"""

from __future__ import annotations

import hashlib
import json
import os
import sys
import time
from pathlib import Path
from typing import Any

import numpy as np
import torch

import strata

BATCH, BLOCK, INPUTS = 12, 2, 16


def say(folder: Path, **fields: Any) -> None:
    with (folder / "said" / str(os.getpid())).open("a") as file:
        file.write(json.dumps(fields) + "\n")


def main() -> None:
    folder, until, pace_s = Path(sys.argv[1]), int(sys.argv[2]), float(sys.argv[3])
    torch.set_num_threads(1)
    torch.manual_seed(0)
    model = torch.nn.Sequential(torch.nn.Linear(INPUTS, 32), torch.nn.Dropout(0.5), torch.nn.Linear(32, 1))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.002, momentum=0.9)
    is_local = "--local" in sys.argv
    with strata.join(checkpoints=folder / "checkpoints", save_every="5 steps", local=is_local) as run:
        data = run.dataset(
            folder / "data", name="d", order="global", global_batch_size=BATCH, block_size=BLOCK, seed=3, to="torch"
        )
        for step in run.steps({"model": model, "optimizer": optimizer}, data, until=until):
            with step:
                loss = train(run, model, optimizer, step, is_by_block="--blocks" in sys.argv)
                time.sleep(pace_s)
                say(
                    folder, step=step.number, loss=loss.hex(), rank=run.rank, world_size=run.world_size, pid=os.getpid()
                )
    weights = b"".join(each.detach().numpy().tobytes() for each in model.parameters())
    say(folder, weights=hashlib.sha256(weights).hexdigest())


def train(
    run: strata.Run, model: torch.nn.Module, optimizer: torch.optim.Optimizer, step: strata.Step, *, is_by_block: bool
) -> float:
    """Take a step; return the loss of all samples, or of this rank's."""
    if is_by_block:
        mine = []
        for block in step.blocks():
            with step.seeded(block):
                mine.append(find_gradient(model, block.batch["id"]))
    else:
        mine = [find_gradient(model, step.batch["id"])]
    own = np.concatenate(mine) if mine else np.empty(0, np.float32)
    everyone = b"".join(run.exchange(f"gradients {step.number}", own.tobytes()))
    vectors = np.frombuffer(everyone, np.float32).reshape(-1, sum(map(torch.numel, model.parameters())) + 1)
    total = vectors[0].copy()
    for each in vectors[1:]:
        total += each
    at = 0
    for parameter in model.parameters():
        values = torch.from_numpy(total[at : at + parameter.numel()] / BATCH)
        parameter.grad = values.reshape(parameter.shape)
        at += parameter.numel()
    optimizer.step()
    return float(total[-1] if is_by_block else mine[0][-1])


def find_gradient(model: torch.nn.Module, ids: torch.Tensor) -> Any:
    """Return the gradient of some samples as one vector, and their loss behind it."""
    x = torch.sin(ids[:, None].float() * torch.arange(1, INPUTS + 1))
    model.zero_grad()
    loss = ((model(x) - x.sum(1, keepdim=True)) ** 2).sum()
    loss.backward()
    return torch.cat([*(each.grad.reshape(-1) for each in model.parameters()), loss.detach().reshape(1)]).numpy()


if __name__ == "__main__":
    main()
