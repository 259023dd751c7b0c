"""Events as a stream: all of them in their order, signs of life while nothing happens, and an end when it is over."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest

from strata.coordinator.http import event_stream as module
from strata.coordinator.http.event_stream import stream_events
from strata.coordinator.replication.leadership import Leader
from tests.testbed.pace import stretch
from tests.unit.coordinator.http.served_api import ServedApi, request_of, serving_api


@pytest.fixture(autouse=True)
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "POLL_S", 0.001)


@asynccontextmanager
async def streaming(api: ServedApi, *, after: str | None = None) -> AsyncIterator[AsyncIterator[str]]:
    """Yield the messages of a stream, without those that only say that something changed."""
    response = stream_events(api.desk, request_of("/api/events"), job_id=None, after=after, kind=None)
    messages = response.body_iterator

    async def read() -> AsyncIterator[str]:
        async for message in messages:
            assert isinstance(message, bytes)
            if b"event: changed" not in message:
                yield message.decode()

    async with asyncio.timeout(stretch(20)):
        reading = read()
        assert await anext(reading) == "retry: 1000\n\n"
        yield reading


def worker_of(message: str) -> str:
    """Return who joined according to a message, whose id is the position of its event."""
    place, kind, data, *_ = message.split("\n")
    event = json.loads(data.removeprefix("data: "))
    assert (place, kind) == (f"id: {event['position']}", "event: event")
    reason: str = event["reason"]
    return reason.partition(": ")[2]


async def test_more_events_than_go_at_once_come_in_their_order_and_then_those_that_happen(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(module, "BATCH", 2)
    async with serving_api() as api:
        await api.join("a", "b", "c", "d", "e")
        async with streaming(api, after="life-1") as messages:
            assert [worker_of(await anext(messages)) for _ in range(4)] == [f"{name} joined" for name in "bcde"]
            await api.join("f")
            assert worker_of(await anext(messages)) == "f joined"


async def test_a_reader_whose_position_is_of_a_coordinator_before_is_told_that_events_are_lost() -> None:
    async with serving_api() as api:
        await api.join("a")
        async with streaming(api, after="other-9") as messages:
            assert await anext(messages) == "event: lost\ndata: {}\n\n"
            assert worker_of(await anext(messages)) == "a joined"
            await api.join("b")
            assert worker_of(await anext(messages)) == "b joined"  # and no more is lost


async def test_a_stream_in_which_nothing_happens_shows_that_it_lives(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "KEEP_ALIVE_S", 0.002)
    async with serving_api() as api, streaming(api) as messages:
        assert [await anext(messages) for _ in range(3)] == [": nothing happened\n\n"] * 3


async def test_a_reader_learns_that_there_are_new_numbers_without_an_event() -> None:
    async with serving_api() as api:
        response = stream_events(api.desk, request_of("/api/events"), job_id=None, after=None, kind=None)
        async with asyncio.timeout(stretch(20)):
            messages = aiter(response.body_iterator)
            assert [await anext(messages) for _ in range(2)] == [b"retry: 1000\n\n", b"event: changed\ndata: {}\n\n"]
            api.history.version += 1
            assert await anext(messages) == b"event: changed\ndata: {}\n\n"


@pytest.mark.parametrize("reason", ["the coordinator ends", "another one leads"])
async def test_a_stream_ends_when_its_coordinator_does_not_answer_any_more(reason: str) -> None:
    async with serving_api() as api:
        await api.join("a")
        async with streaming(api) as messages:
            assert worker_of(await anext(messages)) == "a joined"
            if reason == "the coordinator ends":
                api.desk.is_closing.set()
            else:
                api.leadership.follow(Leader("10.0.0.7:50051", term=2))
            assert [message async for message in messages] == []
