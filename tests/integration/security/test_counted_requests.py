"""Every call of gRPC that asks something of the coordinator's state counts against its tenant's requests per second."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path

import grpc
import pytest

from strata.client.driver import Driver
from strata.cluster import commands as c
from strata.cluster.access import Role
from strata.cluster.access import administration as t
from strata.cluster.access.quotas import Quotas
from strata.wire._generated import coordinator_pb2 as pb
from tests.testbed.guarded import Guarded, guarding
from tests.testbed.pace import stretch

STREAMS = {"StreamHeartbeats", "StreamEvents", "Channel"}
# It says where things are, and clients look for the leader with it.
FREE = {"Describe"}
SERVICE = pb.DESCRIPTOR.services_by_name["Coordinator"]
CALLS = {method.name: method.input_type.name for method in SERVICE.methods if method.name not in STREAMS | FREE}


@pytest.fixture
async def guarded(tmp_path: Path) -> AsyncIterator[Guarded]:
    async with guarding(tmp_path) as coordinator:
        limited = t.CreateTenant(tenant="blue", quotas=Quotas(requests_per_s=1_000.0))
        await coordinator.coordinator.dispatcher.ask(limited)
        yield coordinator


async def test_every_call_is_counted_once(guarded: Guarded, monkeypatch: pytest.MonkeyPatch) -> None:
    counted: list[str] = []
    take = guarded.coordinator.dispatcher.take_request

    def note(tenant: str) -> float:
        counted.append(tenant)
        return take(tenant)

    monkeypatch.setattr(guarded.coordinator.dispatcher, "take_request", note)
    for name, kind in CALLS.items():
        counted.clear()
        await guarded.call(name, getattr(pb, kind)(), guarded.admin)
        assert counted == ["default"], name


@pytest.mark.parametrize("name", ["GetDataShard", "WaitBarrier", "Heartbeat", "GetStatus", "AuditData"])
async def test_a_call_above_the_quota_waits(guarded: Guarded, monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    monkeypatch.setattr("strata.coordinator.service.MAX_SLOWED_S", 1e6)
    monkeypatch.setattr(guarded.coordinator.dispatcher, "take_request", lambda _: 1e6)
    answer = await guarded.call(name, getattr(pb, CALLS[name])(), guarded.admin, timeout_s=0.5)
    assert answer.code() is grpc.StatusCode.DEADLINE_EXCEEDED


@pytest.mark.parametrize("transport", ["channel", "stream"])
async def test_a_connection_is_read_again_soon_after_its_quota_was_raised(
    guarded: Guarded, monkeypatch: pytest.MonkeyPatch, transport: str
) -> None:
    ask = guarded.coordinator.dispatcher.ask
    monkeypatch.setenv("STRATA_TOKEN", await guarded.make_token(Role.WORKER, tenant="blue"))
    worker = Driver(guarded.url, c.RegisterWorker(worker_id="w", incarnation="1"), use_channel=transport == "channel")
    running = asyncio.create_task(worker.run())
    try:
        await worker.heartbeat(timeout_s=stretch(20))
        assert worker.kind == transport
        connection = worker._transport
        # One request in three hours: a slip of whoever typed it.
        await ask(t.SetTenant(tenant="blue", quotas=Quotas(requests_per_s=0.0001)))
        for _ in range(5):
            waiting = asyncio.create_task(worker.heartbeat(timeout_s=stretch(60)))
            _, pending = await asyncio.wait([waiting], timeout=1.0)
            if pending:
                break
        assert pending, "the quota holds"
        await ask(t.SetTenant(tenant="blue", quotas=Quotas(requests_per_s=1_000.0)))
        await waiting
        assert worker._transport is connection, "nobody had to connect again"
    finally:
        running.cancel()
        await asyncio.gather(running, return_exceptions=True)
