"""This coordinator beside that of another commit: heartbeats, barriers, registrations, lookups and memory.

    git worktree add /tmp/other COMMIT
    python -m benchmarks.service.beside /tmp/other [--rounds 5] [--seconds 2]

Both run on this environment's libraries, work by work in turns, under the same load. Medians, with the quartiles of the
ratios of neighbouring rounds: the machine is shared, so a single round says little. What a checkout cannot serve, such
as HTTP before there was any, it is not asked for.
"""

from __future__ import annotations

import argparse
import os
import statistics
import subprocess
import sys
from pathlib import Path

from benchmarks.service.coordinator import LOAD, ROOT, Figures, memory_mb, run_load, serve_coordinator

WORKS = (
    ("heartbeats", 64, "heartbeats on 64 connections"),
    ("heartbeats", 1_000, "heartbeats on 1,000"),
    ("barriers", 100, "barriers of 100"),
    ("barriers", 1_000, "barriers of 1,000"),
    ("shards", 64, "shard lookups on 64"),
    ("registrations", 1_000, "durable registrations"),
)


def main() -> None:
    """Run the command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("other", type=Path, help="a checkout of the other commit")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--seconds", type=float, default=2.0, help="how long to run each kind of work")
    chosen = parser.parse_args()
    checkouts = {chosen.other: _has_http(chosen.other), ROOT: True}
    print(f"{'':30} {'other':>10} {'CPU each':>9} {'this':>10} {'CPU each':>9} {'ratio':>6} {'quartiles':>13}")
    for work, workers, name in WORKS:
        rounds = [
            [
                _measure(checkout, work, workers, chosen.seconds, has_http=has_http)
                for checkout, has_http in checkouts.items()
            ]
            for _ in range(chosen.rounds)
        ]
        _print_row(name, rounds)
    for checkout, has_http in checkouts.items():
        with serve_coordinator(checkout, has_http=has_http) as (_, port, pid):
            run_load(LOAD, "shards", port, pid, "--workers", 1_000, "--seconds", 1)
            print(f"memory, 1,000 workers, 100,000 shards: {memory_mb(pid):.0f} MB in {checkout}")


def _has_http(checkout: Path) -> bool:
    environment = {**os.environ, "PYTHONPATH": str(checkout / "src"), "COLUMNS": "200"}
    command = [sys.executable, "-m", "strata", "coordinator", "--help"]
    return "--http-port" in subprocess.run(command, env=environment, capture_output=True, text=True, check=True).stdout


def _measure(checkout: Path, work: str, workers: int, seconds: float, *, has_http: bool) -> Figures:
    with serve_coordinator(checkout, has_http=has_http) as (_, port, pid):
        return run_load(LOAD, work, port, pid, "--workers", workers, "--seconds", seconds)


def _print_row(name: str, rounds: list[list[Figures]]) -> None:
    speeds = [statistics.median(each["per_second"] for each in side) for side in zip(*rounds, strict=True)]
    costs_us = [
        statistics.median(1e6 * each["server_cpu"] / each["per_second"] for each in side)
        for side in zip(*rounds, strict=True)
    ]
    ratios = sorted(this["per_second"] / other["per_second"] for other, this in rounds)
    low, middle, high = statistics.quantiles(ratios, n=4, method="inclusive")
    print(
        f"{name:30} {speeds[0]:>8,.0f}/s {costs_us[0]:>6,.1f} us {speeds[1]:>8,.0f}/s {costs_us[1]:>6,.1f} us "
        f"{middle:>6.2f} {low:>6.2f}-{high:.2f}",
        flush=True,
    )


if __name__ == "__main__":
    main()
