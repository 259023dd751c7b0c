"""The desk: one answer for everyone who asks the same of the same moment, with an ETag, and nothing made twice."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable
from concurrent.futures import Future
from typing import NamedTuple

import xxhash
from pydantic import BaseModel
from pydantic_core import to_json
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import Response

from strata.cluster.access.names import owns, present, qualify_name
from strata.cluster.events import Event
from strata.coordinator.entry.gate import Gate
from strata.coordinator.http import answers as a
from strata.coordinator.http.http_gate import principal_of_request
from strata.coordinator.http.known import Encoded, Facts, Known, Moves, WorkerRows
from strata.coordinator.http.prometheus_text import CONTENT_TYPE, render_metrics
from strata.coordinator.http.snapshot import Snapshot
from strata.coordinator.http.views import make_readiness
from strata.coordinator.replication.leadership import Leadership
from strata.coordinator.telemetry.event_store import Found
from strata.coordinator.telemetry.feed import Feed
from strata.coordinator.telemetry.history import History
from strata.errors import InvalidIdError, UnknownJobError

# Whoever asks gets what is at the most so old. A thousand heartbeats come in this time, and one copy serves all.
MAX_AGE_S = 0.25
# The coordinator's loop answers within milliseconds; one that does not is stuck.
SNAPSHOT_TIMEOUT_S = 5.0
MAX_CACHED = 64
MAX_CACHED_BYTES = 32 << 20
Make = Callable[[Known], BaseModel | Encoded]


class NotReadyError(Exception):
    """The coordinator's loop did not answer in time."""

    def __init__(self) -> None:
        super().__init__(f"the coordinator's own loop has not answered for {SNAPSHOT_TIMEOUT_S:g} s")


# Who asks is part of the question: callers that see the same share an answer, and no others do.
_Key = tuple[bool, str, str, str]


class _Kept(NamedTuple):
    versions: tuple[int, int]
    body: bytes
    etag: str


