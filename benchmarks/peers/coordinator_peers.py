"""What others do for a heartbeat, each by its own server process and its own client library.

    python -m benchmarks.peers.coordinator_peers serve tcpstore | lighthouse
    python -m benchmarks.peers.coordinator_peers load KIND PORT SERVER_PID [--seconds S]

`unary` is the coordinator's own gRPC by grpc.aio, `client` its channel by strata.client, `tcpstore` a set and a get on
torch's TCPStore, `lighthouse` a heartbeat to torchft's. All have 64 connections, except that unary calls share one.
"""

from __future__ import annotations

import argparse
import asyncio
import importlib.util
import json
import sys
import threading
import time
from collections.abc import Awaitable, Callable
from datetime import timedelta
from pathlib import Path
from typing import Any

from benchmarks.tools.coordinator_load import cpu_s, figures

CONNECTIONS = 64


def load_torchft() -> Any:
    """Return torchft's native module; the package around it wants libraries that this does not need."""
    package = importlib.util.find_spec("torchft")
    if package is None or not package.submodule_search_locations:
        raise ModuleNotFoundError("torchft")
    (path,) = Path(package.submodule_search_locations[0]).glob("_torchft*.so")
    spec = importlib.util.spec_from_file_location("torchft._torchft", path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def serve(kind: str) -> None:
    """Serve until standard input ends; print the port first."""
    if kind == "tcpstore":
        from torch.distributed import TCPStore

        server: Any = TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False)
        port = server.port
    else:
        server = load_torchft().LighthouseServer(bind="127.0.0.1:0", min_replicas=1, quorum_tick_ms=10_000)
        port = int(server.address().rpartition(":")[2])
    print(port, flush=True)
    sys.stdin.read()


def threads_of(kind: str, port: int) -> list[Callable[[], object]]:
    """Return what each thread does again and again."""
    if kind == "tcpstore":
        from torch.distributed import TCPStore

        def make(number: int) -> Callable[[], object]:
            store = TCPStore("127.0.0.1", port, is_master=False, wait_for_workers=False)

            def beat() -> None:
                store.set(f"beat{number}", "1")
                store.get(f"beat{number}")

            return beat
    else:
        native = load_torchft()

        def make(number: int) -> Callable[[], object]:
            client = native.LighthouseClient(addr=f"http://127.0.0.1:{port}", connect_timeout=timedelta(seconds=10))
            return lambda: client.heartbeat(f"replica{number}")

    return [make(number) for number in range(CONNECTIONS)]


def run_threads(work: list[Callable[[], object]], server_pid: int, seconds: float) -> dict[str, float]:
    """Let every thread work for some time."""
    latencies: list[float] = []
    server, client, started = cpu_s(server_pid), time.process_time(), time.perf_counter()
    deadline = started + seconds

    def run(call: Callable[[], object]) -> None:
        while (begun := time.perf_counter()) < deadline:
            call()
            latencies.append(time.perf_counter() - begun)

    threads = [threading.Thread(target=run, args=(call,)) for call in work]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return figures(
        len(latencies),
        latencies,
        time.perf_counter() - started,
        cpu_s(server_pid) - server,
        time.process_time() - client,
    )


async def run_tasks(work: list[Callable[[], Awaitable[object]]], server_pid: int, seconds: float) -> dict[str, float]:
    """Let every task work for some time."""
    latencies: list[float] = []
    server, client, started = cpu_s(server_pid), time.process_time(), time.perf_counter()
    deadline = started + seconds

    async def run(call: Callable[[], Awaitable[object]]) -> None:
        while (begun := time.perf_counter()) < deadline:
            await call()
            latencies.append(time.perf_counter() - begun)

    await asyncio.gather(*(run(call) for call in work))
    return figures(
        len(latencies),
        latencies,
        time.perf_counter() - started,
        cpu_s(server_pid) - server,
        time.process_time() - client,
    )


async def load_unary(port: int, server_pid: int, seconds: float) -> dict[str, float]:
    """Heartbeats by unary calls."""
    import grpc

    from strata.wire._generated import coordinator_pb2 as pb
    from strata.wire._generated import coordinator_pb2_grpc as stubs

    async with grpc.aio.insecure_channel(f"127.0.0.1:{port}") as channel:
        stub = stubs.CoordinatorStub(channel)
        await stub.RegisterWorker(pb.RegisterWorker(job_id="unary", worker_id="w", incarnation="1"))
        request = pb.Heartbeat(job_id="unary", worker_id="w", incarnation="1")
        return await run_tasks([lambda: stub.Heartbeat(request)] * CONNECTIONS, server_pid, seconds)


async def load_client(port: int, server_pid: int, seconds: float) -> dict[str, float]:
    """Heartbeats as a Python worker sends them, with all that its client does."""
    from strata.client.driver import Driver
    from strata.cluster import commands as c

    connections = [
        Driver(f"127.0.0.1:{port}", c.RegisterWorker(job_id="client", worker_id=f"w{number}", incarnation="1"))
        for number in range(CONNECTIONS)
    ]
    running = [asyncio.create_task(each.run()) for each in connections]
    await asyncio.gather(*(each.heartbeat() for each in connections))
    work = [lambda each=each: each.heartbeat() for each in connections]
    try:
        return await run_tasks(work, server_pid, seconds)
    finally:
        for task in running:
            task.cancel()
        await asyncio.gather(*running, return_exceptions=True)


def main() -> None:
    """Run the command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("what", choices=["serve", "load"])
    parser.add_argument("kind", choices=["unary", "client", "tcpstore", "lighthouse"])
    parser.add_argument("port", type=int, nargs="?", default=0)
    parser.add_argument("server_pid", type=int, nargs="?", default=0)
    parser.add_argument("--seconds", type=float, default=3.0)
    chosen = parser.parse_args()
    if chosen.what == "serve":
        serve(chosen.kind)
        return
    if chosen.kind in ("tcpstore", "lighthouse"):
        result = run_threads(threads_of(chosen.kind, chosen.port), chosen.server_pid, chosen.seconds)
    else:
        import uvloop

        load = load_unary if chosen.kind == "unary" else load_client
        with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
            result = runner.run(load(chosen.port, chosen.server_pid, chosen.seconds))
    print(json.dumps(result))


if __name__ == "__main__":
    main()
