"""Dropout that is bit-identical for any number of workers: seeds by block, and gradients that are added up by block."""

from __future__ import annotations

import sys
from pathlib import Path

import numpy as np
import strata
import torch

BATCH, BLOCK = 40, 5


def block_gradient(model: torch.nn.Module, batch: dict[str, torch.Tensor]) -> np.ndarray:
    """Return the gradient of a block's samples as one vector, and their loss behind it."""
    model.zero_grad()
    loss = torch.nn.functional.cross_entropy(model(batch["x"]), batch["y"], reduction="sum")
    loss.backward()
    return torch.cat([*(each.grad.reshape(-1) for each in model.parameters()), loss.detach().reshape(1)]).numpy()


def main() -> None:
    folder = Path(sys.argv[1])
    torch.set_num_threads(1)  # sums are split among threads, so their number must stay the same
    torch.manual_seed(0)
    model = torch.nn.Sequential(
        torch.nn.Linear(64, 128), torch.nn.ReLU(), torch.nn.Dropout(0.5), torch.nn.Linear(128, 10)
    )
    sizes = [*(each.numel() for each in model.parameters()), 1]
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    with strata.join(checkpoints=folder / "dropout", save_every="5 steps", seed=1) as run:
        data = run.dataset(folder / "data", order="global", global_batch_size=BATCH, block_size=BLOCK, to="torch")
        for step in run.steps({"model": model, "optimizer": optimizer}, data, until=30):
            with step:
                mine = []
                for block in step.blocks():
                    with step.seeded(block):
                        mine.append(block_gradient(model, block.batch))
                everyone = run.exchange(f"gradients {step.number}", b"".join(each.tobytes() for each in mine))
                # Ranks have their blocks in sequence, so this is the order of the blocks, whoever had them.
                vectors = np.frombuffer(b"".join(everyone), np.float32).reshape(-1, sum(sizes))
                total = vectors[0].copy()
                for each in vectors[1:]:
                    total += each
                *gradient, loss = torch.from_numpy(total / BATCH).split(sizes)
                for parameter, values in zip(model.parameters(), gradient, strict=True):
                    parameter.grad = values.reshape(parameter.shape)
                optimizer.step()
                step.report(loss=loss.item())
                if run.rank == 0:
                    print(f"step {step.number}: loss {loss.item():.9g}", flush=True)


if __name__ == "__main__":
    main()