class Desk:
    """Answers requests from snapshots. All of it belongs to the event loop of the HTTP thread.

    ``take`` asks the coordinator's loop for a snapshot, and is asked only if someone wants an answer and something
    happened since the last one. ``now_s`` is the coordinator's time, and ``gate`` knows who was let in.
    """

    def __init__(
        self,
        take: Callable[[], Future[Snapshot]],
        feed: Feed,
        history: History,
        facts: Facts,
        now_s: Callable[[], float],
        leadership: Leadership,
        gate: Gate | None = None,
    ) -> None:
        self.gate = gate
        self._take = take
        self.leadership = leadership
        self._feed = feed
        self.facts = facts
        self._moves = Moves()
        self._rows = WorkerRows()
        self._snapshot: Snapshot | None = None
        self._taken_s = float("-inf")
        self._taking: asyncio.Task[Snapshot] | None = None
        self._kept: dict[_Key, _Kept] = {}
        self._kept_bytes = 0
        self.history = history
        self.now_s = now_s
        self.is_closing = asyncio.Event()

    async def know(self) -> Known:
        """Return what is known, not older than :data:`MAX_AGE_S`; raise NotReadyError."""
        snapshot = self._snapshot
        if snapshot is None or (
            snapshot.version != self._feed.changes and time.monotonic() - self._taken_s > MAX_AGE_S
        ):
            if self._taking is None:
                self._taking = asyncio.create_task(self._refresh(), name="snapshot")
                self._taking.add_done_callback(self._forget_taking)
            snapshot = await asyncio.shield(self._taking)
        self.history.drain(self.now_s())
        return Known(snapshot, self.history, self.facts, self._moves, self._rows, self.leadership)

    async def answer(self, request: Request, make: Make, *, is_heavy: bool = False) -> Response:
        """Answer with what ``make`` returns, or with 304 if the client has it.

        What the copy does not have is looked for in a new one: who was just told that something is there must find it.
        """
        try:
            return await self._answer(request, make, is_heavy=is_heavy)
        except LookupError:
            if self._snapshot is None or self._snapshot.version == self._feed.changes:
                raise
            self._snapshot = None
            return await self._answer(request, make, is_heavy=is_heavy)

    async def _answer(self, request: Request, make: Make, *, is_heavy: bool) -> Response:
        principal = principal_of_request(request)
        known = await self.know()
        versions = known.snapshot.version, known.history.version
        key = (principal.sees_all, principal.tenant, principal.jobs, f"{request.url.path}?{request.url.query}")
        kept = self._kept.get(key)
        if kept is None or kept.versions != versions:
            seen = known.as_seen_by(principal)
            content = await asyncio.to_thread(make, seen) if is_heavy else make(seen)
            body = content.body if isinstance(content, Encoded) else to_json(content)
            kept = _Kept(versions, body, _etag(body))
            self._keep(key, kept)
        return self._respond(request, kept.body, kept.etag)

    def _respond(self, request: Request, body: bytes, etag: str) -> Response:
        if _matches(request.headers.get("if-none-match"), etag):
            return Response(status_code=304, headers=self._headers(etag))
        return Response(body, media_type="application/json", headers=self._headers(etag))

    async def fresh(self, make: Callable[[Known], BaseModel]) -> Response:
        """Answer with what is true now, whether or not anything changed: the coordinator's loop is asked."""
        content = make(await self._know_afresh())
        return Response(content.model_dump_json(), media_type="application/json", headers=self._headers(None))

    async def ready(self, role: a.ReplicaRole | None) -> Response:
        """Answer 200 if this replica is in its place, and in the role that is asked for, else 503."""
        readiness = make_readiness(await self._know_afresh())
        is_asked_for = role is None or role is readiness.role
        return Response(
            readiness.model_dump_json(),
            status_code=200 if readiness.ready and is_asked_for else 503,
            media_type="application/json",
            headers=self._headers(None),
        )

    def find_events(
        self,
        request: Request,
        *,
        job_id: str | None,
        after: str | None,
        kind: str | None,
        limit: int,
        newest: bool = False,
    ) -> Found:
        """Return durable events that the caller is shown; a position that cannot be is refused with 422."""
        principal = principal_of_request(request)
        try:
            key = None if job_id is None else qualify_name(principal, job_id)
        except InvalidIdError as error:
            # With a tenant before it, as only an administrator says it: nobody else has such a job.
            raise UnknownJobError(str(job_id), known=()) from error
        self.history.drain(self.now_s())
        try:
            found = self.history.events.find(
                after=after,
                job_id=key,
                kind=kind,
                limit=limit,
                newest=newest,
                is_shown=lambda event: owns(principal, event.job_id),
            )
        except ValueError as error:
            raise HTTPException(422, str(error)) from error
        return found._replace(events=[(position, present(principal, event)) for position, event in found.events])

    async def list_events(
        self, request: Request, *, job_id: str | None, after: str | None, kind: str | None, limit: int, newest: bool
    ) -> Response:
        """Answer with a page of events."""
        found = self.find_events(request, job_id=job_id, after=after, kind=kind, limit=limit, newest=newest)
        content = a.Events(
            items=[describe_event(position, event) for position, event in found.events],
            next=found.next,
            has_more=found.has_more,
            lost=found.is_lost,
        )
        body = to_json(content)
        return self._respond(request, body, _etag(body))

    async def metrics(self, request: Request) -> Response:
        """Answer in Prometheus' text format."""
        known = (await self.know()).as_seen_by(principal_of_request(request))
        failed = 0 if self.gate is None else self.gate.attempts.total
        text = render_metrics(known, self._feed, failed_attempts=failed)
        return Response(text, media_type=CONTENT_TYPE)

    async def _know_afresh(self) -> Known:
        """Ask the coordinator's loop, though nothing may have changed: that it answers is what is asked."""
        if time.monotonic() - self._taken_s > MAX_AGE_S:
            self._snapshot = None
        return await self.know()

    async def _refresh(self) -> Snapshot:
        try:
            async with asyncio.timeout(SNAPSHOT_TIMEOUT_S):
                snapshot = await asyncio.wrap_future(self._take())
        except TimeoutError as error:
            raise NotReadyError from error
        self._snapshot, self._taken_s = snapshot, time.monotonic()
        self._rows.forget(snapshot)
        self._moves.forget(snapshot)
        return snapshot

    def _forget_taking(self, task: Awaitable[Snapshot]) -> None:
        self._taking = None

    def _keep(self, key: _Key, kept: _Kept) -> None:
        if key in self._kept:
            self._kept_bytes -= len(self._kept.pop(key).body)
        self._kept[key] = kept
        self._kept_bytes += len(kept.body)
        while self._kept and (len(self._kept) > MAX_CACHED or self._kept_bytes > MAX_CACHED_BYTES):
            self._kept_bytes -= len(self._kept.pop(next(iter(self._kept))).body)

    def _headers(self, etag: str | None) -> dict[str, str]:
        headers = {"Cache-Control": "no-cache", "X-Strata-Time": f"{self.now_s():.3f}"}
        return headers if etag is None else {**headers, "ETag": etag}


def describe_event(position: str, event: Event) -> a.EventEntry:
    """Return an event as an answer."""
    return a.EventEntry(
        position=position,
        at_s=event.at_s,
        job_id=event.job_id,
        worker_id=event.worker_id,
        kind=event.kind,
        reason=event.reason,
        cause=event.cause,
        is_failure=event.cause is not None and event.cause.is_failure,
        by=event.by,
        address=event.address,
    )


def _etag(body: bytes) -> str:
    return f'"{xxhash.xxh3_64_hexdigest(body)}"'


def _matches(given: str | None, etag: str) -> bool:
    """Whether one of the ETags of a request is this one; a proxy may have weakened it."""
    if given is None:
        return False
    return given.strip() == "*" or etag in (each.strip().removeprefix("W/") for each in given.split(","))
