"""What a tenant is shown by HTTP does not depend on what other tenants do: not by a name, and not by a number."""

from __future__ import annotations

import asyncio
import json
import re
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from strata.client.driver import Driver
from strata.cluster import commands as c
from strata.cluster.access import Role
from strata.cluster.values import CommitRecord
from strata.coordinator.entry.roles import ROUTES
from tests.testbed.guarded import Guarded, guarding
from tests.testbed.pace import stretch
from tests.testbed.waiting import wait_until

PATHS = [
    path.replace("{worker_id}", "w0").replace("{dataset_id}", "d0").replace("{step}", "1")
    for path, role in ROUTES.items()
    if role is not None
]
# A position in the events of the coordinator; docs/security.md says that it counts all of them.
POSITION = re.compile(rb'"[0-9a-f]{8}-[0-9]+"')


@pytest.fixture
async def guarded(tmp_path: Path) -> AsyncIterator[Guarded]:
    async with guarding(tmp_path) as coordinator:
        for tenant in ("blue", "red"):
            await coordinator.make_tenant(tenant)
        # A job at rest: every route has something to show, and nothing of it changes by itself.
        job: Any = {"job_id": "blue/llm"}
        ask = coordinator.coordinator.dispatcher.ask
        await ask(c.RegisterWorker(**job, worker_id="w0", incarnation="1"))
        await ask(c.RegisterDataset(**job, dataset_id="d0", total_samples=100, shard_size=10))
        await ask(c.AdoptCheckpoints(**job, checkpoints=(CommitRecord(1, 0, "step_1/metadata.json", ""),)))
        await ask(c.Goodbye(**job, worker_id="w0", incarnation="1"))
        yield coordinator


@asynccontextmanager
async def a_busy_neighbour(guarded: Guarded, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[None]:
    """Tenant red works under names that say so, and someone guesses tokens."""
    monkeypatch.setenv("STRATA_TOKEN", await guarded.make_token(Role.WORKER, tenant="red", name="red-token"))
    driver = Driver(guarded.url, c.RegisterWorker(job_id="red-job", worker_id="red-w", incarnation="1"))
    running = asyncio.create_task(driver.run())
    try:
        for step in range(20):
            await driver.heartbeat(timeout_s=stretch(20))
            await driver.meet(f"red-{step}", timeout_s=stretch(20))
        dataset = c.RegisterDataset(job_id="red-job", dataset_id="red-d", total_samples=9, shard_size=3)
        await driver.ask(dataset, timeout_s=stretch(20))
        await asyncio.to_thread(guarded.get, "/api/jobs", "strata_a_guess")
        # HTTP answers from a copy that may be a moment old.
        await asyncio.to_thread(wait_until, lambda: b"red-d" in guarded.get("/api/datasets", guarded.admin)[1])
        yield
    finally:
        running.cancel()
        await asyncio.gather(running, return_exceptions=True)


async def look(guarded: Guarded, token: str) -> dict[str, bytes]:
    """Return what each route answers."""
    answers = {}
    for path in PATHS:
        status, body = await asyncio.to_thread(guarded.get, path, token)
        answers[path] = POSITION.sub(b'"position"', body) if status == 200 else b"%d" % status
    return answers


@pytest.mark.parametrize("role", [Role.VIEWER, Role.OPERATOR])
async def test_no_route_shows_a_tenant_that_another_one_works(
    guarded: Guarded, monkeypatch: pytest.MonkeyPatch, role: Role
) -> None:
    token = await guarded.make_token(role, tenant="blue")
    alone, all_before = await look(guarded, token), await look(guarded, guarded.admin)
    async with a_busy_neighbour(guarded, monkeypatch):
        beside, all_beside = await look(guarded, token), await look(guarded, guarded.admin)
    assert beside == alone
    assert all(len(answer) > 3 for answer in alone.values()), "every route has something to show"
    # An administrator is shown it on every route that is not about one job.
    changed = {path for path in PATHS if all_beside[path] != all_before[path]}
    assert changed >= {"/api/dashboard", "/api/status", "/api/jobs", "/api/events", "/metrics"}
    assert json.loads(all_beside["/api/status"])["channels"] == 1
    assert b"strata_access_refused_total 1.0" in all_beside["/metrics"]
    status = json.loads(beside["/api/status"])
    assert (status["channels"], status["jobs"], status["requests_total"], status["requests_per_s"]) == (
        0,
        1,
        None,
        None,
    )
    for name in (b"strata_request_duration_seconds", b"strata_barrier_wait_seconds", b"strata_access_refused"):
        assert name in all_beside["/metrics"]
        assert name not in beside["/metrics"]


async def test_a_foreign_name_is_answered_as_one_that_is_not_there(
    guarded: Guarded, monkeypatch: pytest.MonkeyPatch
) -> None:
    token = await guarded.make_token(Role.OPERATOR, tenant="blue")
    async with a_busy_neighbour(guarded, monkeypatch):
        for path in PATHS:
            for job in ("red-job", "red/red-job", "default/llm"):
                status, body = await asyncio.to_thread(guarded.get, f"{path}?job={job}", token)
                other = job.replace("red", "new")
                missing = await asyncio.to_thread(guarded.get, f"{path}?job={other}", token)
                assert (status, str(body).replace(job, other)) == (missing[0], str(missing[1])), path


async def test_a_stream_of_events_tells_a_tenant_its_own(guarded: Guarded, monkeypatch: pytest.MonkeyPatch) -> None:
    token = await guarded.make_token(Role.VIEWER, tenant="blue")
    async with a_busy_neighbour(guarded, monkeypatch):
        port = guarded.coordinator.http_port
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        head = (
            f"GET /api/events HTTP/1.1\r\nHost: x\r\nAuthorization: Bearer {token}\r\nAccept: text/event-stream\r\n\r\n"
        )
        writer.write(head.encode())
        async with asyncio.timeout(stretch(20)):
            told = await reader.readuntil(b"event: changed\ndata: {}\n")
        writer.close()
    assert b'"job_id":"llm"' in told
    assert b"red-" not in told


async def test_a_tenant_that_is_the_only_one_sees_the_figures_of_the_whole(tmp_path: Path) -> None:
    async with guarding(tmp_path) as guarded:
        viewer = await guarded.make_token(Role.VIEWER)
        bounded = await guarded.make_token(Role.VIEWER, jobs="llm-*")
        for token, is_whole in ((viewer, True), (bounded, False)):
            _, body = await asyncio.to_thread(guarded.get, "/api/status", token)
            assert (json.loads(body)["requests_total"] is not None) is is_whole
        await guarded.make_tenant("blue")
        await asyncio.to_thread(
            wait_until, lambda: json.loads(guarded.get("/api/status", viewer)[1])["requests_total"] is None
        )


async def test_a_full_name_is_a_job_that_no_tenant_has(guarded: Guarded) -> None:
    token = await guarded.make_token(Role.VIEWER, tenant="blue")
    for path in ("events", "goodput"):
        status, answer = await asyncio.to_thread(guarded.get, f"/api/{path}?job=red/llm", token)
        assert status == 404
        assert answer["detail"].startswith("there is no job 'red/llm'")
