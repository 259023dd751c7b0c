"""Sharded state beside torch's DCP: the same FSDP2 model and AdamW over gloo ranks on this machine and disk.

    python -m benchmarks.sharded [--size-mb 512] [--ranks 2] [--rounds 3] [--folder DIR] [--json FILE]

"save" is from the call until the bytes are on the device (DCP syncs its files too), "blocked" is how long
an asynchronous save holds up its caller, and "restore" fills a model that is there, with the page cache emptied first.
Times are of the slowest rank, the best of the rounds. "disk" is what all files take, as a ratio to the tensors, and
"peak" is the memory of a rank on top of what it had, the largest of the ranks. "elsewhere" is a restore of the
same checkpoint on half as many ranks.
"""

from __future__ import annotations

import argparse
import json
import logging
import os
import shutil
import socket
import subprocess
import sys
import tempfile
import time
import warnings
from pathlib import Path
from typing import Any, Protocol

from benchmarks.tools.measure import measure

WIDTH = 1024


class Contestant(Protocol):
    """One way to keep a sharded state; all ranks call the same methods."""

    def save(self, state: dict[str, Any], step: int) -> None: ...
    def blocked(self, state: dict[str, Any], step: int) -> float: ...
    def restore(self, state: dict[str, Any], step: int) -> None: ...


class Strata:
    """Every rank writes its part; rank 0 commits when all have."""

    def __init__(self, folder: Path, rank: int, ranks: int) -> None:
        from strata.checkpoint import CheckpointManager

        self.manager = CheckpointManager(folder / "strata", keep_count=None)
        self.place = {"part": rank, "parts": ranks}

    def save(self, state: dict[str, Any], step: int) -> None:
        from strata.run.loop.state import to_tree

        self.manager.save(to_tree(state), step, **self.place)
        self._commit(step)

    def blocked(self, state: dict[str, Any], step: int) -> float:
        from strata.run.loop.state import to_tree

        began_s = time.perf_counter()
        handle = self.manager.save_background(to_tree(state), step, **self.place)
        blocked_s = time.perf_counter() - began_s
        handle.result(600)
        self._commit(step)
        return blocked_s

    def restore(self, state: dict[str, Any], step: int) -> None:
        from strata.run.loop.state import put_back, to_like

        put_back(state, self.manager.load(step, like=to_like(state)).data)

    def _commit(self, step: int) -> None:
        import torch.distributed as dist

        dist.barrier()
        if self.place["part"] == 0 and self.place["parts"] > 1:
            self.manager.commit(step)
        dist.barrier()


class Dcp:
    """torch.distributed.checkpoint as its documentation has it, with fsync."""

    def __init__(self, folder: Path, rank: int, ranks: int) -> None:
        self.folder, self.rank = folder / "dcp", rank

    def save(self, state: dict[str, Any], step: int) -> None:
        import torch.distributed as dist
        import torch.distributed.checkpoint as dcp

        path = self.folder / f"step_{step}"
        dcp.save(self._tree(state), storage_writer=dcp.FileSystemWriter(path, sync_files=True))
        dist.barrier()

    def blocked(self, state: dict[str, Any], step: int) -> float:
        import torch.distributed.checkpoint as dcp

        began_s = time.perf_counter()
        future = dcp.async_save(self._tree(state), storage_writer=dcp.FileSystemWriter(self.folder / f"step_{step}"))
        blocked_s = time.perf_counter() - began_s
        future.result()
        return blocked_s

    def restore(self, state: dict[str, Any], step: int) -> None:
        import torch.distributed.checkpoint as dcp
        from torch.distributed.checkpoint.state_dict import set_state_dict

        tree = self._tree(state)
        dcp.load(tree, checkpoint_id=self.folder / f"step_{step}")
        set_state_dict(
            state["model"], state["optimizer"], model_state_dict=tree["model"], optim_state_dict=tree["optimizer"]
        )

    def _tree(self, state: dict[str, Any]) -> dict[str, Any]:
        from torch.distributed.checkpoint.state_dict import get_state_dict

        model, optimizer = get_state_dict(state["model"], state["optimizer"])
        return {"model": model, "optimizer": optimizer}


CONTESTANTS: dict[str, type[Strata | Dcp]] = {"strata": Strata, "dcp": Dcp}


