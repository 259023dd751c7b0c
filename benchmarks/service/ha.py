"""Replicated coordinators on a three-node etcd of this machine, beside one on SQLite in the same run.

    python -m benchmarks.service.ha [--seconds 3] [--rounds 3] [--times 5] [--only load] [--json FILE]

Durable registrations and heartbeats of both, by the clock and by the leader's CPU: three etcd nodes and two standbys
are on the same cores, so the first says what this machine does, and the second what a leader does. Then how long eight
workers stand at a barrier when the leader is killed with kill -9, and when it is ended with SIGTERM, each several
times; and how much longer a takeover takes with 1,000 workers and 100,000 shards.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import signal
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path
from urllib.parse import urlsplit

from strata.client.client import Client
from strata.client.leader_finder import LeaderFinder
from strata.demo.replicated import ReplicatedCoordinator
from strata.run.launch.standalone import StandaloneCoordinator

LOAD = "benchmarks.tools.coordinator_load"
WORKERS = 8
# Nobody fails while a load is busy, or after it has ended.
OPTIONS = ("--lease", "600", "--grace", "600")
LEASE_S = 3.0
FIND_S = 60.0

Figures = dict[str, float]
Served = StandaloneCoordinator | ReplicatedCoordinator


def main() -> None:
    """Run the command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seconds", type=float, default=3.0, help="how long to run each kind of load")
    parser.add_argument("--json", type=Path, help="also write the figures to this file")
    parser.add_argument("--rounds", type=int, default=3, help="how often to run each; the median counts")
    parser.add_argument("--times", type=int, default=5, help="how often to kill the leader, and how often to end it")
    parser.add_argument("--only", choices=("load", "takeovers"), help="leave the other half out")
    chosen = parser.parse_args()
    results: Figures = {}
    if chosen.only != "takeovers":
        asyncio.run(_measure_load(chosen.seconds, chosen.rounds, results))
    if chosen.only != "load":
        asyncio.run(_measure_takeovers(chosen.times, results))
    for name, aim, reached in _aims(results):
        print(f"{name:62} aim {aim:>12}   {reached}")
    if chosen.json:
        chosen.json.write_text(json.dumps(results, indent=2) + "\n")


async def _measure_load(seconds: float, rounds: int, results: Figures) -> None:
    kinds: dict[str, Callable[[Path], Served]] = {
        "sqlite": lambda folder: StandaloneCoordinator(folder, options=OPTIONS, is_open=True),
        "etcd": lambda folder: ReplicatedCoordinator(folder, options=OPTIONS),
    }
    for work, workers in (("registrations", 1_000), ("heartbeats", 64)):
        found: dict[str, list[Figures]] = {kind: [] for kind in kinds}
        # In turns, so that what else this machine does is beside both.
        for _ in range(rounds):
            for kind, make in kinds.items():
                with tempfile.TemporaryDirectory() as folder:
                    async with make(Path(folder)) as served:
                        found[kind].append(await asyncio.to_thread(_load, served, work, workers, seconds))
        for kind, rows in found.items():
            rate = results[f"{work}, {kind}"] = statistics.median(row["per_second"] for row in rows)
            by_cpu = statistics.median(row["per_second"] / row["server_cpu"] for row in rows)
            results[f"{work}, {kind}, a CPU-second"] = by_cpu
            p50_ms = statistics.median(row["p50_ms"] for row in rows)
            of_cpu = f"{by_cpu:>9,.0f} a CPU-second of the leader"
            print(f"{work + ', ' + kind:28} {rate:>9,.0f} /s   {of_cpu}   p50 {p50_ms:>7.2f} ms", flush=True)


async def _measure_takeovers(times: int, results: Figures) -> None:
    with tempfile.TemporaryDirectory() as folder:
        async with ReplicatedCoordinator(Path(folder), options=OPTIONS) as served:
            for name, number in (("kill -9", signal.SIGKILL), ("SIGTERM", signal.SIGTERM)):
                took_s = []
                for turn in range(times):
                    took_s.append(await asyncio.to_thread(_disturb, served, number, f"bench-{int(number)}-{turn}"))
                    await asyncio.to_thread(_wait_for_replicas, served)
                results[f"barrier after {name}, median, s"] = statistics.median(took_s)
                results[f"barrier after {name}, worst, s"] = max(took_s)
                each = ", ".join(f"{each_s:.2f}" for each_s in took_s)
                print(f"{'barrier passed by all after ' + name:38} {each} s", flush=True)
            results["takeover, empty, s"] = await asyncio.to_thread(_take_over, served)
            await asyncio.to_thread(_wait_for_replicas, served)
            await asyncio.to_thread(_load, served, "shards", 1_000, 1.0)
            results["takeover, 1,000 workers, s"] = await asyncio.to_thread(_take_over, served)
    for name in ("takeover, empty, s", "takeover, 1,000 workers, s"):
        print(f"{name:38} {results[name]:>11.2f} s")


