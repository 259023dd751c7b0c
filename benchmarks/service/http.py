"""The HTTP API under polls, and what that costs heartbeats: 1,000 workers that beat as real ones do.

    python -m benchmarks.service.http [--workers 1000] [--seconds 10] [--rounds 3] [--polls 10] [--json FILE]

Each worker sends a heartbeat with its account four times a lease of ten seconds, whether or not the last one was
answered. Rounds without polls and rounds with ten polls of /api/dashboard a second follow each other in one run, so
that both see the same machine. Load, poller and coordinator are processes of their own.
"""

from __future__ import annotations

import argparse
import asyncio
import http.client
import json
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import uvloop

from benchmarks.tools.coordinator_load import Lane, connect, frame
from strata.cluster import commands as c
from strata.cluster.values import WorkerAccount

BEAT_S = 2.5
AIM_MS = 50.0
AIM_RATIO = 1.2
Figures = dict[str, float]


def main() -> None:
    """Run the command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--workers", type=int, default=1_000)
    parser.add_argument("--seconds", type=float, default=10.0, help="how long each round is")
    parser.add_argument("--rounds", type=int, default=3, help="how many rounds of each kind")
    parser.add_argument("--polls", type=float, default=10.0, help="polls a second")
    parser.add_argument("--json", type=Path, help="also write the figures to this file")
    parser.add_argument("--poll", type=int, help=argparse.SUPPRESS)
    chosen = parser.parse_args()
    if chosen.poll is not None:
        print(json.dumps(_poll(chosen.poll, chosen.seconds, chosen.polls)))
        return
    with _coordinator() as (channel_port, http_port):
        figures = uvloop.run(_measure(chosen, channel_port, http_port))
    for name, value in figures.items():
        print(f"{name:52} {value:10.3f}")
    if chosen.json:
        chosen.json.write_text(json.dumps(figures, indent=2) + "\n")


async def _measure(chosen: argparse.Namespace, channel_port: int, http_port: int) -> Figures:
    workers = await Workers.join(channel_port, chosen.workers)
    beating = asyncio.create_task(workers.beat())
    await asyncio.sleep(2 * BEAT_S)
    alone: list[float] = []
    polled: list[float] = []
    polls: list[float] = []
    sizes: list[float] = []
    for _ in range(chosen.rounds):
        workers.took_s.clear()
        await asyncio.sleep(chosen.seconds)
        alone += workers.took_s
        workers.took_s.clear()
        command = [
            sys.executable,
            "-m",
            "benchmarks.service.http",
            "--poll",
            str(http_port),
            "--seconds",
            str(chosen.seconds),
        ]
        process = await asyncio.create_subprocess_exec(
            *command, "--polls", str(chosen.polls), stdout=asyncio.subprocess.PIPE
        )
        output, _ = await process.communicate()
        polled += workers.took_s
        answer = json.loads(output)
        polls += answer["took_s"]
        sizes.append(answer["size_bytes"])
    beating.cancel()
    await asyncio.gather(beating, return_exceptions=True)
    ratio = _quantile(polled, 0.99) / _quantile(alone, 0.99)
    return {
        "heartbeats a second": len(alone) / chosen.rounds / chosen.seconds,
        "heartbeat p50 without polls, ms": 1e3 * _quantile(alone, 0.5),
        "heartbeat p50 with polls, ms": 1e3 * _quantile(polled, 0.5),
        "heartbeat p99 without polls, ms": 1e3 * _quantile(alone, 0.99),
        "heartbeat p99 with polls, ms": 1e3 * _quantile(polled, 0.99),
        f"heartbeat p99, with by without (aim {AIM_RATIO})": ratio,
        "/api/dashboard p50, ms": 1e3 * _quantile(polls, 0.5),
        f"/api/dashboard p99, ms (aim {AIM_MS:g})": 1e3 * _quantile(polls, 0.99),
        "/api/dashboard, kB": max(sizes) / 1e3,
    }


class Workers:
    """So many workers, each on a channel of its own."""

    def __init__(self, lanes: list[Lane]) -> None:
        self._lanes = lanes
        self._sent_s = [0.0] * len(lanes)
        self.took_s: list[float] = []
        self._joined: asyncio.Event | None = asyncio.Event()
        for number, lane in enumerate(lanes):
            lane.on_message = lambda number=number: self._answered(number)

    @classmethod
    async def join(cls, port: int, count: int) -> Workers:
        """Register all workers, and return when each has heard something."""
        lanes = await connect(port, count)
        workers = cls(lanes)
        for number, lane in enumerate(lanes):
            workers._sent_s[number] = time.perf_counter()
            lane.write(frame(c.RegisterWorker(worker_id=f"worker-{number:04}", incarnation="1", address="host")))
        assert workers._joined is not None
        await workers._joined.wait()
        workers._joined = None
        return workers

    async def beat(self) -> None:
        """Send heartbeats evenly in time, until cancelled."""
        began_s, sent = time.perf_counter(), 0
        while True:
            due = int((time.perf_counter() - began_s) / BEAT_S * len(self._lanes))
            for each in range(sent, due):
                self._send(each % len(self._lanes), each // len(self._lanes))
            sent = max(sent, due)
            await asyncio.sleep(0.001)

    def _send(self, number: int, turn: int) -> None:
        elapsed_s = (turn + 1) * BEAT_S
        parts = 0.8 * elapsed_s, 0.1 * elapsed_s, 0.0, 0.0, 0.1 * elapsed_s, 0.0, 0.0
        step = (turn + 1) * 10
        account = WorkerAccount(elapsed_s, *parts, step, 0, step * 32, 1, number)
        resources = {"loss": 1.0 / step, "step_s": 0.25, "samples_per_s": 128.0, "data_wait_s": 0.02}
        beat = c.Heartbeat(
            worker_id=f"worker-{number:04}",
            incarnation="1",
            state=c.WorkerState.TRAINING,
            step=step,
            resources=resources,
            account=account,
        )
        self._sent_s[number] = time.perf_counter()
        self._lanes[number].write(frame(beat))

    def _answered(self, number: int) -> None:
        # What the coordinator says by itself, of a generation, comes only while workers join.
        if self._sent_s[number]:
            self.took_s.append(time.perf_counter() - self._sent_s[number])
            self._sent_s[number] = 0.0
            if self._joined is not None and not any(self._sent_s):
                self._joined.set()


def _poll(port: int, seconds: float, per_s: float) -> dict[str, object]:
    """Ask for the dashboard again and again, as a page does: with the ETag of the last answer."""
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=30)
    began_s, took_s, size, etag, number = time.perf_counter(), [], 0, "", 0
    while time.perf_counter() - began_s < seconds:
        sent_s = time.perf_counter()
        connection.request("GET", "/api/dashboard", headers={"If-None-Match": etag})
        response = connection.getresponse()
        size = max(size, len(response.read()))
        etag = response.headers["ETag"]
        took_s.append(time.perf_counter() - sent_s)
        number += 1
        time.sleep(max(0.0, began_s + number / per_s - time.perf_counter()))
    return {"took_s": took_s, "size_bytes": size}


def _quantile(values: list[float], share: float) -> float:
    ordered = sorted(values)
    return ordered[min(len(ordered) - 1, int(share * len(ordered)))]


@contextmanager
def _coordinator() -> Iterator[tuple[int, int]]:
    """Serve in a process of its own; give the ports of channels and HTTP."""
    with tempfile.TemporaryDirectory() as folder:
        command = [sys.executable, "-m", "strata", "coordinator", "--grpc-address", "127.0.0.1:0", "--http-port", "0"]
        command += ["--channel-address", "127.0.0.1:0", "--state", f"sqlite://{folder}/journal.db"]
        with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True) as process:
            assert process.stdout is not None
            ports = [int(word.partition("=")[2]) for word in process.stdout.readline().split()[1:]]
            try:
                yield ports[1], ports[2]
            finally:
                process.terminate()


if __name__ == "__main__":
    main()
