"""Shard assignment beside two hash rings: time, memory, deviation and movement in one table.

    python -m benchmarks.sharding [--sizes 10x1000,1000x100000] [--rounds 5] [--json FILE]

For each size (workers x shards): the first assignment, one worker leaving, one joining, and looking up one worker's
shards. Beside Strata stand the plain ring as it is usually written (150 points per worker, a sorted list and a binary
search) and the library uhashring. Every contestant runs in its own process; times are the best of the rounds, memory
is what the process grew by at its peak. Deviation is how far the fullest worker is above the mean; moved is how many
shards changed owner, over the least that had to.
"""

from __future__ import annotations

import argparse
import bisect
import hashlib
import json
import multiprocessing
import resource
import time
from collections.abc import Callable
from concurrent.futures import ProcessPoolExecutor
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Protocol

SIZES = "10x1000,100x10000,1000x100000,10000x10000000"
# Beyond this, a ring that is asked for one shard at a time takes minutes, and its figures are left out.
MOST_SHARDS_ONE_BY_ONE = 100_000


class Contestant(Protocol):
    """One way to give shards to workers; ``change`` keeps what it can of the present state."""

    def first(self, workers: list[str], num_shards: int) -> None: ...
    def change(self, workers: list[str]) -> None: ...
    def shards_of(self, worker: str) -> object: ...
    def owners(self) -> list[str]: ...


class Strata:
    """strata.sharding.assign."""

    def first(self, workers: list[str], num_shards: int) -> None:
        from strata.sharding import assign

        self._assign = assign
        self.assignment = assign("bench", num_shards, workers)

    def change(self, workers: list[str]) -> None:
        self.assignment = self._assign("bench", self.assignment.num_shards, workers, self.assignment)

    def shards_of(self, worker: str) -> object:
        return self.assignment.shards_of(worker)

    def owners(self) -> list[str]:
        owners = [""] * self.assignment.num_shards
        for worker in self.assignment.workers:
            for shard in self.assignment.shards_of(worker).tolist():
                owners[shard] = worker
        return owners


class PlainRing:
    """A sorted list of 150 points per worker and a binary search per shard."""

    def first(self, workers: list[str], num_shards: int) -> None:
        self._num_shards = num_shards
        self.change(workers)

    def change(self, workers: list[str]) -> None:
        # Built anew, which is how most write it.
        points = sorted((_md5(f"{worker}#{point}"), worker) for worker in workers for point in range(150))
        self._points, self._workers = [point for point, _ in points], [worker for _, worker in points]
        self._place_all()

    def shards_of(self, worker: str) -> object:
        return [shard for shard, owner in enumerate(self._owners) if owner == worker]

    def owners(self) -> list[str]:
        return self._owners

    def _place_all(self) -> None:
        self._owners = [
            self._workers[bisect.bisect(self._points, _md5(f"bench/{shard}")) % len(self._points)]
            for shard in range(self._num_shards)
        ]


class UHashRing:
    """uhashring.HashRing, as its documentation uses it."""

    def first(self, workers: list[str], num_shards: int) -> None:
        from uhashring import HashRing

        self._num_shards, self._present = num_shards, set(workers)
        self._ring = HashRing(nodes=workers)
        self._place_all()

    def change(self, workers: list[str]) -> None:
        for gone in self._present - set(workers):
            self._ring.remove_node(gone)
        for new in set(workers) - self._present:
            self._ring.add_node(new)
        self._present = set(workers)
        self._place_all()

    def shards_of(self, worker: str) -> object:
        return [shard for shard, owner in enumerate(self._owners) if owner == worker]

    def owners(self) -> list[str]:
        return self._owners

    def _place_all(self) -> None:
        get = self._ring.get_node
        self._owners = [get(f"bench/{shard}") for shard in range(self._num_shards)]


CONTESTANTS: dict[str, Callable[[], Contestant]] = {"strata": Strata, "plain ring": PlainRing, "uhashring": UHashRing}


@dataclass(frozen=True)
class Figures:
    """What one contestant did at one size."""

    contestant: str
    workers: int
    shards: int
    first_ms: float
    leave_ms: float
    join_ms: float
    lookup_us: float
    cpu_s: float
    peak_mb: float
    deviation_percent: float
    leave_moved: float
    join_moved: float


