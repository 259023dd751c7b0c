"""The coordinator on real sockets: heartbeats, shard lookups, durable registrations, barriers and exchange.

    python -m benchmarks.coordinator [--seconds 3] [--json FILE]

The coordinator runs in its own process, the load in this one, so that the CPU of each is told apart. Beside it, in the
same run, stand what grpc.aio does for the same message by unary calls, and torch's TCPStore if torch is installed.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path

import grpc
import uvloop

from strata.client.connection import Connection
from strata.cluster import commands as c
from strata.wire._generated import coordinator_pb2 as pb
from strata.wire._generated import coordinator_pb2_grpc as stubs

CONNECTIONS = 64


@dataclass(frozen=True)
class Figures:
    """What one kind of work did."""

    work: str
    per_second: float
    p50_ms: float
    p99_ms: float
    server_cpu: float
    client_cpu: float


def main() -> None:
    """Run the command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seconds", type=float, default=3.0, help="how long to run each kind of work")
    parser.add_argument("--json", type=Path, help="also write the figures to this file")
    arguments = parser.parse_args()
    with _served() as (url, pid), asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        figures = runner.run(_measure_all(url, pid, arguments.seconds))
    unary = next(each.per_second for each in figures if each.work == "heartbeat, gRPC unary")
    print(f"{'':34} {'per second':>11} {'p50':>9} {'p99':>9} {'server CPU':>10} {'client CPU':>10} {'of unary':>8}")
    for each in figures:
        print(
            f"{each.work:34} {each.per_second:>11,.0f} {each.p50_ms:>6.2f} ms {each.p99_ms:>6.2f} ms "
            f"{each.server_cpu:>9.2f}c {each.client_cpu:>9.2f}c {each.per_second / unary:>7.1f}x"
        )
    if arguments.json:
        arguments.json.write_text(json.dumps([asdict(each) for each in figures], indent=2) + "\n")


@contextmanager
def _served() -> Iterator[tuple[str, int]]:
    with tempfile.TemporaryDirectory() as folder:
        command = [sys.executable, "-m", "strata", "coordinator", "--grpc-address", "127.0.0.1:0"]
        command += ["--channel-address", "127.0.0.1:0", "--state", f"sqlite://{folder}/journal.db"]
        with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True) as process:
            assert process.stdout is not None
            port = process.stdout.readline().split()[1].removeprefix("grpc=")
            try:
                yield f"127.0.0.1:{port}", process.pid
            finally:
                process.terminate()


async def _measure_all(url: str, pid: int, seconds: float) -> list[Figures]:
    figures = []
    async with grpc.aio.insecure_channel(url) as channel:
        stub = stubs.CoordinatorStub(channel)
        await stub.RegisterWorker(pb.RegisterWorker(job_id="unary", worker_id="w", incarnation="1"))
        request = pb.Heartbeat(job_id="unary", worker_id="w", incarnation="1")
        figures.append(
            await _rate("heartbeat, gRPC unary", [lambda: stub.Heartbeat(request)] * CONNECTIONS, pid, seconds)
        )

        async def register() -> None:
            register.number += 1  # type: ignore[attr-defined]
            name = f"w{register.number}"  # type: ignore[attr-defined]
            await stub.RegisterWorker(pb.RegisterWorker(job_id="many", worker_id=name, incarnation="1"))

        register.number = 0  # type: ignore[attr-defined]
        figures.append(await _rate("registration, durable", [register] * CONNECTIONS, pid, min(seconds, 2.0)))

        await stub.RegisterDataset(
            pb.RegisterDataset(job_id="unary", dataset_id="d", total_samples=10**6, shard_size=10**4)
        )
        shard = pb.GetDataShard(job_id="unary", dataset_id="d", worker_id="w")
        figures.append(await _rate("get data shard, gRPC unary", [lambda: stub.GetDataShard(shard)] * 16, pid, seconds))
    for workers in (1, CONNECTIONS):
        async with _party(url, f"beats-{workers}", workers) as party:
            work = [lambda each=each: each.ask(each.beat) for each in party]
            figures.append(await _rate(f"heartbeat, channel, {workers} workers", work, pid, seconds))
    for workers in (100, 1_000):
        async with _party(url, f"barrier-{workers}", workers) as party:
            figures.append(await _barriers(party, pid, seconds, payload=None))
            if workers == 100:
                figures.append(await _barriers(party, pid, seconds, payload=bytes(1024)))
    return figures


class _party:  # noqa: N801 - used as a function
    def __init__(self, url: str, job_id: str, workers: int) -> None:
        self._connections = [
            Connection(url, c.RegisterWorker(job_id=job_id, worker_id=f"w{number}", incarnation="1"))
            for number in range(workers)
        ]

    async def __aenter__(self) -> list[Connection]:
        # In groups, so that the load's own connecting does not time out.
        self._tasks = []
        for start in range(0, len(self._connections), 50):
            group = self._connections[start : start + 50]
            self._tasks += [asyncio.create_task(each.run()) for each in group]
            await asyncio.gather(*(each.ask(each.beat) for each in group))
        while len({each.generation for each in self._connections}) > 1:
            await asyncio.gather(*(each.ask(each.beat) for each in self._connections))
        return self._connections

    async def __aexit__(self, *_: object) -> None:
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)


async def _rate(work: str, lanes: list[Callable[[], Awaitable[object]]], pid: int, seconds: float) -> Figures:
    latencies: list[float] = []
    deadline = time.perf_counter() + seconds

    async def run(call: Callable[[], Awaitable[object]]) -> None:
        while (started := time.perf_counter()) < deadline:
            await call()
            latencies.append(time.perf_counter() - started)

    return await _timed(work, pid, lambda: asyncio.gather(*(run(lane) for lane in lanes)), latencies)


async def _barriers(party: list[Connection], pid: int, seconds: float, *, payload: bytes | None) -> Figures:
    latencies: list[float] = []
    kind = "barrier" if payload is None else "exchange of 1 KiB"

    async def run() -> None:
        deadline, number = time.perf_counter() + seconds, 0
        while time.perf_counter() < deadline or number < 20:
            number += 1
            started = time.perf_counter()
            await asyncio.gather(*(each.meet(f"{kind}-{number}", payload=payload) for each in party))
            latencies.append(time.perf_counter() - started)

    return await _timed(f"{kind} of {len(party)}", pid, run, latencies)


async def _timed(work: str, pid: int, run: Callable[[], Awaitable[object]], latencies: list[float]) -> Figures:
    server, client, started = _cpu_s(pid), time.process_time(), time.perf_counter()
    await run()
    elapsed = time.perf_counter() - started
    latencies.sort()
    return Figures(
        work=work,
        per_second=len(latencies) / elapsed,
        p50_ms=statistics.median(latencies) * 1_000,
        p99_ms=latencies[min(len(latencies) - 1, int(len(latencies) * 0.99))] * 1_000,
        server_cpu=(_cpu_s(pid) - server) / elapsed,
        client_cpu=(time.process_time() - client) / elapsed,
    )


def _cpu_s(pid: int) -> float:
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


if __name__ == "__main__":
    main()
