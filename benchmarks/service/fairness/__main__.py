"""One tenant floods a coordinator, and another one sends heartbeats: how much longer do they take than alone?

    python -m benchmarks.service.fairness [--seconds 5]

A real coordinator with a journal on disk, a flood in a process of its own, and four quiet workers that send a heartbeat
every 5 ms. For each flood the p99 of the quiet tenant is printed beside its p99 alone in the same run; at most 2x is
promised.

Flood and quiet workers share one core, where all others go before the flood: tenants are on other machines, and what a
quiet one waits for its own processor is not the coordinator's. Not all of that can be kept out where two cores do
everything. So the same workers also ask a bare echo server, which has nothing to do with the flood, while it goes on:
what they wait there is the machine's.
"""

from __future__ import annotations

import argparse
import asyncio
import os
import signal
import subprocess
import sys
import tempfile
import time
from functools import partial
from pathlib import Path
from typing import Any

import uvloop

from benchmarks.tools.coordinator_load import HANDSHAKE, Lane, frame
from strata.cluster import commands as c
from strata.wire._generated import coordinator_pb2 as pb
from tests.testbed.coordinator import GuardedProcess

FLOODS = ("heartbeats", "large requests", "slow readers", "registrations")
QUIET_WORKERS = 4
FLOOD_CONNECTIONS = 16
AHEAD = 50
BEAT_EVERY_S = 0.005
LARGE_BYTES = 60 << 10


class TenantLane(Lane):
    """A raw channel that brings a token."""

    def __init__(self, token: str) -> None:
        super().__init__()
        self._token = token

    def connection_made(self, transport: Any) -> None:
        """Open the channel as the tenant."""
        self.transport, self.write = transport, transport.write
        self.write(HANDSHAKE[:-2] + f"Authorization: Bearer {self._token}\r\n\r\n".encode())


async def connect(port: int, token: str, count: int) -> list[TenantLane]:
    """Open channels of a tenant."""
    loop = asyncio.get_running_loop()
    made = [loop.create_connection(partial(TenantLane, token), "127.0.0.1", port) for _ in range(count)]
    lanes = [lane for _, lane in await asyncio.gather(*made)]
    await asyncio.gather(*(lane.ready for lane in lanes))
    return lanes


async def answer(lane: TenantLane, data: bytes) -> None:
    """Send a frame, and return when something came back."""
    done = asyncio.get_running_loop().create_future()
    lane.on_message = lambda: None if done.done() else done.set_result(None)
    lane.write(data)
    await done


async def beat(port: int, token: str, seconds: float) -> list[float]:
    """Send heartbeats at a steady pace; return how long each took."""
    lanes = await connect(port, token, QUIET_WORKERS)
    latencies: list[float] = []
    until = time.perf_counter() + seconds

    async def work(number: int, lane: TenantLane) -> None:
        who = {"job_id": "quiet", "worker_id": f"w{number}", "incarnation": "1"}
        await answer(lane, frame(c.RegisterWorker(**who)))
        beats = frame(c.Heartbeat(**who))
        while time.perf_counter() < until:
            began = time.perf_counter()
            await answer(lane, beats)
            latencies.append(time.perf_counter() - began)
            await asyncio.sleep(BEAT_EVERY_S)

    await asyncio.gather(*(work(number, lane) for number, lane in enumerate(lanes)))
    for lane in lanes:
        lane.transport.close()
    return latencies


async def echo(port: int, seconds: float) -> list[float]:
    """Send as many bytes as a heartbeat has to an echo server, at the same pace; return how long each took."""
    data = frame(c.Heartbeat(job_id="quiet", worker_id="w0", incarnation="1"))
    latencies: list[float] = []
    until = time.perf_counter() + seconds

    async def work() -> None:
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        while time.perf_counter() < until:
            began = time.perf_counter()
            writer.write(data)
            await reader.readexactly(len(data))
            latencies.append(time.perf_counter() - began)
            await asyncio.sleep(BEAT_EVERY_S)
        writer.close()

    await asyncio.gather(*(work() for _ in range(QUIET_WORKERS)))
    return latencies


class Echo(asyncio.Protocol):
    """Sends back what comes."""

    def connection_made(self, transport: Any) -> None:
        """Know where to."""
        self._write = transport.write

    def data_received(self, data: bytes) -> None:
        """Send it back."""
        self._write(data)


async def serve_echo() -> None:
    """Serve until killed; say on which port."""
    server = await asyncio.get_running_loop().create_server(Echo, "127.0.0.1", 0)
    print(server.sockets[0].getsockname()[1], flush=True)
    await server.serve_forever()


