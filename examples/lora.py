"""LoRA fine-tuning of a tiny transformer: most of it is frozen, and a delta checkpoint holds only what changed."""

from __future__ import annotations

import sys
from pathlib import Path

import numpy as np
import strata
import torch
from strata.checkpoint import SavePolicy

WIDTH, LAYERS, RANK, LEVELS = 64, 2, 4, 1024


class LoraLinear(torch.nn.Module):
    """A frozen linear layer with a trainable product of two thin matrices beside it."""

    def __init__(self, inputs: int, outputs: int) -> None:
        super().__init__()
        self.base = torch.nn.Linear(inputs, outputs).requires_grad_(False)
        self.down = torch.nn.Parameter(torch.randn(RANK, inputs) / inputs**0.5)
        self.up = torch.nn.Parameter(torch.zeros(outputs, RANK))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.base(x) + x @ self.down.T @ self.up.T


class Block(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.mix, self.out = LoraLinear(WIDTH, 3 * WIDTH), LoraLinear(WIDTH, WIDTH)
        self.wide, self.narrow = LoraLinear(WIDTH, 2 * WIDTH), LoraLinear(2 * WIDTH, WIDTH)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        query, key, value = self.mix(x).chunk(3, dim=-1)
        x = x + self.out(torch.nn.functional.scaled_dot_product_attention(query, key, value))
        return x + self.narrow(torch.nn.functional.gelu(self.wide(x)))


class Tiny(torch.nn.Module):
    """64 numbers become 64 tokens of a large, frozen vocabulary; then a few blocks, and 10 classes."""

    def __init__(self) -> None:
        super().__init__()
        self.vocabulary = torch.nn.Embedding(64 * LEVELS, WIDTH).requires_grad_(False)
        self.blocks = torch.nn.Sequential(*(Block() for _ in range(LAYERS)))
        self.head = LoraLinear(WIDTH, 10)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        levels = ((x + 4) * LEVELS / 8).long().clamp(0, LEVELS - 1)
        return self.head(self.blocks(self.vocabulary(levels + torch.arange(64) * LEVELS)).mean(dim=1))


def main() -> None:
    folder = Path(sys.argv[1])
    torch.set_num_threads(1)
    torch.manual_seed(0)
    model = Tiny()
    adapters = {name: each for name, each in model.named_parameters() if each.requires_grad}
    frozen = {name: each for name, each in model.named_parameters() if not each.requires_grad}
    optimizer = torch.optim.SGD(adapters.values(), lr=0.1, momentum=0.9)
    state = {"frozen": frozen, "adapters": adapters, "optimizer": optimizer}
    options = {"saving": SavePolicy(delta=True, full_every=100), "keep_count": None}
    with strata.join(checkpoints=folder / "lora", save_every="5 steps", checkpoint_options=options) as run:
        data = run.dataset(folder / "data", order="global", global_batch_size=40, block_size=10, to="torch")
        for step in run.steps(state, data, until=20):
            with step:
                optimizer.zero_grad()
                loss = torch.nn.functional.cross_entropy(model(step.batch["x"]), step.batch["y"], reduction="sum")
                loss.backward()
                mine = torch.cat([each.grad.reshape(-1) for each in adapters.values()]).numpy()
                everyone = run.exchange(f"step {step.number}", mine.tobytes())
                total = sum(np.frombuffer(each, np.float32) for each in everyone) / 40
                at = 0
                for each in adapters.values():
                    each.grad.copy_(torch.from_numpy(total[at : at + each.numel()].reshape(each.shape)))
                    at += each.numel()
                optimizer.step()
                step.report(loss=loss.item())
        if run.rank == 0:
            for info in run.checkpoints.all_checkpoints():
                files = (folder / "lora").rglob(f"step_{info.step}/model*")
                print(f"step {info.step}: {sum(each.stat().st_size for each in files) / 1e6:.1f} MB written")


if __name__ == "__main__":
    main()
