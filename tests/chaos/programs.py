"""The training scripts that faults are done to. Both say when they live and which steps they do, and hang on demand."""

from __future__ import annotations

_HEAD = """
import os, sys, time
from pathlib import Path
import numpy as np
import strata
folder, epochs = Path(sys.argv[1]), int(sys.argv[2])
rank = int(os.environ["RANK"])
def pace():
    hang = folder / f"hang-{rank}"
    if hang.exists():
        hang.unlink()
        time.sleep(10_000)
    if (folder / "slow").exists():
        time.sleep(0.2)
with strata.join(checkpoints=folder / "checkpoints", save_every="5 steps") as run:
    (folder / f"pid-{rank}").write_text(str(os.getpid()))
    print("life", rank, os.getpid(), flush=True)
    data = run.dataset(folder / "data", name="d", order="global", global_batch_size=48, seed=3)
"""
NUMPY = (
    _HEAD
    + """
    state = {"total": np.zeros(1, np.int64)}
    for step in run.steps(state, data, epochs=epochs):
        with step:
            mine = (step.batch["id"].astype("<i8") ** 2).sum()
            sums = run.exchange(f"sum/{step.number}", mine.tobytes())
            state["total"] += sum(int(np.frombuffer(each, "<i8")[0]) for each in sums)
            pace()
            print("step", step.number, flush=True)
    print("total", int(state["total"][0]), flush=True)
"""
)
DDP = (
    """
import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel
from strata.integrations.torch_process_group import init_process_group
"""
    + _HEAD
    + """
    init_process_group(run, "gloo")
    model = DistributedDataParallel(torch.nn.Linear(64, 1))
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-4)
    for step in run.steps({"model": model, "optimizer": optimizer}, data, epochs=epochs, recover=False):
        with step:
            optimizer.zero_grad()
            model(torch.as_tensor(np.array(step.batch["x"])).reshape(-1, 64)).sum().backward()
            pace()
            optimizer.step()
            print("step", step.number, flush=True)
    dist.destroy_process_group()
    print("total", 0, flush=True)
"""
)
PROGRAMS = {"numpy": NUMPY, "ddp": DDP}