async def flood(kind: str, port: int, token: str) -> None:
    """Send as much as the coordinator takes, until killed."""
    os.sched_setscheduler(0, os.SCHED_IDLE, os.sched_param(0))
    lanes = await connect(port, token, FLOOD_CONNECTIONS)
    who = {"job_id": "flood", "incarnation": "1"}
    for number, lane in enumerate(lanes):
        await answer(lane, frame(c.RegisterWorker(worker_id=f"w{number}", **who)))
    count = 0

    def make(number: int) -> bytes:
        nonlocal count
        count += 1
        if kind == "large requests":
            value = bytes(LARGE_BYTES)
            return frame(c.SetKey(job_id="flood", key=f"k{number}", value=value, token=0, writer=f"{count}"))
        if kind == "registrations":
            return frame(
                c.RegisterWorker(job_id=f"flood-{count % 500}", worker_id=f"w{number}", incarnation=f"p.{count}")
            )
        return frame(c.Heartbeat(worker_id=f"w{number}", **who))

    for number, lane in enumerate(lanes):
        if kind == "slow readers":
            # It asks, and does not read what it is answered.
            lane.transport.pause_reading()
        else:
            lane.on_message = lambda lane=lane, number=number: lane.write(make(number))
        lane.write(b"".join(make(number) for _ in range(AHEAD)))
    while kind == "slow readers":
        for number, lane in enumerate(lanes):
            if lane.transport.is_closing() or lane.transport.get_write_buffer_size() > 1 << 20:
                continue
            lane.write(b"".join(make(number) for _ in range(AHEAD)))
        await asyncio.sleep(0.001)
    await asyncio.Event().wait()


def p99_ms(latencies: list[float]) -> float:
    """Return the 99th percentile, in milliseconds; without an answer in all that time it is endless."""
    if not latencies:
        return float("inf")
    return sorted(latencies)[int(len(latencies) * 0.99)] * 1e3


def measure(seconds: float) -> None:
    """Print how much a quiet tenant feels of each flood."""
    with tempfile.TemporaryDirectory() as folder:
        # An open one would take both for the same tenant.
        coordinator = GuardedProcess(Path(folder))
        command = [sys.executable, "-m", "benchmarks.service.fairness"]
        with coordinator.serving(), subprocess.Popen([*command, "--echo"], stdout=subprocess.PIPE) as echoing:
            assert echoing.stdout is not None
            echo_port = int(echoing.stdout.readline())
            # What is started from here on, the flood, stays there too.
            os.sched_setaffinity(0, {max(os.sched_getaffinity(0))})
            tokens = {}
            for name in ("quiet", "flood"):
                coordinator.call(coordinator.admin, "CreateTenant", pb.CreateTenant(tenant=name))
                tokens[name] = coordinator.make_token("worker", tenant=name)
            port = coordinator.channel_port
            print(f"{'flood, p99':18} {'alone':>10} {'flooded':>10} {'ratio':>7} {'echo, flooded':>14} {'ratio':>7}")
            for kind in FLOODS:
                alone = p99_ms(asyncio.run(beat(port, tokens["quiet"], seconds)))
                environment = {**os.environ, "STRATA_TOKEN": tokens["flood"]}
                flooding = subprocess.Popen([*command, "--flood", kind, "--port", str(port)], env=environment)
                try:
                    time.sleep(1.5)
                    flooded = p99_ms(asyncio.run(beat(port, tokens["quiet"], seconds)))
                    bare = p99_ms(asyncio.run(echo(echo_port, seconds)))
                finally:
                    flooding.send_signal(signal.SIGKILL)
                    flooding.wait()
                print(
                    f"{kind:18} {alone:>7.2f} ms {flooded:>7.2f} ms {flooded / alone:>6.1f}x "
                    f"{bare:>11.2f} ms {flooded / bare:>6.1f}x",
                    flush=True,
                )
            echoing.kill()


def main() -> None:
    """Run the command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seconds", type=float, default=5.0, help="how long to send heartbeats, alone and flooded")
    parser.add_argument("--flood", choices=FLOODS, help=argparse.SUPPRESS)
    parser.add_argument("--port", type=int, help=argparse.SUPPRESS)
    parser.add_argument("--echo", action="store_true", help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.flood:
        asyncio.run(flood(arguments.flood, arguments.port, os.environ["STRATA_TOKEN"]))
    elif arguments.echo:
        uvloop.run(serve_echo())
    else:
        measure(arguments.seconds)


if __name__ == "__main__":
    main()