def build(size_mb: int, ranks: int) -> dict[str, Any]:
    """A model that has this size with its optimizer's state, after one step."""
    import torch
    from torch import nn
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.fsdp import fully_shard

    layers = max(1, (size_mb << 20) // (3 * 4 * WIDTH * WIDTH))
    model = nn.Sequential(*(nn.Linear(WIDTH, WIDTH, bias=False) for _ in range(layers)))
    mesh = init_device_mesh("cpu", (ranks,))
    for layer in model:
        fully_shard(layer, mesh=mesh)
    fully_shard(model, mesh=mesh)
    optimizer = torch.optim.AdamW(model.parameters())
    for parameter in model.parameters():
        parameter.grad = torch.zeros_like(parameter)
    optimizer.step()
    optimizer.zero_grad()
    return {"model": model, "optimizer": optimizer}


def work(folder: Path, name: str, what: str, size_mb: int, rounds: int) -> dict[str, float]:
    """One rank's measurements."""
    import torch.distributed as dist

    logging.disable(logging.WARNING)
    warnings.simplefilter("ignore")
    dist.init_process_group("cpu:gloo")
    rank, ranks = dist.get_rank(), dist.get_world_size()
    state = build(size_mb, ranks)
    contestant: Contestant = CONTESTANTS[name](folder, rank, ranks)
    found: dict[str, list[float]] = {}
    for number in range(rounds):
        if what == "save":
            with measure() as cost:
                contestant.save(state, 2 * number)
            found.setdefault("save_s", []).append(cost.elapsed_s)
            found.setdefault("save_peak_mb", []).append(cost.peak_bytes / 2**20)
            found.setdefault("blocked_s", []).append(contestant.blocked(state, 2 * number + 1))
        else:
            drop_cache(folder)
            dist.barrier()
            with measure() as cost:
                contestant.restore(state, 0)
            found.setdefault("restore_s", []).append(cost.elapsed_s)
            found.setdefault("restore_peak_mb", []).append(cost.peak_bytes / 2**20)
    dist.barrier()
    dist.destroy_process_group()
    return {key: max(values) if key.endswith("mb") else min(values) for key, values in found.items()}


def drop_cache(folder: Path) -> None:
    """Empty the page cache of all files."""
    for path in folder.rglob("*"):
        if path.is_file():
            with path.open("rb") as file:
                os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)


def run_ranks(folder: Path, name: str, what: str, options: argparse.Namespace, ranks: int) -> dict[str, float]:
    """Run all ranks, and return the slowest one's figures."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    common = {**os.environ, "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port), "WORLD_SIZE": str(ranks)}
    command = [sys.executable, "-m", "benchmarks.sharded", "--size-mb", str(options.size_mb)]
    command += ["--rounds", str(options.rounds), "--folder", str(folder), "--rank-of", name, what]
    processes = [
        subprocess.Popen(command, env={**common, "RANK": str(rank)}, stdout=subprocess.PIPE, text=True)
        for rank in range(ranks)
    ]
    said = [process.communicate(timeout=1800)[0] for process in processes]
    if any(process.returncode for process in processes):
        raise RuntimeError(f"a rank of {name} failed")
    figures = [json.loads(text.splitlines()[-1]) for text in said]
    return {key: max(each[key] for each in figures) for key in figures[0]}


def main() -> None:
    """Measure all contestants, print a table, and write JSON if asked."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--size-mb", type=int, default=512)
    parser.add_argument("--ranks", type=int, default=2)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--folder", type=Path, default=None)
    parser.add_argument("--json", type=Path, default=None)
    parser.add_argument("--rank-of", nargs=2, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.rank_of:
        print(json.dumps(work(options.folder, *options.rank_of, options.size_mb, options.rounds)))
        return
    results: dict[str, dict[str, float]] = {}
    for name in CONTESTANTS:
        folder = Path(tempfile.mkdtemp(prefix="sharded-", dir=options.folder))
        try:
            figures = run_ranks(folder, name, "save", options, options.ranks)
            files = [path for path in folder.rglob("*") if path.is_file()]
            saves = 2 * options.rounds
            figures["disk_ratio"] = sum(path.stat().st_size for path in files) / saves / (options.size_mb << 20)
            figures |= run_ranks(folder, name, "restore", options, options.ranks)
            fewer = run_ranks(folder, name, "restore", options, max(1, options.ranks // 2))
            figures["elsewhere_s"] = fewer["restore_s"]
        finally:
            shutil.rmtree(folder)
        results[name] = figures
    for key in results["strata"]:
        print(f"{key:16}" + "".join(f"{name}: {figures[key]:10.3f}   " for name, figures in results.items()))
    if options.json:
        options.json.write_text(json.dumps(results, indent=1))


if __name__ == "__main__":
    main()
