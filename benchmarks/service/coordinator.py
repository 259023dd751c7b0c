"""The coordinator on real sockets: heartbeats, shard lookups, durable registrations, barriers and exchange.

    python -m benchmarks.service.coordinator [--seconds 3] [--json FILE]

Every server and every load runs in a process of its own, so that the CPU of each is told apart, and the load sends
frames that were made beforehand. In the same run stand the coordinator's own gRPC by unary calls, torch's TCPStore and
torchft's lighthouse, as far as they are installed. At the end is how much memory a coordinator of 1,000 workers and
100,000 shards has.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from functools import partial
from pathlib import Path

from tests.testbed.servers import request
from tests.testbed.waiting import wait_until

ROOT = Path(__file__).resolve().parents[2]
LOAD = "benchmarks.tools.coordinator_load"
PEERS = "benchmarks.peers.coordinator_peers"
# A lease that does not end while a load is busy with something else than beating.
LEASE_S = 600

UNARY = "heartbeat, gRPC unary, 64"

Figures = dict[str, float]
# Where a server listens, for gRPC or its own protocol and for channels, and its process.
Server = Callable[[], AbstractContextManager[tuple[int, int, int]]]


def main() -> None:
    """Run the command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seconds", type=float, default=3.0, help="how long to run each kind of work")
    parser.add_argument("--json", type=Path, help="also write the figures to this file")
    chosen = parser.parse_args()
    results: dict[str, Figures] = {}

    def note(name: str, result: Figures) -> None:
        results[name] = result
        _print_row(name, result, results.get(UNARY))

    print(f"{'':38} {'per second':>11} {'p50':>10} {'p99':>10} {'server CPU':>10} {'client CPU':>10} {'of unary':>8}")
    _measure(note, chosen.seconds)
    for work, aim, reached in _aims(results):
        print(f"{work:62} aim {aim:>12}   {reached}")
    if chosen.json:
        chosen.json.write_text(json.dumps(results, indent=2) + "\n")


def _measure(note: Callable[[str, Figures], None], seconds: float) -> None:
    peers: tuple[tuple[Server, str, str], ...] = (
        (serve_coordinator, "unary", UNARY),
        (serve_coordinator, "client", "heartbeat, Strata's Python client, 64"),
        (_peer("tcpstore"), "tcpstore", "set + get, torch TCPStore, 64"),
        (_peer("lighthouse"), "lighthouse", "heartbeat, torchft lighthouse, 64"),
    )
    for server, kind, name in peers:
        with server() as (grpc_port, _, pid):
            if grpc_port:
                note(name, run_load(PEERS, "load", kind, grpc_port, pid, "--seconds", seconds))
            else:
                print(f"{name:38} not installed: make bench brings it")
    for work, workers, name in (
        ("heartbeats", 1, "heartbeat, channel, 1"),
        ("heartbeats", 64, "heartbeat, channel, 64"),
        ("heartbeats", 1_000, "heartbeat, channel, 1,000"),
        ("shards", 64, "shard lookup, channel, 64"),
        ("registrations", 1_000, "registration, durable, 1,000 at once"),
        ("barriers", 100, "barrier of 100"),
        ("barriers", 1_000, "barrier of 1,000"),
        ("exchanges", 100, "exchange of 1 KiB by 100"),
    ):
        with serve_coordinator() as (_, channel_port, pid):
            note(name, run_load(LOAD, work, channel_port, pid, "--workers", workers, "--seconds", seconds))
    with serve_coordinator() as (_, channel_port, pid):
        run_load(LOAD, "shards", channel_port, pid, "--workers", 1_000, "--seconds", 1)
        note("memory, 1,000 workers, 100,000 shards", {"memory_mb": memory_mb(pid)})


