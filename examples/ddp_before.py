"""A plain DDP script: torchrun --nproc-per-node=2 examples/ddp_before.py FOLDER."""

import sys
from pathlib import Path

import pyarrow.dataset as ds
import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, DistributedSampler, TensorDataset


def main() -> None:
    folder = Path(sys.argv[1])
    dist.init_process_group("gloo")
    torch.manual_seed(0)
    model = DistributedDataParallel(
        torch.nn.Sequential(torch.nn.Linear(64, 32), torch.nn.Tanh(), torch.nn.Linear(32, 10))
    )
    optimizer = torch.optim.Adam(model.parameters(), lr=0.01)
    table = ds.dataset(folder / "data").to_table()
    x = torch.tensor(table["x"].combine_chunks().flatten().to_numpy()).reshape(-1, 64)
    rows = TensorDataset(x, torch.tensor(table["y"].to_numpy()))
    sampler = DistributedSampler(rows, drop_last=True)
    loader = DataLoader(rows, batch_size=16, sampler=sampler, drop_last=True)
    for epoch in range(4):
        sampler.set_epoch(epoch)
        for x, y in loader:
            optimizer.zero_grad()
            loss = torch.nn.functional.cross_entropy(model(x), y)
            loss.backward()
            optimizer.step()
        if dist.get_rank() == 0:
            torch.save({"model": model.state_dict(), "optimizer": optimizer.state_dict()}, folder / f"epoch-{epoch}.pt")
    print(f"rank {dist.get_rank()}: loss {loss.item():.3f}")
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
