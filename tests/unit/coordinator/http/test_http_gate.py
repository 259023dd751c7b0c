"""The gate of HTTP: a role that may not see a route is told which one may, and a standby shows no tenant's jobs."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

import pytest

from strata.cluster.access import DEFAULT_TENANT, Role
from strata.cluster.access.administration import CreateToken
from strata.coordinator.entry.admin_token import AdminToken
from strata.coordinator.entry.gate import Gate
from strata.coordinator.entry.secret_tokens import make_token
from strata.coordinator.http import http_gate
from strata.coordinator.http.http_gate import HttpGate
from strata.coordinator.replication.leadership import Leader
from tests.unit.coordinator.http.served_api import ServedApi, serving_api

if TYPE_CHECKING:
    from pathlib import Path


def guard(api: ServedApi, folder: Path) -> None:
    """Let nobody in without a token from now on."""
    gate = Gate(api.dispatcher, admin=AdminToken(folder / "admin-token"))
    api.app = HttpGate(api.app, gate)


async def make_authorization(api: ServedApi, role: Role) -> str:
    token = make_token()
    await api.ask(
        CreateToken(tenant=DEFAULT_TENANT, token_id=token.token_id, sha256=token.sha256, role=role, name=f"a {role}")
    )
    return f"Bearer {token.text}"


async def test_a_role_that_may_not_see_a_route_is_told_which_one_may(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(http_gate, "_PATTERNS", [(re.compile("/api/jobs"), Role.OPERATOR)])
    async with serving_api() as api:
        guard(api, tmp_path)
        viewer, operator = [await make_authorization(api, role) for role in (Role.VIEWER, Role.OPERATOR)]
        refused = await api.get("/api/jobs", authorization=viewer)
        assert (refused.status, refused.headers["cache-control"]) == (403, "no-store")
        assert "token 'a viewer' with the role viewer may not ask for /api/jobs" in refused.content["detail"]
        assert "it takes the role operator" in refused.content["detail"]
        assert (await api.get("/api/jobs", authorization=operator)).status == 200
        assert (await api.get("/api/status", authorization=viewer)).status == 200


async def test_a_standby_sends_everyone_to_the_leader_and_shows_no_jobs(tmp_path: Path) -> None:
    async with serving_api() as api:
        guard(api, tmp_path)
        await api.join("a")
        operator = await make_authorization(api, Role.OPERATOR)
        api.leadership.follow(Leader("10.0.0.7:50051", "http://10.0.0.7:8080", term=3))
        # It does not know the tokens of its cluster: whatever comes is answered alike.
        for authorization in (operator, "Bearer nonsense"):
            sent = await api.get("/api/jobs?job=x", authorization=authorization)
            assert (sent.status, sent.headers["location"]) == (307, "http://10.0.0.7:8080/api/jobs?job=x")
            shown = (await api.get("/metrics", authorization=authorization)).body.decode()
            assert "strata_coordinator_is_leader 0.0" in shown
            assert "strata_coordinator_term 3.0" in shown
            assert 'job_id="' not in shown
