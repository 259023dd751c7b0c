"""Load for the coordinator's channel that costs less than what it loads: frames made beforehand, on plain sockets.

    python -m benchmarks.tools.coordinator_load WORK PORT SERVER_PID --workers N --seconds S --job JOB

Prints one line of JSON: operations, seconds, latencies, and the CPU that server and load took meanwhile. Nothing that
comes back is decoded beyond its length. The connections wait for an answer before they ask again.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import uvloop

from strata.cluster import commands as c
from strata.wire import convert
from strata.wire._generated import coordinator_pb2 as pb

HANDSHAKE = (
    b"GET / HTTP/1.1\r\nHost: strata\r\nUpgrade: websocket\r\nConnection: Upgrade\r\n"
    b"Sec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\nSec-WebSocket-Version: 13\r\n\r\n"
)
WARM_UP_S = 0.3
ROUNDS = 300


class Lane(asyncio.Protocol):
    """One raw channel; ``on_message`` is called for every whole message that comes."""

    def __init__(self) -> None:
        self.ready = asyncio.get_running_loop().create_future()
        self.on_message: Callable[[], None] = lambda: None
        self._rest = b""

    def connection_made(self, transport: Any) -> None:
        self.write = transport.write
        self.write(HANDSHAKE)

    def data_received(self, data: bytes) -> None:
        if not self.ready.done():
            _, found, data = (self._rest + data).partition(b"\r\n\r\n")
            if not found:
                raise RuntimeError("half a handshake")
            self.ready.set_result(None)
        if not self._rest and len(data) > 1 and len(data) == 2 + data[1]:
            self.on_message()
            return
        data = self._rest + data
        place = 0
        while len(data) - place >= 2:
            length, head = data[place + 1], 2
            if length >= 126:
                head = 4 if length == 126 else 10
                length = int.from_bytes(data[place + 2 : place + head], "big")
            if len(data) - place < head + length:
                break
            place += head + length
            self.on_message()
        self._rest = data[place:]


def frame(content: c.JobCommand | pb.GetDataShard) -> bytes:
    """Return a command or a question as a whole WebSocket frame."""
    if isinstance(content, pb.GetDataShard):
        data = pb.ClientFrame(id=1, get_data_shard=content).SerializeToString()
    else:
        data = pb.ClientFrame(id=1, command=convert.command_to_message(content)).SerializeToString()
    length = bytes([0x80 | len(data)]) if len(data) < 126 else b"\xfe" + len(data).to_bytes(2, "big")
    return b"\x82" + length + bytes(4) + data


async def connect(port: int, count: int) -> list[Lane]:
    """Open channels, some at a time."""
    lanes: list[Lane] = []
    loop = asyncio.get_running_loop()
    for start in range(0, count, 100):
        made = [loop.create_connection(Lane, "127.0.0.1", port) for _ in range(min(100, count - start))]
        group = [lane for _, lane in await asyncio.gather(*made)]
        await asyncio.gather(*(lane.ready for lane in group))
        lanes += group
    return lanes


class Load:
    """One kind of work with so many workers, and what it came to."""

    def __init__(self, port: int, server_pid: int, workers: int, seconds: float, job_id: str) -> None:
        self._port = port
        self._server_pid = server_pid
        self._workers = workers
        self._seconds = seconds
        self._job_id = job_id
        self._latencies: list[float] = []

    async def heartbeats(self) -> dict[str, float]:
        """Every worker beats, again as soon as it is answered."""
        lanes = await self._join()
        frames = [
            frame(c.Heartbeat(job_id=self._job_id, worker_id=f"w{n}", incarnation="1")) for n in range(len(lanes))
        ]
        return await self._ask_again_and_again(lanes, frames)

    async def shards(self) -> dict[str, float]:
        """Every worker asks for its shards of an epoch."""
        lanes = await self._join()
        dataset = c.RegisterDataset(job_id=self._job_id, dataset_id="d", total_samples=10**8, shard_size=10**3)
        await self._all([lanes[0]], [frame(dataset)])
        questions = [pb.GetDataShard(job_id=self._job_id, dataset_id="d", worker_id=f"w{n}") for n in range(len(lanes))]
        frames = [frame(question) for question in questions]
        await self._all(lanes, frames)
        return await self._ask_again_and_again(lanes, frames)

    async def registrations(self) -> dict[str, float]:
        """All workers of a job register at once, each on its own channel; then those of the next job."""
        lanes = await connect(self._port, self._workers)
        done, started = 0, time.perf_counter()
        server, client = self._cpu()
        while time.perf_counter() - started < self._seconds:
            job_id = f"{self._job_id}-{done}"
            frames = [
                frame(c.RegisterWorker(job_id=job_id, worker_id=f"w{n}", incarnation="1")) for n in range(len(lanes))
            ]
            begun = time.perf_counter()
            # What else comes, such as that others joined, is not waited for.
            await self._all(lanes, frames, note=begun)
            done += len(lanes)
        return self._figures(done, started, server, client)

    async def barriers(self, payload: bytes | None = None) -> dict[str, float]:
        """All workers meet, again and again."""
        lanes = await self._join()
        generation = len(lanes)
        rounds = [
            [
                frame(
                    c.ArriveAtBarrier(
                        job_id=self._job_id,
                        worker_id=f"w{number}",
                        incarnation="1",
                        generation=generation,
                        name=f"b{turn}",
                        payload=payload,
                    )
                )
                for number in range(len(lanes))
            ]
            for turn in range(ROUNDS)
        ]
        for frames in rounds[:5]:
            await self._all(lanes, frames, messages=2)
        started = time.perf_counter()
        server, client = self._cpu()
        for frames in rounds[5:]:
            begun = time.perf_counter()
            await self._all(lanes, frames, messages=2)
            self._latencies.append(time.perf_counter() - begun)
        return self._figures(len(self._latencies), started, server, client)

    async def exchanges(self) -> dict[str, float]:
        """All workers meet, and each brings a kilobyte for everyone."""
        return await self.barriers(payload=bytes(1024))

    async def _join(self) -> list[Lane]:
        """Connect all workers and register them; wait until nothing more comes of it."""
        lanes = await connect(self._port, self._workers)
        joins = [c.RegisterWorker(job_id=self._job_id, worker_id=f"w{n}", incarnation="1") for n in range(len(lanes))]
        await self._all(lanes, [frame(join) for join in joins])
        quiet = asyncio.Event()
        for lane in lanes:
            lane.on_message = quiet.clear
        while not quiet.is_set():
            quiet.set()
            await asyncio.sleep(WARM_UP_S)
        return lanes

    async def _all(
        self, lanes: list[Lane], frames: list[bytes], *, messages: int = 1, note: float | None = None
    ) -> None:
        """Send one frame on each lane, and wait until so many messages have come on each."""
        left = len(lanes)
        done = asyncio.get_running_loop().create_future()

        def follow(lane: Lane) -> None:
            missing = messages

            def count() -> None:
                nonlocal missing, left
                missing -= 1
                if missing == 0:
                    left -= 1
                    if note is not None:
                        self._latencies.append(time.perf_counter() - note)
                    if left == 0:
                        done.set_result(None)

            lane.on_message = count

        for lane in lanes:
            follow(lane)
        for lane, data in zip(lanes, frames, strict=True):
            lane.write(data)
        await done

    async def _ask_again_and_again(self, lanes: list[Lane], frames: list[bytes]) -> dict[str, float]:
        latencies = self._latencies
        clock = time.perf_counter

        def follow(lane: Lane, data: bytes) -> None:
            write, sent = lane.write, clock()

            def answer() -> None:
                nonlocal sent
                now = clock()
                latencies.append(now - sent)
                sent = now
                write(data)

            lane.on_message = answer
            write(data)

        for lane, data in zip(lanes, frames, strict=True):
            follow(lane, data)
        await asyncio.sleep(WARM_UP_S)
        latencies.clear()
        started = clock()
        server, client = self._cpu()
        await asyncio.sleep(self._seconds)
        figures = self._figures(len(latencies), started, server, client)
        for lane in lanes:
            lane.on_message = lambda: None
        return figures

    def _cpu(self) -> tuple[float, float]:
        return cpu_s(self._server_pid), time.process_time()

    def _figures(self, operations: int, started: float, server: float, client: float) -> dict[str, float]:
        elapsed = time.perf_counter() - started
        server_after, client_after = self._cpu()
        return figures(operations, self._latencies, elapsed, server_after - server, client_after - client)


def cpu_s(pid: int) -> float:
    """Return how much processor time a process has had."""
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def figures(
    operations: int, latencies: list[float], elapsed: float, server_cpu_s: float, client_cpu_s: float
) -> dict[str, float]:
    """Return what work came to: its rate, its latencies, and the processors that server and client had for it."""
    ordered = sorted(latencies)
    return {
        "per_second": operations / elapsed,
        "p50_ms": ordered[len(ordered) // 2] * 1_000,
        "p99_ms": ordered[min(len(ordered) - 1, int(len(ordered) * 0.99))] * 1_000,
        "server_cpu": server_cpu_s / elapsed,
        "client_cpu": client_cpu_s / elapsed,
    }


def main() -> None:
    """Run the command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("work", choices=["heartbeats", "shards", "registrations", "barriers", "exchanges"])
    parser.add_argument("port", type=int)
    parser.add_argument("server_pid", type=int)
    parser.add_argument("--workers", type=int, default=64)
    parser.add_argument("--seconds", type=float, default=3.0)
    parser.add_argument("--job", default="load")
    chosen = parser.parse_args()
    load = Load(chosen.port, chosen.server_pid, chosen.workers, chosen.seconds, chosen.job)
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        print(json.dumps(runner.run(getattr(load, chosen.work)())))


if __name__ == "__main__":
    main()
