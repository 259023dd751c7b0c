"""Server-Sent Events: what happens, as it becomes durable, from a position on. A slow reader holds up nobody."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator

from starlette.requests import Request
from starlette.responses import StreamingResponse

from strata.coordinator.http.desk import Desk, describe_event
from strata.coordinator.http.http_gate import is_admitted

POLL_S = 0.25
BATCH = 500
# A comment keeps proxies from closing a connection on which nothing happens, and notices a reader that is gone.
KEEP_ALIVE_S = 15.0


def stream_events(
    desk: Desk, request: Request, *, job_id: str | None, after: str | None, kind: str | None
) -> StreamingResponse:
    """Return a response that never ends by itself. Each message has its position as id, for Last-Event-ID."""
    # A position that cannot be is refused before the first byte.
    desk.find_events(request, job_id=job_id, after=after, kind=kind, limit=1)
    return StreamingResponse(
        _messages(desk, request, job_id=job_id, after=after, kind=kind),
        media_type="text/event-stream",
        headers={"Cache-Control": "no-store", "X-Accel-Buffering": "no"},
    )


async def _messages(
    desk: Desk, request: Request, *, job_id: str | None, after: str | None, kind: str | None
) -> AsyncIterator[bytes]:
    yield b"retry: 1000\n\n"
    silent_s = 0.0
    version = -1
    while (
        not desk.is_closing.is_set()
        and desk.leadership.is_leader
        and is_admitted(desk.gate, request)
        and not await request.is_disconnected()
    ):
        found = desk.find_events(request, job_id=job_id, after=after, kind=kind, limit=BATCH)
        if found.is_lost:
            yield b"event: lost\ndata: {}\n\n"
        for position, event in found.events:
            body = describe_event(position, event).model_dump_json()
            yield f"id: {position}\nevent: event\ndata: {body}\n\n".encode()
        after = found.next
        if found.has_more:
            continue
        # Whoever shows numbers asks for them when this says that there are new ones.
        if desk.history.version != version:
            version = desk.history.version
            # Without the number: it counts what all tenants do.
            yield b"event: changed\ndata: {}\n\n"
            silent_s = 0.0
        elif silent_s >= KEEP_ALIVE_S:
            yield b": nothing happened\n\n"
            silent_s = 0.0
        try:
            async with asyncio.timeout(POLL_S):
                await desk.is_closing.wait()
        except TimeoutError:
            silent_s += POLL_S