def measure(name: str, num_workers: int, num_shards: int, rounds: int) -> Figures:
    """Run one contestant in this process, which must be its own."""
    workers = [f"worker-{number:05}" for number in range(num_workers)]
    lost, rest = workers[num_workers // 2], [*workers[: num_workers // 2], *workers[num_workers // 2 + 1 :]]
    # Imports are not part of what is measured, so one small run goes ahead.
    warm_up = CONTESTANTS[name]()
    warm_up.first(workers[:2], 10)
    warm_up.change(workers[:1])
    base_kb = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    started_cpu = time.process_time()
    times: dict[str, list[float]] = {"first": [], "leave": [], "join": [], "lookup": []}
    for _ in range(rounds):
        contestant = CONTESTANTS[name]()
        times["first"].append(_timed(lambda c=contestant: c.first(workers, num_shards)))
        times["leave"].append(_timed(lambda c=contestant: c.change(rest)))
        times["join"].append(_timed(lambda c=contestant: c.change(workers)))
        contestant.shards_of(workers[0])
        times["lookup"].append(_timed(lambda c=contestant: c.shards_of(workers[1])))
    cpu_s = (time.process_time() - started_cpu) / rounds
    peak_mb = (resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - base_kb) / 1024

    contestant = CONTESTANTS[name]()
    contestant.first(workers, num_shards)
    before = contestant.owners()
    contestant.change(rest)
    without = contestant.owners()
    contestant.change(workers)
    again = contestant.owners()
    counts = dict.fromkeys(workers, 0)
    for owner in before:
        counts[owner] += 1
    best = {operation: min(seconds) * 1_000 for operation, seconds in times.items()}
    return Figures(
        contestant=name,
        workers=num_workers,
        shards=num_shards,
        first_ms=best["first"],
        leave_ms=best["leave"],
        join_ms=best["join"],
        lookup_us=best["lookup"] * 1_000,
        cpu_s=cpu_s,
        peak_mb=peak_mb,
        deviation_percent=(max(counts.values()) * num_workers / num_shards - 1) * 100,
        leave_moved=_moved(before, without) / max(1, before.count(lost)),
        join_moved=_moved(without, again) / max(1, num_shards // num_workers),
    )


def main() -> None:
    """Run the command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--sizes", default=SIZES, help=f"workers x shards, separated by commas (default {SIZES})")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--json", type=Path, help="also write the figures to this file")
    arguments = parser.parse_args()
    results = []
    print(f"{'':10} {'workers x shards':>18} {'first':>11} {'leave':>11} {'join':>11} {'lookup':>10} {'CPU':>8} "
          f"{'memory':>8} {'deviation':>9} {'moved: leave':>12} {'join':>6}")  # fmt: skip
    for size in arguments.sizes.split(","):
        workers, shards = map(int, size.split("x"))
        for name in CONTESTANTS:
            if name != "strata" and shards > MOST_SHARDS_ONE_BY_ONE:
                print(f"{name:10} {workers:>7,} x {shards:>8,}   not run: one by one, it would take minutes")
                continue
            with ProcessPoolExecutor(1, mp_context=multiprocessing.get_context("spawn")) as own_process:
                figures = own_process.submit(measure, name, workers, shards, arguments.rounds).result()
            results.append(figures)
            print(
                f"{name:10} {workers:>7,} x {shards:>8,} {figures.first_ms:>8.1f} ms {figures.leave_ms:>8.1f} ms "
                f"{figures.join_ms:>8.1f} ms {figures.lookup_us:>7.1f} us {figures.cpu_s:>6.2f} s "
                f"{figures.peak_mb:>5.0f} MB {figures.deviation_percent:>8.2f}% {figures.leave_moved:>11.2f}x "
                f"{figures.join_moved:>5.2f}x"
            )
    if arguments.json:
        arguments.json.write_text(json.dumps([asdict(figures) for figures in results], indent=2) + "\n")


def _md5(text: str) -> int:
    return int.from_bytes(hashlib.md5(text.encode(), usedforsecurity=False).digest()[:8], "big")


def _timed(call: Callable[[], object]) -> float:
    started = time.perf_counter()
    call()
    return time.perf_counter() - started


def _moved(before: list[str], after: list[str]) -> int:
    return sum(was != now for was, now in zip(before, after, strict=True))


if __name__ == "__main__":
    main()
