"""Two tenants with jobs and workers of the same names, on real sockets: neither learns of the other."""

from __future__ import annotations

import asyncio
import json
from collections import Counter
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from strata.client.driver import Driver
from strata.cluster import commands as c
from strata.cluster.access import Role
from strata.cluster.events import BarrierReleased, Effect
from strata.coordinator.channel import SIP_BYTES
from strata.coordinator.sessions import Session
from strata.wire._generated import coordinator_pb2 as pb
from tests.testbed.guarded import Guarded, guarding
from tests.testbed.network.raw_channel import RawChannel, frame
from tests.testbed.pace import stretch

TENANTS = ("blue", "red")


@pytest.fixture
async def guarded(tmp_path: Path) -> AsyncIterator[Guarded]:
    async with guarding(tmp_path) as coordinator:
        for tenant in TENANTS:
            await coordinator.make_tenant(tenant)
        yield coordinator


@asynccontextmanager
async def working(
    guarded: Guarded, monkeypatch: pytest.MonkeyPatch, tenant: str, worker: str, heard: list[Effect]
) -> AsyncIterator[Driver]:
    monkeypatch.setenv("STRATA_TOKEN", await guarded.make_token(Role.WORKER, tenant=tenant))
    command = c.RegisterWorker(job_id="llm", worker_id=worker, incarnation="1")
    driver = Driver(guarded.url, command, on_effect=heard.append)
    running = asyncio.create_task(driver.run())
    try:
        await driver.heartbeat(timeout_s=stretch(20))
        yield driver
    finally:
        running.cancel()
        await asyncio.gather(running, return_exceptions=True)


async def test_tenants_with_the_same_names_never_hear_of_each_other(
    guarded: Guarded, monkeypatch: pytest.MonkeyPatch
) -> None:
    heard: dict[str, list[Effect]] = {tenant: [] for tenant in TENANTS}
    async with (
        working(guarded, monkeypatch, "blue", "w0", heard["blue"]) as blue,
        working(guarded, monkeypatch, "red", "w0", heard["red"]) as red,
        working(guarded, monkeypatch, "red", "w1", heard["red"]) as other,
    ):
        assert blue.protocol.rank_info.world_size == 1
        assert (await blue.meet("go", payload=b"blue", timeout_s=stretch(20))).payloads == (b"blue",)
        await red.heartbeat(timeout_s=stretch(20))
        met = await asyncio.gather(
            red.meet("go", payload=b"red", timeout_s=stretch(20)),
            other.meet("go", payload=b"red", timeout_s=stretch(20)),
        )
        assert [released.payloads for released in met] == [(b"red", b"red")] * 2
        await blue.ask(c.SetKey(job_id="llm", key="k", value=b"blue", token=0, writer="b"))
        assert (await red.ask(c.GetKey(job_id="llm", key="k"))).value == b""
        for tenant, workers in (("blue", {"w0"}), ("red", {"w0", "w1"})):
            token = await guarded.make_token(Role.VIEWER, tenant=tenant)
            status = await guarded.call("GetStatus", pb.GetStatus(), token)
            assert {(job.job_id, worker.worker_id) for job in status.jobs for worker in job.workers} == {
                ("llm", worker) for worker in workers
            }
            _, body = await asyncio.to_thread(guarded.get, "/api/workers?job=llm", token)
            assert {worker["worker_id"] for worker in json.loads(body)["items"]} == workers
    released = [e for e in heard["blue"] if isinstance(e, BarrierReleased)]
    assert [effect.payloads for effect in released] == [(b"blue",)]
    assert all(effect.job_id == "llm" for effects in heard.values() for effect in effects)


async def test_a_worker_cannot_speak_to_another_tenants_job(guarded: Guarded, monkeypatch: pytest.MonkeyPatch) -> None:
    async with working(guarded, monkeypatch, "blue", "w0", []) as blue:
        for job in ("red/llm", "default/llm", "/llm", "blue/llm"):
            with pytest.raises(ValueError, match=r"job|tenant"):
                await blue.ask(c.SetKey(job_id=job, key="k", value=b"x", token=0, writer="b"), timeout_s=stretch(20))
    status = await guarded.call("GetStatus", pb.GetStatus(), guarded.admin)
    assert [job.job_id for job in status.jobs] == ["blue/llm"]


async def test_little_is_read_at_once_from_a_flood_as_soon_as_another_tenant_is_there(
    guarded: Guarded, monkeypatch: pytest.MonkeyPatch
) -> None:
    turn, taken = 0, Counter[int]()
    loop, receive = asyncio.get_running_loop(), Session.receive

    def count_turns() -> None:
        nonlocal turn
        turn += 1
        loop.call_soon(count_turns)

    def count(session: Session, data: bytes) -> bool:
        taken[turn] += len(frame(data))
        return receive(session, data)

    monkeypatch.setattr(Session, "receive", count)
    count_turns()
    port = guarded.coordinator.channel_port
    tokens = {tenant: await guarded.make_token(Role.WORKER, tenant=tenant) for tenant in TENANTS}
    flood = b"".join(frame(pb.ClientFrame(id=number).SerializeToString()) for number in range(1, 2_001))

    async def most_at_once(raw: RawChannel) -> int:
        taken.clear()
        await asyncio.to_thread(raw.socket.sendall, flood)
        for _ in range(2_000):
            assert await asyncio.to_thread(raw.receive) is not None
        return max(taken.values())

    with await asyncio.to_thread(RawChannel, port, token=tokens["blue"]) as blue:
        assert await most_at_once(blue) >= 2 * SIP_BYTES, "alone, it is read from in large pieces"
        with await asyncio.to_thread(RawChannel, port, token=tokens["red"]):
            # The first frame of a piece may have begun in the one before.
            assert await most_at_once(blue) < 1.1 * SIP_BYTES
