"""A standby sends who asks it over HTTP to the leader, and answers for itself what each replica answers for itself."""

from __future__ import annotations

import asyncio
import json
from typing import Any

import pytest
from starlette.responses import PlainTextResponse

from strata.clock import ManualClock
from strata.coordinator.replication.leader_only import OWN_PATHS, LeaderOnly
from strata.coordinator.replication.leadership import Leader, Leadership

LEADER = Leader(grpc="b:50051", http="http://b:8080", term=4)


async def ask(leadership: Leadership, path: str, query: str = "") -> tuple[int, dict[str, str], bytes]:
    """Return the status, the headers and the body of an answer."""
    scope = {"type": "http", "method": "GET", "path": path, "root_path": "", "query_string": query.encode()}
    scope |= {"scheme": "http", "server": ("a", 8080), "headers": []}
    sent: list[Any] = []

    async def receive() -> Any:
        return {"type": "http.request", "body": b"", "more_body": False}

    async def send(message: Any) -> None:
        sent.append(message)

    await LeaderOnly(PlainTextResponse("its own"), leadership)(scope, receive, send)
    headers = {name.decode(): value.decode() for name, value in sent[0]["headers"]}
    return sent[0]["status"], headers, b"".join(message.get("body", b"") for message in sent)


@pytest.fixture
def leadership() -> Leadership:
    return Leadership(ManualClock())


@pytest.mark.parametrize("query", ["", "limit=5&after=w%201"])
async def test_a_standby_redirects_to_the_same_place_at_the_leader(leadership: Leadership, query: str) -> None:
    leadership.follow(LEADER)
    status, headers, _ = await ask(leadership, "/api/jobs", query)
    assert (status, headers["location"]) == (307, f"http://b:8080/api/jobs{'?' * bool(query)}{query}")


@pytest.mark.parametrize("known", [Leader(term=4), Leader(grpc="b:50051", term=4)], ids=["no leader", "without HTTP"])
async def test_where_there_is_nowhere_to_go_a_standby_says_why_and_when_to_ask_again(
    leadership: Leadership, known: Leader
) -> None:
    leadership.follow(known)
    status, headers, body = await ask(leadership, "/api/jobs")
    assert (status, headers["retry-after"]) == (503, "1")
    assert json.loads(body) == {"detail": str(leadership.refusal())}


async def test_a_leader_whose_time_is_over_sends_nobody_to_itself(leadership: Leadership) -> None:
    leadership.lead(LEADER, until_s=-1.0)
    status, headers, _ = await ask(leadership, "/api/jobs")
    assert status == 503
    assert "location" not in headers


async def test_a_request_to_a_leader_in_doubt_waits_until_it_leads_or_the_doubt_is_over() -> None:
    clock = ManualClock()
    leadership = Leadership(clock)
    for outcome, status in ((lambda: leadership.lead(LEADER, until_s=9.0), 200), (lambda: clock.advance(99.0), 503)):
        leadership.lead(LEADER, until_s=clock.monotonic_s(), hold_until_s=clock.monotonic_s() + 2.0)
        asked = asyncio.create_task(ask(leadership, "/api/jobs"))
        await asyncio.sleep(0)
        await asyncio.sleep(0)
        assert not asked.done()
        outcome()
        assert (await asked)[0] == status


@pytest.mark.parametrize("path", sorted(OWN_PATHS))
async def test_a_standby_answers_for_itself_what_each_replica_does(leadership: Leadership, path: str) -> None:
    leadership.follow(LEADER)
    assert (await ask(leadership, path))[::2] == (200, b"its own")


async def test_a_leader_answers_everything(leadership: Leadership) -> None:
    leadership.lead(LEADER, until_s=float("inf"))
    assert (await ask(leadership, "/api/jobs"))[::2] == (200, b"its own")