def _aims(results: Figures) -> Iterator[tuple[str, str, str]]:
    if "heartbeats, etcd" in results:
        registered = results["registrations, etcd"]
        of_sqlite = registered / results["registrations, sqlite"]
        beats = results["heartbeats, etcd"] / results["heartbeats, sqlite"]
        yield "durable registrations on etcd", "1,000/s", f"{registered:,.0f}/s, {of_sqlite:.2f} of SQLite's"
        by_cpu = results["heartbeats, etcd, a CPU-second"] / results["heartbeats, sqlite, a CPU-second"]
        yield "heartbeats, of SQLite's", "0.95", f"{beats:.2f} by the clock, {by_cpu:.2f} by the leader's CPU"
    if "takeover, empty, s" in results:
        for name, aim_s in (("kill -9", LEASE_S + 1), ("SIGTERM", 1.0)):
            median_s, worst_s = (results[f"barrier after {name}, {which}, s"] for which in ("median", "worst"))
            reached = f"{median_s:.2f} s, {worst_s:.2f} s at worst"
            yield f"{name} until all pass a barrier, lease {LEASE_S:g} s", f"{aim_s:g} s", reached
        more_s = results["takeover, 1,000 workers, s"] - results["takeover, empty, s"]
        yield "takeover with 1,000 workers and 100,000 shards, more", "2 s", f"{more_s:+.2f} s"


def _load(served: Served, work: str, workers: int, seconds: float) -> Figures:
    _, description = LeaderFinder(served.url, give_up_s=FIND_S).describe_leader()
    port = urlsplit(description.channel_url).port
    command = [sys.executable, "-m", LOAD, work, str(port), str(served.pid), "--workers", str(workers)]
    done = subprocess.run([*command, "--seconds", str(seconds)], stdout=subprocess.PIPE, text=True, check=True)
    result: Figures = json.loads(done.stdout.splitlines()[-1])
    return result


def _disturb(served: ReplicatedCoordinator, number: signal.Signals, job_id: str) -> float:
    """Let workers meet again and again, end the leader, and return how long until all have met that came after it."""
    with ExitStack() as stack:
        clients = [stack.enter_context(Client(served.url, job_id=job_id, worker_id=f"w{n}")) for n in range(WORKERS)]
        for client in clients:
            client.wait_registered(FIND_S)
        generation = clients[0].heartbeat().generation
        last: list[int] = []
        counts = [0] * WORKERS

        def meet(place: int) -> None:
            while not last or counts[place] <= last[0]:
                name = f"b{counts[place]}"
                clients[place].meet(name, expected=WORKERS, timeout_s=FIND_S, generation=generation)
                counts[place] += 1

        threads = [threading.Thread(target=meet, args=(place,)) for place in range(WORKERS)]
        for thread in threads:
            thread.start()
        time.sleep(1.0)
        os.kill(served.pid, number)
        killed_s = time.monotonic()
        # One that nobody can have come to yet; who is ahead is ahead by one.
        last.append(max(counts) + 2)
        for thread in threads:
            thread.join()
        return time.monotonic() - killed_s


def _take_over(served: ReplicatedCoordinator) -> float:
    begun_s = time.monotonic()
    os.kill(served.pid, signal.SIGKILL)
    LeaderFinder(served.url, give_up_s=FIND_S).describe_leader()
    return time.monotonic() - begun_s


def _wait_for_replicas(served: ReplicatedCoordinator) -> None:
    """Wait until the one that was ended follows again, so that the next takeover begins as the first did."""
    deadline_s = time.monotonic() + FIND_S
    while time.monotonic() < deadline_s:
        _, leader = LeaderFinder(served.url, give_up_s=FIND_S).describe_leader()
        if len(leader.replicas) == 3:
            return
        time.sleep(0.1)


if __name__ == "__main__":
    main()
