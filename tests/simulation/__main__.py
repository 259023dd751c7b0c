"""``make simulate SEEDS=100000``: run many seeds with a progress bar, and summarise them."""

from __future__ import annotations

import argparse
import sys
import time
from collections import Counter

from rich.console import Console
from rich.progress import MofNCompleteColumn, Progress, TimeRemainingColumn

from tests.simulation.search import run_seeds


def main() -> None:
    """Run the command line."""
    parser = argparse.ArgumentParser(prog="python -m tests.simulation", description=__doc__)
    parser.add_argument("--seeds", type=int, default=10_000, help="how many worlds to run")
    parser.add_argument("--start", type=int, default=0, help="the first seed")
    parser.add_argument("--processes", type=int, default=2)
    arguments = parser.parse_args()
    seeds = range(arguments.start, arguments.start + arguments.seeds)
    started_s = time.monotonic()
    tally: Counter[str] = Counter()
    failures = []
    columns = (*Progress.get_default_columns()[:2], MofNCompleteColumn(), TimeRemainingColumn())
    with Progress(*columns, console=Console(stderr=True)) as progress:
        bar = progress.add_task("worlds", total=len(seeds))
        for done, counted, failed in run_seeds(seeds, processes=arguments.processes):
            tally += counted
            failures += failed
            progress.advance(bar, done)
    elapsed_s = time.monotonic() - started_s
    print(f"seeds {seeds.start} to {seeds.stop - 1}: {len(failures)} failures in {elapsed_s:.0f} s")
    for what, count in sorted(tally.items()):
        print(f"  {what:18} {count:>12,}")
    for failure in failures[:3]:
        print(failure)
    sys.exit(1 if failures else 0)


if __name__ == "__main__":
    main()
