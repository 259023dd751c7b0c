"""What TLS and tokens cost: heartbeats in a channel with TLS against plain, unary gRPC with a token against without.

    python -m benchmarks.service.security [--rounds 9]

Heartbeats are sent on 64 connections, of which each waits for its answer. Client and server share one process and one
core, so each figure holds both halves; read the ratios. Both kinds take turns, and each ratio is the median over all
rounds: by the clock, and by the CPU, which what else the machine does disturbs less; least of all it disturbs the
fastest round of each. TLS may take at most 40 % of the heartbeats, and a token at most 10 % of the calls.
"""

from __future__ import annotations

import argparse
import asyncio
import statistics
import tempfile
from collections.abc import Sequence
from pathlib import Path

import grpc
import uvloop
from picows import WSFrame, WSListener, WSMsgType, WSTransport, ws_connect

from benchmarks.tools.measure import Cost, measure
from strata.client.credentials import Credentials
from strata.cluster import commands as c
from strata.coordinator.entry.certificates import CertificateFiles, make_certificates
from strata.coordinator.entry.server_tls import TlsConfig
from strata.coordinator.server import Coordinator, CoordinatorConfig
from strata.wire import convert
from strata.wire._generated import coordinator_pb2 as pb
from strata.wire._generated import coordinator_pb2_grpc as stubs

HEARTBEATS = 20_000
CALLS = 3_000
CONNECTIONS = 64


class _Beating(WSListener):
    """One connection: it sends its next heartbeat when the last one is answered, so many times."""

    def __init__(self, frame: bytes) -> None:
        super().__init__()
        self._frame = frame
        self._left = HEARTBEATS // CONNECTIONS
        self.done = asyncio.Event()

    def send(self, transport: WSTransport) -> None:
        self._left -= 1
        transport.send(WSMsgType.BINARY, self._frame)

    def on_ws_frame(self, transport: WSTransport, frame: WSFrame) -> None:
        if self._left:
            self.send(transport)
        else:
            self.done.set()


def _config(folder: Path, files: CertificateFiles | None, *, with_token: bool) -> CoordinatorConfig:
    return CoordinatorConfig(
        grpc_address="127.0.0.1:0",
        channel_address="127.0.0.1:0",
        tls=None if files is None else TlsConfig(cert=files.cert, key=files.key),
        admin_token_file=folder / "admin" if with_token else None,
    )


async def _beat(folder: Path, files: CertificateFiles | None) -> Cost:
    async with Coordinator(_config(folder, files, with_token=False)) as coordinator:
        url = f"{'ws' if files is None else 'wss'}://127.0.0.1:{coordinator.channel_port}"
        tls = None if files is None else Credentials(ca=files.ca).ssl_context()
        lanes: list[tuple[WSTransport, _Beating]] = []
        for number in range(CONNECTIONS):
            who = {"worker_id": f"w{number}", "incarnation": "1"}
            await coordinator.dispatcher.ask(c.RegisterWorker(**who))
            command = convert.command_to_message(c.Heartbeat(**who))
            listener = _Beating(pb.ClientFrame(id=1, command=command).SerializeToString())
            transport, _ = await ws_connect(lambda listener=listener: listener, url, ssl_context=tls)
            lanes.append((transport, listener))
        with measure() as cost:
            for transport, listener in lanes:
                listener.send(transport)
            for _, listener in lanes:
                await listener.done.wait()
        for transport, _ in lanes:
            transport.disconnect()
            await transport.wait_disconnected()
        return cost


async def _call(folder: Path, *, with_token: bool) -> Cost:
    async with Coordinator(_config(folder, None, with_token=with_token)) as coordinator:
        token = (folder / "admin").read_text().strip() if with_token else ""
        metadata = [("authorization", f"Bearer {token}")] if with_token else []
        async with grpc.aio.insecure_channel(f"127.0.0.1:{coordinator.grpc_port}") as channel:
            stub = stubs.CoordinatorStub(channel)
            await stub.RegisterWorker(pb.RegisterWorker(worker_id="w0", incarnation="1"), metadata=metadata)
            beat = pb.Heartbeat(worker_id="w0", incarnation="1")
            with measure() as cost:
                for _ in range(CALLS // CONNECTIONS):
                    await asyncio.gather(*(stub.Heartbeat(beat, metadata=metadata) for _ in range(CONNECTIONS)))
            return cost


async def _measure(rounds: int) -> None:
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        files = make_certificates(folder / "tls", hosts=["127.0.0.1"], days=1)
        plain, tls, without, token = [], [], [], []
        # In turns, so that what else the machine does falls on both.
        for _ in range(rounds):
            plain.append(await _beat(folder, None))
            tls.append(await _beat(folder, files))
            without.append(await _call(folder, with_token=False))
            token.append(await _call(folder, with_token=True))
    _show("heartbeats in a channel", HEARTBEATS, "plain", plain, "TLS", tls, limit=0.4)
    _show("unary calls of gRPC", CALLS, "open", without, "token", token, limit=0.1)


def _show(
    what: str, count: int, first: str, before: Sequence[Cost], second: str, after: Sequence[Cost], *, limit: float
) -> None:
    pairs = list(zip(before, after, strict=True))
    by_clock = statistics.median(1 - one.elapsed_s / other.elapsed_s for one, other in pairs)
    by_cpu = statistics.median(1 - one.cpu_s / other.cpu_s for one, other in pairs)
    best = 1 - min(cost.cpu_s for cost in before) / min(cost.cpu_s for cost in after)
    done = count // CONNECTIONS * CONNECTIONS
    rates = "   ".join(
        f"{name} {done / statistics.median(cost.elapsed_s for cost in costs):9,.0f}/s"
        for name, costs in ((first, before), (second, after))
    )
    lost = f"{by_clock:.1%} lost by the clock, {by_cpu:.1%} by CPU, {best:.1%} by the CPU of the fastest"
    print(f"{what:24} {rates}   {lost}; at most {limit:.0%}")


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=9)
    arguments = parser.parse_args()
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        runner.run(_measure(arguments.rounds))


if __name__ == "__main__":
    main()
