"""What it costs to keep checkpoints repairable: saves of replicas with and without copies of what others write.

    python -m benchmarks.replicas [--size-mb 384] [--ranks 3] [--rounds 5] [--folder DIR]

Each rank holds the same state and saves it through one coordinator. "blocked" is how long save_background() holds up
its caller, "committed" from the call to the commit, "copy" a plain copy of what a rank writes, as the raw limit.
"memory" is what a rank has on top of its state, "CPU" what it computes per save, and "written" the bytes of
all files as a ratio to the state. "repaired" has one bit in each block of one rank's replica flipped, so that
all that it has written is written again. Times are those of the slowest rank, the median of the rounds.
"""

from __future__ import annotations

import argparse
import json
import logging
import os
import statistics
import subprocess
import sys
import tempfile
import time
import warnings
from pathlib import Path

import numpy as np

from benchmarks.service.coordinator import ROOT, serve_coordinator
from benchmarks.tools.measure import measure

TENSORS = 24
# What runs: the policy, and whether rank 1 is corrupt.
CASES = {"warn": ("warn", False), "majority": ("majority", False), "repaired": ("majority", True)}


def work(folder: Path, url: str, rank: int, ranks: int, size_mb: int, rounds: int, case: str) -> dict[str, list[float]]:
    """One rank's measurements."""
    from strata.checkpoint import CheckpointManager, SavePolicy
    from strata.client.client import Client

    logging.disable(logging.ERROR)
    warnings.simplefilter("ignore")
    policy, corrupts = CASES[case]
    state = {f"t{number}": np.ones((size_mb << 20) // TENSORS // 4, np.float32) for number in range(TENSORS)}
    found: dict[str, list[float]] = {"blocked_s": [], "committed_s": [], "cpu_s": [], "memory_mb": [], "copy_s": []}
    with (
        Client(url, f"w{rank}", job_id=case, preferred_rank=rank) as client,
        CheckpointManager(folder, job_id=case, coordinator=client, saving=SavePolicy(on_divergence=policy)) as manager,
    ):
        client.wait_registered()
        while client.get_rank_info().world_size < ranks:
            time.sleep(0.01)
        for tensor in state.values():
            tensor[:] = 0  # so that its memory is there
        memory_before_mb = read_memory_mb()
        for step in range(1, rounds + 2):
            for tensor in state.values():
                tensor[:] = step
                if corrupts and rank == 1:
                    tensor[::1_000] += 1
            client.meet(f"step {step}", timeout_s=120)
            with measure() as cost:
                began_s = time.perf_counter()
                handle = manager.save_background(state, step, replicated="*")
                blocked_s = time.perf_counter() - began_s
                handle.result(600)
            if step == 1:
                continue  # the first one also gets its memory
            memory_mb = read_memory_mb() - memory_before_mb
            share = next(iter(state.values()))
            began_s = time.perf_counter()
            for _ in range(TENSORS // ranks):
                share.copy()
            copy_s = time.perf_counter() - began_s
            for name, value in zip(found, (blocked_s, cost.elapsed_s, cost.cpu_s, memory_mb, copy_s), strict=True):
                found[name].append(value)
    return found


def read_memory_mb() -> float:
    """Return the memory of this process."""
    pages = int(Path("/proc/self/statm").read_text().split()[1])
    return pages * os.sysconf("SC_PAGE_SIZE") / 2**20


def run_case(folder: Path, url: str, options: argparse.Namespace, case: str) -> dict[str, float]:
    """Run all ranks, and return the slowest one's figures."""
    command = [sys.executable, "-m", "benchmarks.replicas", "--folder", str(folder), "--size-mb", str(options.size_mb)]
    command += ["--ranks", str(options.ranks), "--rounds", str(options.rounds), "--rank-of", url, case]
    processes = [
        subprocess.Popen([*command, str(rank)], stdout=subprocess.PIPE, text=True) for rank in range(options.ranks)
    ]
    said = [process.communicate(timeout=1800)[0] for process in processes]
    if any(process.returncode for process in processes):
        raise RuntimeError(f"a rank of {case} failed")
    figures = [json.loads(text.splitlines()[-1]) for text in said]
    return {
        name: statistics.median(map(max, zip(*(each[name] for each in figures), strict=True))) for name in figures[0]
    }


def main() -> None:
    """Run the command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--size-mb", type=int, default=384, help="the state of each rank")
    parser.add_argument("--ranks", type=int, default=3)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--folder", type=Path, default=None)
    parser.add_argument("--rank-of", nargs=3, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.rank_of:
        url, case, rank = options.rank_of
        given = options.folder, url, int(rank), options.ranks, options.size_mb, options.rounds, case
        print(json.dumps(work(*given)))
        return
    print(f"{options.ranks} ranks, {options.size_mb} MB each, all of it replicated")
    print(f"{'':10} {'blocked':>9} {'copy':>9} {'committed':>10} {'CPU':>8} {'memory':>8} {'written':>8}")
    for case in CASES:
        with (
            tempfile.TemporaryDirectory(prefix="replicas-", dir=options.folder) as folder,
            serve_coordinator(ROOT, has_http=False) as (port, _, _),
        ):
            found = run_case(Path(folder), f"127.0.0.1:{port}", options, case)
            files = [path for path in Path(folder).rglob("*") if path.is_file()]
            steps = {path.parent for path in files if path.parent.name.startswith("step_")}
            written = sum(path.stat().st_size for path in files) / len(steps) / (options.size_mb << 20)
        print(
            f"{case:10} {found['blocked_s'] * 1e3:6.0f} ms {found['copy_s'] * 1e3:6.0f} ms"
            f" {found['committed_s']:8.2f} s {found['cpu_s']:6.2f} s {found['memory_mb']:5.0f} MB {written:8.2f}"
        )


if __name__ == "__main__":
    main()