def _aims(results: dict[str, Figures]) -> Iterator[tuple[str, str, str]]:
    """Compare with what DESIGN asks for."""
    beats = results["heartbeat, channel, 64"]["per_second"]
    ratio = beats / results[UNARY]["per_second"]
    yield "heartbeats on the channel, times unary", "8", f"{ratio:.1f}"
    if store := results.get("set + get, torch TCPStore, 64"):
        yield "heartbeats on the channel, times TCPStore set + get", "1", f"{beats / store['per_second']:.1f}"
    for name, key, aim in (
        ("barrier of 100", "p99_ms", "10 ms"),
        ("barrier of 1,000", "p99_ms", "100 ms"),
        ("registration, durable, 1,000 at once", "per_second", "2,000/s"),
        ("shard lookup, channel, 64", "per_second", "15,000/s"),
        ("memory, 1,000 workers, 100,000 shards", "memory_mb", "150 MB"),
    ):
        unit = {"p99_ms": "ms", "per_second": "/s", "memory_mb": "MB"}[key]
        yield f"{name}, {key}", aim, f"{results[name][key]:,.1f} {unit}"


@contextmanager
def serve_coordinator(checkout: Path = ROOT, *, has_http: bool = True) -> Iterator[tuple[int, int, int]]:
    """Serve the code of a checkout in a process of its own; give both ports and its id."""
    with tempfile.TemporaryDirectory() as folder:
        command = [sys.executable, "-m", "strata", "coordinator", "--grpc-address", "127.0.0.1:0"]
        command += ["--channel-address", "127.0.0.1:0", "--state", f"sqlite://{folder}/journal.db"]
        command += ["--lease", str(LEASE_S), *(("--http-port", "0") if has_http else ())]
        environment = {**os.environ, "PYTHONPATH": str(checkout / "src")}
        with subprocess.Popen(
            command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True, env=environment
        ) as process:
            assert process.stdout is not None
            ports = [int(word.partition("=")[2]) for word in process.stdout.readline().split()[1:]]
            if has_http:
                # HTTP is built beside the rest, and takes a second of CPU.
                wait_until(partial(_is_healthy, ports[2]), "an answer of HTTP")
            try:
                yield ports[0], ports[1], process.pid
            finally:
                process.terminate()


def _is_healthy(http_port: int) -> bool:
    try:
        return bool(request("GET", f"http://127.0.0.1:{http_port}/api/health"))
    except OSError:
        return False


def _peer(kind: str) -> Server:
    @contextmanager
    def serve() -> Iterator[tuple[int, int, int]]:
        """Serve a peer; port 0 means that it is not installed."""
        command = [sys.executable, "-m", PEERS, "serve", kind]
        with subprocess.Popen(
            command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True
        ) as process:
            assert process.stdout is not None
            first = process.stdout.readline().strip()
            yield int(first) if first.isdigit() else 0, 0, process.pid
            process.kill()

    return serve


def run_load(module: str, *arguments: object) -> Figures:
    """Run a load in a process of its own, and return what it measured."""
    command = [sys.executable, "-m", module, *map(str, arguments)]
    done = subprocess.run(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True, check=True)
    result: Figures = json.loads(done.stdout.splitlines()[-1])
    return result


def memory_mb(pid: int) -> float:
    """Return how much memory a process holds."""
    lines = Path(f"/proc/{pid}/status").read_text().splitlines()
    return next(int(line.split()[1]) for line in lines if line.startswith("VmRSS:")) / 1_000


def _print_row(name: str, result: Figures, unary: Figures | None) -> None:
    if "memory_mb" in result:
        print(f"{name:38} {result['memory_mb']:>8.0f} MB")
        return
    ratio = f"{result['per_second'] / unary['per_second']:>7.1f}x" if unary else ""
    print(
        f"{name:38} {result['per_second']:>11,.0f} {result['p50_ms']:>7.2f} ms {result['p99_ms']:>7.2f} ms "
        f"{result['server_cpu']:>9.2f}c {result['client_cpu']:>9.2f}c {ratio}",
        flush=True,
    )


if __name__ == "__main__":
    main()
