"""Mutated messages at a guarded coordinator: it answers or hangs up, goes on serving, and keeps its memory bounded.

No answer tells of another tenant. ``make fuzz`` sends 10,000 to each transport; a test run sends a few hundred.
"""

from __future__ import annotations

import asyncio
import os
import random
from pathlib import Path
from typing import Any

import grpc
import pytest
from picows import WSFrame, WSListener, WSMsgType, WSTransport, ws_connect

from strata.cluster import commands as c
from strata.cluster.access import Role
from strata.wire import convert
from strata.wire._generated import coordinator_pb2 as pb
from tests.testbed.guarded import Guarded, guarding
from tests.testbed.pace import stretch

MESSAGES = int(os.environ.get("STRATA_FUZZ_MESSAGES", "300"))
MAX_GROWTH_BYTES = 256 << 20
# In every name of another tenant, and in nothing that is sent.
FOREIGN = "c4f1e2"
SERVICE = pb.DESCRIPTOR.services_by_name["Coordinator"]
UNARY = [method for method in SERVICE.methods if method.name not in ("StreamHeartbeats", "StreamEvents", "Channel")]


def mutate(data: bytes, chance: random.Random) -> bytes:
    """Return the bytes with some of them changed, cut off, doubled or put elsewhere."""
    mutated = bytearray(data or b"\x0a\x01a")
    for _ in range(chance.randint(1, 6)):
        place = chance.randrange(len(mutated) + 1)
        kind = chance.randrange(4)
        if kind == 0:
            mutated[place : place + 1] = bytes([chance.randrange(256)])
        elif kind == 1:
            del mutated[place : place + chance.randint(1, 8)]
        elif kind == 2:
            mutated[place:place] = chance.randbytes(chance.randint(1, 16))
        else:
            mutated[place:place] = mutated[place : place + 32]
    return bytes(mutated)


def seed_frame(chance: random.Random) -> bytes:
    command = pb.Command()
    kind = getattr(command, chance.choice(list(convert.COMMANDS.values())))
    kind.SetInParent()
    for field in ("job_id", "worker_id", "incarnation", "name", "key", "tenant"):
        if field in kind.DESCRIPTOR.fields_by_name:
            setattr(kind, field, chance.choice(["default", "w0", "../x", "a/b", "x" * 200]))
    return pb.ClientFrame(id=chance.randrange(1 << 32), command=command).SerializeToString()


def resident_bytes() -> int:
    return int(Path("/proc/self/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")


async def check_alive(guarded: Guarded, before_bytes: int) -> None:
    assert isinstance(await guarded.call("GetStatus", pb.GetStatus(), guarded.admin), pb.Status)
    assert resident_bytes() - before_bytes < MAX_GROWTH_BYTES


async def make_neighbour(guarded: Guarded) -> None:
    """Let there be another tenant with a job, a worker, a dataset and a key."""
    await guarded.make_tenant("blue")
    await guarded.make_tenant(FOREIGN)
    job_id, ask = f"{FOREIGN}/job-{FOREIGN}", guarded.coordinator.dispatcher.ask
    await ask(c.RegisterWorker(job_id=job_id, worker_id=f"worker-{FOREIGN}", incarnation="1"))
    await ask(c.RegisterDataset(job_id=job_id, dataset_id=f"data-{FOREIGN}", total_samples=9, shard_size=3))
    await ask(c.SetKey(job_id=job_id, key="key", value=FOREIGN.encode(), token=0, writer="w"))


class _Hearing(WSListener):
    """Keeps nothing of what is answered but whether it tells of the other tenant."""

    def __init__(self, leaks: list[bytes]) -> None:
        super().__init__()
        self._leaks = leaks

    def on_ws_frame(self, transport: WSTransport, frame: WSFrame) -> None:
        if frame.msg_type == WSMsgType.CLOSE:
            transport.disconnect()
        elif FOREIGN.encode() in (told := frame.get_payload_as_bytes()):
            self._leaks.append(told)


@pytest.mark.timeout(600)
async def test_a_channel_survives_mutated_frames(tmp_path: Path) -> None:
    chance = random.Random(1)
    async with guarding(tmp_path) as guarded:
        await make_neighbour(guarded)
        token = await guarded.make_token(Role.WORKER, tenant="blue")
        leaks: list[bytes] = []
        before_bytes = resident_bytes()
        url = f"ws://127.0.0.1:{guarded.coordinator.channel_port}"
        transport: WSTransport | None = None
        for _ in range(MESSAGES):
            if transport is None or transport.is_disconnected:
                headers = {"authorization": f"Bearer {token}"}
                transport, _ = await ws_connect(lambda: _Hearing(leaks), url, extra_headers=headers)
            transport.send(WSMsgType.BINARY, mutate(seed_frame(chance), chance))
            await asyncio.sleep(0)
        assert transport is not None
        transport.disconnect()
        await transport.wait_disconnected()
        assert leaks == []
        await check_alive(guarded, before_bytes)


@pytest.mark.timeout(600)
async def test_grpc_survives_mutated_messages(tmp_path: Path) -> None:
    chance = random.Random(2)
    async with guarding(tmp_path) as guarded:
        await make_neighbour(guarded)
        token = await guarded.make_token(Role.OPERATOR, tenant="blue")
        before_bytes = resident_bytes()
        metadata = [("authorization", f"Bearer {token}")]
        unknown: list[str] = []
        leaks: list[Any] = []
        async with guarded.open_grpc() as channel:
            for _ in range(MESSAGES):
                method = chance.choice(UNARY)
                message = getattr(pb, method.input_type.name)()
                if "job_id" in message.DESCRIPTOR.fields_by_name:
                    message.job_id = "default"
                call = channel.unary_unary(f"/{SERVICE.full_name}/{method.name}")
                data = mutate(message.SerializeToString(), chance)
                try:
                    told: Any = await call(data, metadata=metadata, timeout=stretch(2))
                except grpc.aio.AioRpcError as error:
                    told = f"{error.details()} {error.trailing_metadata()}".encode()
                    if error.code() is grpc.StatusCode.UNKNOWN:
                        unknown.append(error.details() or "")
                if FOREIGN.encode() in told:
                    leaks.append(told)
        assert leaks == []
        # With this code gRPC answers what the coordinator did not expect.
        assert unknown == []
        await check_alive(guarded, before_bytes)
