"""The coordinator's state machine alone: commands a second, and memory for large jobs.

    python -m benchmarks.cluster [--seconds 2] [--json FILE]

One process, one thread, no I/O: what is left of a core when the network and the journal cost nothing. Commands are
made beforehand, as a decoder would hand them over. Beside them stands what an empty dispatch costs: a dictionary of
functions by type, called with the same commands.
"""

from __future__ import annotations

import argparse
import json
import resource
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

from strata.cluster import Cluster, Limits
from strata.cluster import commands as c

WORKERS = 1_000


def main() -> None:
    """Run the command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seconds", type=float, default=2.0, help="how long to run each kind of command")
    parser.add_argument("--json", type=Path, help="also write the figures to this file")
    parser.add_argument("--memory", metavar="WORKERSxSHARDS", help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.memory:
        print(json.dumps(_memory(*map(int, arguments.memory.split("x")))))
        return
    figures: dict[str, float] = {}
    empty = _empty_dispatch(arguments.seconds)
    figures["empty dispatch/s"] = empty
    print(f"{'empty dispatch':28} {empty:>12,.0f}/s")
    for name, measure in (("heartbeat", _heartbeats), ("barrier arrival", _arrivals), ("progress report", _reports)):
        rate = measure(arguments.seconds)
        figures[f"{name}/s"] = rate
        print(f"{name:28} {rate:>12,.0f}/s {rate / empty:>6.2f} of empty")
    rate = _registrations()
    figures["registration/s"] = rate
    print(f"{'registration (to 1,000)':28} {rate:>12,.0f}/s")
    for size in ("1000x100000", "10000x1000000"):
        # In a process of its own, so that nothing before it counts.
        done = subprocess.run(
            [sys.executable, "-m", "benchmarks.cluster", "--memory", size], check=True, capture_output=True, text=True
        )
        row = json.loads(done.stdout)
        figures |= {f"{size} {name}": value for name, value in row.items()}
        print(f"{size:28} {row['memory_mb']:>8.0f} MB, set up in {row['setup_s']:.1f} s", end=", ")
        print(f"one leaves and all is dealt anew in {row['leave_ms']:.0f} ms")
    if arguments.json:
        arguments.json.write_text(json.dumps(figures, indent=2) + "\n")


def _cluster(workers: int, shards: int) -> Cluster:
    cluster = Cluster(Limits(max_workers_per_job=20_000))
    cluster.apply(c.RegisterDataset(dataset_id="d", total_samples=shards * 100, shard_size=100), 0.0)
    for number in range(workers):
        cluster.apply(c.RegisterWorker(worker_id=f"w{number}", incarnation="i"), 0.0)
    return cluster


def _rate(step: Callable[[], int], seconds: float) -> float:
    done, started = 0, time.perf_counter()
    while (elapsed := time.perf_counter() - started) < seconds:
        done += step()
    return done / elapsed


def _beats() -> list[c.Heartbeat]:
    training = c.WorkerState.TRAINING
    return [c.Heartbeat(worker_id=f"w{n}", incarnation="i", state=training, step=n) for n in range(WORKERS)]


def _empty_dispatch(seconds: float) -> float:
    handlers = {c.Heartbeat: lambda command, now_s: (None, [])}
    beats = _beats()

    def step() -> int:
        for beat in beats:
            handlers[type(beat)](beat, 1.0)
        return len(beats)

    return _rate(step, seconds)


def _heartbeats(seconds: float) -> float:
    cluster, beats = _cluster(WORKERS, 1_000), _beats()

    def step() -> int:
        for beat in beats:
            cluster.apply(beat, 1.0)
        return len(beats)

    return _rate(step, seconds)


def _arrivals(seconds: float) -> float:
    cluster = _cluster(WORKERS, 1_000)
    number = 0

    def step() -> int:
        nonlocal number
        number += 1
        for worker in range(WORKERS):
            cluster.apply(
                c.ArriveAtBarrier(worker_id=f"w{worker}", incarnation="i", generation=WORKERS, name=f"b{number}"), 1.0
            )
        return WORKERS

    return _rate(step, seconds)


def _reports(seconds: float) -> float:
    cluster = _cluster(WORKERS, 100_000)
    sequence = 0

    def step() -> int:
        nonlocal sequence
        sequence += 1
        for worker in range(WORKERS):
            shard, part = divmod(sequence - 1, 10)
            spans = (((worker * 100 + shard) % 100_000, part * 10, part * 10 + 10),)
            cluster.apply(
                c.ReportProgress(
                    worker_id=f"w{worker}",
                    incarnation="i",
                    generation=WORKERS,
                    sequence=sequence,
                    dataset_id="d",
                    epoch=0,
                    step=sequence,
                    spans=spans,
                ),
                1.0,
            )
        return WORKERS

    return _rate(step, seconds)


def _registrations() -> float:
    started = time.perf_counter()
    _cluster(WORKERS, 1_000)
    return WORKERS / (time.perf_counter() - started)


def _memory(workers: int, shards: int) -> dict[str, float]:
    pages = int(Path("/proc/self/statm").read_text().split()[1])
    base_kb = pages * resource.getpagesize() // 1024
    started = time.perf_counter()
    cluster = _cluster(workers, shards)
    lease = c.LeaseShards(worker_id="w0", incarnation="i", generation=workers, dataset_id="d", epoch=0)
    cluster.apply(lease, 1.0)
    setup_s = time.perf_counter() - started
    started = time.perf_counter()
    cluster.apply(c.Goodbye(worker_id="w1", incarnation="i"), 2.0)
    lease = c.LeaseShards(worker_id="w0", incarnation="i", generation=workers + 1, dataset_id="d", epoch=0)
    cluster.apply(lease, 2.0)
    leave_ms = (time.perf_counter() - started) * 1_000
    peak_mb = (resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - base_kb) / 1024
    return {"memory_mb": peak_mb, "setup_s": setup_s, "leave_ms": leave_ms}


if __name__ == "__main__":
    main()
