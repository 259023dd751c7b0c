"""One rank of a torch job that saves sharded state and restores it on another mesh, again and again.

python -m tests.testbed.programs.sharded_worker FOLDER RANK WORLD_SIZE PHASE...

A phase is a parallelism and how many ranks take part, such as fsdp:3. In the first one these train two steps, save, and
write the whole tensors down. In every other one they restore what the phase before saved into a model with other
values, compare each bit, save it, and compare the next training step with and without a restore.
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import numpy as np
import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.checkpoint.state_dict import get_optimizer_state_dict, set_optimizer_state_dict
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor import DTensor
from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, parallelize_module

from strata.checkpoint import CheckpointManager
from strata.run.loop.state import put_back, spread, to_like, to_tree


class Model(nn.Module):
    """Shapes that no number of ranks divides: some ranks hold nothing of some of them."""

    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Linear(3, 6)
        self.second = nn.Linear(6, 5)
        self.norm = nn.BatchNorm1d(5)
        self.last = nn.Linear(5, 3, bias=False)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.last(self.norm(self.second(self.first(x).relu())).relu())


MESHES = {"fsdp": ("shard",), "hsdp": ("dp", "shard"), "tp": ("dp", "tp"), "tp-fsdp": ("dp", "tp")}


def make_mesh(parallelism: str, ranks: int) -> DeviceMesh | None:
    """A mesh of the first ranks; all ranks of the job must call it."""
    names = MESHES.get(parallelism)
    if names is None:
        return None
    shape = (ranks,) if len(names) == 1 else (ranks // 2, 2)
    return DeviceMesh("cpu", torch.arange(ranks).reshape(shape), mesh_dim_names=names)


def build(parallelism: str, mesh: DeviceMesh | None, seed: int) -> dict[str, Any]:
    """Make model and optimizer, sharded as asked, with values that depend on the seed alone."""
    torch.manual_seed(seed)
    model = Model()
    if parallelism in ("fsdp", "hsdp"):
        fully_shard(model, mesh=mesh)
    elif mesh is not None:
        parallelize_module(model, mesh["tp"], {"first": ColwiseParallel(), "second": RowwiseParallel()})
        if parallelism == "tp-fsdp":
            fully_shard(model, mesh=mesh["dp"])
    return {"model": model, "optimizer": torch.optim.AdamW(model.parameters(), lr=0.01)}


def train(state: dict[str, Any], step: int) -> None:
    """Do one step on data that depends on the step alone."""
    torch.manual_seed(step)
    state["model"](torch.randn(8, 3)).square().mean().backward()
    state["optimizer"].step()
    state["optimizer"].zero_grad()


def whole(tree: Any, path: str = "") -> dict[str, Any]:
    """Every tensor of a tree, gathered from all ranks."""
    if isinstance(tree, dict):
        return {name: each for key, value in tree.items() for name, each in whole(value, f"{path}/{key}").items()}
    if isinstance(tree, DTensor):
        tree = tree.full_tensor()
    return {path: tree.detach().numpy()} if isinstance(tree, torch.Tensor) else {}


def compare(found: dict[str, Any], expected: Any, what: str) -> None:
    """Exit unless all bits are the same."""
    wrong = [name for name in expected if not np.array_equal(found[name], expected[name])]
    if wrong or set(found) != set(expected):
        sys.exit(f"{what}: {wrong or set(found) ^ set(expected)} differ")


class Phase:
    """One rank's part in one phase."""

    def __init__(self, folder: Path, rank: int, ranks: int, parallelism: str, step: int) -> None:
        self.rank, self.ranks, self.parallelism, self.step = rank, ranks, parallelism, step
        self.reference = folder / "whole.npz"
        self.manager = CheckpointManager(folder / "run", keep_count=None)
        self.mesh = make_mesh(parallelism, ranks)

    def build(self, seed: int) -> dict[str, Any]:
        """A model that nothing was restored into."""
        return build(self.parallelism, self.mesh, self.step * 10 + seed)

    def begin(self) -> None:
        """Train, save in two forms, and write down what was saved."""
        state = self.build(0)
        train(state, 1)
        train(state, 2)
        self.save(to_tree(state), 1)
        by_name = get_optimizer_state_dict(state["model"], state["optimizer"])
        self.save({"model": state["model"].state_dict(), "optimizer": by_name}, 1000)
        full = whole(to_tree(state))
        if self.rank == 0:
            np.savez(self.reference, **full)

    def go_on(self) -> None:
        """Restore in two forms, compare, and save."""
        where = f"{self.parallelism} on {self.ranks} ranks"
        expected = np.load(self.reference)
        state, other, again = (self.build(seed) for seed in range(3))
        put_back(state, self.manager.load(self.step - 1, like=to_like(state)).data)
        compare(whole(to_tree(state)), expected, where)
        by_name = get_optimizer_state_dict(other["model"], other["optimizer"])
        like = {"model": other["model"].state_dict(), "optimizer": by_name}
        restored = self.manager.load(1000, like=like).data
        set_optimizer_state_dict(other["model"], other["optimizer"], restored["optimizer"])
        compare(whole(to_tree(other)), expected, f"{where}, by name")
        self.save(to_tree(state), self.step)
        put_back(again, self.manager.load(self.step - 1, like=to_like(again)).data)
        for each in (state, again):
            train(each, self.step)
        compare(whole(to_tree(again)), whole(to_tree(state)), f"{where}, a step later")

    def save(self, tree: Any, step: int) -> None:
        """Save this rank's part."""
        tree = spread(tree, rank=self.rank, world_size=self.ranks)
        self.manager.save(tree, step, part=self.rank, parts=self.ranks)


def main(folder: Path, rank: int, world_size: int, phases: list[str]) -> None:
    """Go through all phases, all ranks together."""
    dist.init_process_group("gloo", init_method=f"file://{folder}/meet", rank=rank, world_size=world_size)
    for step, (parallelism, ranks) in enumerate((each.split(":") for each in phases), start=1):
        phase = Phase(folder, rank, int(ranks), parallelism, step)
        if rank < int(ranks):
            phase.begin() if step == 1 else phase.go_on()
        dist.barrier()
        if rank == 0 and int(ranks) > 1:
            for saved in [1, 1000] if step == 1 else [step]:
                phase.manager.commit(saved)
        phase.manager.close()
        dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    main(Path(sys.argv[1]), int(sys.argv[2]), int(sys.argv[3]), sys.argv[4:])
