"""What a training loop feels of its saves: lazy staging beside today's copy and DCP's asynchronous staging.

    python -m benchmarks.staging [--width 2048] [--layers 6] [--steps 40] [--every 5] [--json FILE]

A loop with a real forward, backward and AdamW step on one process. "blocked" is what one save adds to the thread that
trains: the call, and for lazy saves the wait before the next optimizer step; the median of the saves after the first
two, which fault memory in. "step p50" and "step p99" are over all steps, saves included. "none" saves nothing, and
"copy" is a plain copy of all tensors into warm memory.
"""

from __future__ import annotations

import argparse
import json
import logging
import os
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any


class Loop:
    """The model, its optimizer, and one training step."""

    def __init__(self, width: int, layers: int) -> None:
        import torch
        from torch import nn

        torch.set_num_threads(1)
        torch.manual_seed(0)
        blocks = [part for _ in range(layers) for part in (nn.Linear(width, width), nn.BatchNorm1d(width), nn.ReLU())]
        self.model = nn.Sequential(*blocks)
        self.optimizer = torch.optim.AdamW(self.model.parameters())
        self.batch = torch.randn(64, width)

    def state(self) -> dict[str, Any]:
        return {"model": self.model.state_dict(), "optimizer": self.optimizer.state_dict()}

    def backward(self) -> None:
        self.model(self.batch).square().mean().backward()

    def update(self) -> None:
        self.optimizer.step()
        self.optimizer.zero_grad()


def save_nothing(loop: Loop, folder: Path) -> Callable[[int], Any]:
    """Train and save nothing."""
    return lambda step: None


def copy_only(loop: Loop, folder: Path) -> Callable[[int], Any]:
    """Copy every tensor into memory that is warm, in the thread that trains."""
    warm: list[Any] = []

    def tensors(tree: Any) -> list[Any]:
        import torch

        if isinstance(tree, dict):
            return [leaf for value in tree.values() for leaf in tensors(value)]
        return [tree] if isinstance(tree, torch.Tensor) else []

    def save(step: int) -> None:
        found = tensors(loop.state())
        if len(warm) != len(found):
            warm[:] = [tensor.clone() for tensor in found]
        for target, tensor in zip(warm, found, strict=True):
            target.copy_(tensor)

    return save


def save_with_strata(loop: Loop, folder: Path, *, lazy: bool) -> Callable[[int], Any]:
    """Save in the background, staged before the call returns or lazily."""
    from strata.checkpoint import CheckpointManager

    manager = CheckpointManager(folder, keep_count=2)
    if lazy:
        manager.watch(loop.optimizer)
    return lambda step: manager.save_background(loop.state(), step, lazy=lazy)


def save_with_dcp(loop: Loop, folder: Path) -> Callable[[int], Any]:
    """Save with torch's asynchronous checkpoint, as its documentation has it."""
    import torch.distributed as dist
    import torch.distributed.checkpoint as dcp

    os.environ |= {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": "0"}
    dist.init_process_group("gloo", init_method=f"file://{folder}/meet", rank=0, world_size=1)
    last: list[Any] = []

    def save(step: int) -> None:
        if last:
            last.pop().result()
        last.append(dcp.async_save(loop.state(), checkpoint_id=folder / f"step_{step}"))

    return save


CONTESTANTS: dict[str, Callable[[Loop, Path], Callable[[int], Any]]] = {
    "none": save_nothing,
    "copy": copy_only,
    "lazy": lambda loop, folder: save_with_strata(loop, folder, lazy=True),
    "eager": lambda loop, folder: save_with_strata(loop, folder, lazy=False),
    "dcp": save_with_dcp,
}


def work(name: str, folder: Path, options: argparse.Namespace) -> dict[str, float]:
    """Train with one contestant's saves."""
    logging.disable(logging.WARNING)
    warnings.simplefilter("ignore")
    loop = Loop(options.width, options.layers)
    save = CONTESTANTS[name](loop, folder)
    step_s, blocked_s = [], []
    handle: Any = None
    for step in range(1, options.steps + 1):
        began_s = time.perf_counter()
        loop.backward()
        before = getattr(handle, "blocked_s", 0.0)
        loop.update()
        waited_s = getattr(handle, "blocked_s", 0.0) - before
        if waited_s and blocked_s:
            blocked_s[-1] += waited_s
        if step % options.every == 0:
            called_s = time.perf_counter()
            handle = save(step)
            blocked_s.append(time.perf_counter() - called_s)
        step_s.append(time.perf_counter() - began_s)
    step_s.sort()
    return {
        "blocked_ms": 1e3 * statistics.median(blocked_s[2:] or blocked_s or [0.0]),
        "step_p50_ms": 1e3 * step_s[len(step_s) // 2],
        "step_p99_ms": 1e3 * step_s[min(len(step_s) - 1, int(len(step_s) * 0.99))],
    }


def main() -> None:
    """Measure all contestants, each in a process of its own, and print a table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--width", type=int, default=2048)
    parser.add_argument("--layers", type=int, default=6)
    parser.add_argument("--steps", type=int, default=40)
    parser.add_argument("--every", type=int, default=5)
    parser.add_argument("--folder", type=Path, default=None)
    parser.add_argument("--json", type=Path, default=None)
    parser.add_argument("--only", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.only:
        print(json.dumps(work(options.only, options.folder, options)))
        sys.stdout.flush()
        return
    results = {}
    for name in CONTESTANTS:
        folder = Path(tempfile.mkdtemp(prefix="staging-", dir=options.folder))
        sizes = [f"--{key}={getattr(options, key)}" for key in ("width", "layers", "steps", "every")]
        command = [sys.executable, "-m", "benchmarks.staging", *sizes, f"--folder={folder}", f"--only={name}"]
        try:
            done = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=True, timeout=1800)
        finally:
            shutil.rmtree(folder, ignore_errors=True)
        results[name] = json.loads(done.stdout.splitlines()[-1])
        print(f"{name:8}" + "".join(f"{key}: {value:9.2f}   " for key, value in results[name].items()), flush=True)
    print(f"lazy blocks {results['lazy']['blocked_ms'] / results['copy']['blocked_ms']:.1%} of a warm copy")
    if options.json:
        options.json.write_text(json.dumps(results, indent=1))


if __name__ == "__main__":
    main()
