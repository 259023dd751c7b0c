"""One rank of a DDP training over gloo whose batches come from a torch loader with worker processes.

python -m tests.testbed.programs.ddp_loader FOLDER NAME RANK WORLD_SIZE NUM_WORKERS STEPS KIND

NAME is of this life of the job; it goes on where the state of the life before it was taken, if FOLDER has one. Rank 0
writes the samples that all ranks had in each step, in the order of ranks, and the merged state of their loaders.
"""

from __future__ import annotations

import json
import sys
from datetime import timedelta
from itertools import islice
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel
from torchdata.stateful_dataloader import StatefulDataLoader

from strata import Mixture
from strata.data import Dataset, open_dataset
from strata.integrations.torch_data import TorchDataset, merge_loader_states
from tests.testbed.data.rows import MemoryRows
from tests.testbed.pace import stretch

GLOBAL_BATCH = 12


def open_kind(kind: str, **share: Any) -> Dataset:
    """Return a mixture that stops or repeats; each iteration is without end."""

    def opened(rows: int, seed: int) -> Dataset:
        return open_dataset(
            MemoryRows(rows),
            batch_size=GLOBAL_BATCH,
            global_batch_size=GLOBAL_BATCH,
            order="global",
            shard_size=7,
            seed=seed,
            epochs=None,
            threads=1,
            to="torch",
            **share,
        )

    return Mixture([opened(61, 1), opened(40, 2)], [2, 1], seed=3, when_exhausted=kind)


def main() -> None:
    folder, name, rank, world_size, num_workers, steps, kind = sys.argv[1:]
    state_path = Path(folder) / "state.json"
    dist.init_process_group(
        "gloo",
        init_method=f"file://{folder}/store-{name}",
        rank=int(rank),
        world_size=int(world_size),
        timeout=timedelta(seconds=stretch(120)),
    )
    dataset = open_kind(kind, rank=int(rank), world_size=int(world_size))
    if state_path.exists():
        dataset.load_state_dict(json.loads(state_path.read_text()))
    loader = StatefulDataLoader(TorchDataset(dataset), batch_size=None, num_workers=int(num_workers))
    model = DistributedDataParallel(torch.nn.Linear(1, 1))
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-6)
    seen, state = [], None
    for batch in islice(loader, int(steps)):
        ids = batch["id"]
        optimizer.zero_grad()
        # A sum, because some ranks may have nothing of a short last batch.
        model(ids[:, None].float()).sum().backward()
        optimizer.step()
        everyone: list[Any] = [None] * int(world_size)
        dist.all_gather_object(everyone, ids.tolist())
        seen.append([number for each in everyone for number in each])
        state = loader.state_dict()
    states: list[Any] = [None] * int(world_size)
    dist.all_gather_object(states, state)
    weights = [torch.zeros(2) for _ in range(int(world_size))]
    dist.all_gather(weights, torch.cat([each.detach().reshape(-1) for each in model.parameters()]))
    assert all(torch.equal(weights[0], each) for each in weights)
    if rank == "0":
        (Path(folder) / f"seen-{name}.json").write_text(json.dumps(seen))
        state_path.write_text(json.dumps(merge_loader_states(states)))
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
