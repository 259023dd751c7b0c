"""``make simulate SEEDS=100000``: run many seeds with a progress bar, and summarise them."""

from __future__ import annotations

import argparse
import sys
import time
from collections import Counter
from concurrent.futures import ProcessPoolExecutor
from contextlib import suppress
from multiprocessing import get_context

from rich.console import Console
from rich.progress import MofNCompleteColumn, Progress, TimeRemainingColumn

from tests.simulation.bugs import BUGS, DISPATCHER_BUGS, REPLICA_BUGS
from tests.simulation.dispatching.dispatcher_world import DispatcherWorld
from tests.simulation.replicas.replica_world import ReplicaWorld
from tests.simulation.search import find_bug, run_seeds, run_worlds


def find_bugs(seeds: range, processes: int) -> int:
    """Look for every planted bug; return how many stayed unseen."""
    unseen = 0
    bugs = [*DISPATCHER_BUGS, *REPLICA_BUGS, *BUGS]
    with ProcessPoolExecutor(processes, mp_context=get_context("spawn")) as pool:
        for number, found in enumerate(pool.map(find_bug, bugs, [seeds] * len(bugs))):
            unseen += found is None
            worlds = "NOT FOUND" if found is None else f"{found - seeds.start + 1} worlds"
            print(f"  {bugs[number].__name__.replace('_', ' '):60} {worlds}", flush=True)
    print(f"{len(bugs) - unseen} of {len(bugs)} planted bugs are found within {len(seeds)} worlds")
    return unseen


def _run_worlds(kind: type[ReplicaWorld | DispatcherWorld], name: str, seeds: range) -> int:
    tally, failures = run_worlds(kind, seeds)
    print(f"seeds {seeds.start} to {seeds.stop - 1} of {name}: {len(failures)} failures")
    for what, count in sorted(tally.items()):
        print(f"  {what:24} {count:>12,}")
    for failure in failures[:3]:
        print(failure)
    return 1 if failures else 0


def main() -> None:
    """Run the command line."""
    parser = argparse.ArgumentParser(prog="python -m tests.simulation", description=__doc__)
    parser.add_argument("--seeds", type=int, default=10_000, help="how many worlds to run")
    parser.add_argument("--start", type=int, default=0, help="the first seed")
    parser.add_argument("--processes", type=int, default=2)
    parser.add_argument("--replicas", action="store_true", help="run worlds of several coordinators on one etcd")
    parser.add_argument("--dispatcher", action="store_true", help="run worlds of the shipped dispatcher")
    parser.add_argument("--bugs", action="store_true", help="look for every planted bug in these worlds instead")
    arguments = parser.parse_args()
    if arguments.bugs:
        sys.exit(find_bugs(range(arguments.start, arguments.start + arguments.seeds), arguments.processes))
    seeds = range(arguments.start, arguments.start + arguments.seeds)
    if arguments.replicas:
        sys.exit(_run_worlds(ReplicaWorld, "replicas", seeds))
    if arguments.dispatcher:
        sys.exit(_run_worlds(DispatcherWorld, "the dispatcher", seeds))
    started_s = time.monotonic()
    tally: Counter[str] = Counter()
    failures = []
    columns = (*Progress.get_default_columns()[:2], MofNCompleteColumn(), TimeRemainingColumn())
    ran = 0
    # Ctrl-C ends a long run with what it came to so far.
    with suppress(KeyboardInterrupt), Progress(*columns, console=Console(stderr=True)) as progress:
        bar = progress.add_task("worlds", total=len(seeds))
        for done, counted, failed in run_seeds(seeds, processes=arguments.processes):
            ran += done
            tally += counted
            failures += failed
            progress.advance(bar, done)
    elapsed_s = time.monotonic() - started_s
    print(f"seeds {seeds.start} to {seeds.start + ran - 1}: {len(failures)} failures in {elapsed_s:.0f} s")
    for what, count in sorted(tally.items()):
        print(f"  {what:18} {count:>12,}")
    for failure in failures[:3]:
        print(failure)
    sys.exit(1 if failures or ran < len(seeds) else 0)


if __name__ == "__main__":
    main()
