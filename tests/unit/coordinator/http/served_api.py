"""The HTTP API on top of a real dispatcher, asked without a port: what is done and what is seen have one event loop."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from concurrent.futures import Future
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Any
from urllib.parse import unquote

from starlette.requests import Request
from starlette.types import ASGIApp

from strata.clock import ManualClock
from strata.cluster import Limits
from strata.cluster import commands as c
from strata.cluster.replies import Reply
from strata.cluster.values import WorkerAccount
from strata.coordinator.dispatcher import Dispatcher
from strata.coordinator.http.desk import Desk
from strata.coordinator.http.http_api import make_app
from strata.coordinator.http.known import Facts
from strata.coordinator.http.snapshot import Snapshot, Snapshots
from strata.coordinator.journal import Journal, MemoryJournal
from strata.coordinator.replication.leadership import lead_alone
from strata.coordinator.sessions import Sessions
from strata.coordinator.telemetry.event_store import EventStore
from strata.coordinator.telemetry.feed import Feed
from strata.coordinator.telemetry.history import History

BEGAN_S = 1_000_000.0


@dataclass(frozen=True)
class Answer:
    """What came back."""

    status: int
    headers: dict[str, str]
    body: bytes

    @property
    def content(self) -> Any:
        return json.loads(self.body)


class ServedApi:
    """A coordinator without its ports. Its clock stands still unless it is moved; begin it on a running loop."""

    def __init__(self, journal: Journal | None = None) -> None:
        self.clock = ManualClock(wall_s=BEGAN_S)
        self.leadership = lead_alone(self.clock)
        self.feed = Feed()
        self.history = History(self.feed, EventStore("life"))
        self.dispatcher = Dispatcher(
            journal or MemoryJournal(),
            limits=Limits(),
            clock=self.clock,
            deliver=lambda _: None,
            feed=self.feed,
            leadership=self.leadership,
        )
        self.snapshots = Snapshots(self.dispatcher, Sessions(), self.feed)
        self._loop = asyncio.get_running_loop()
        facts = Facts(version="test", started_s=BEGAN_S, journal="memory", grpc_port=1, channel_port=2)
        self.desk = Desk(self._take, self.feed, self.history, facts, self.dispatcher.now_s, self.leadership)
        self.app: ASGIApp = make_app(self.desk)

    def _take(self) -> Future[Snapshot]:
        return asyncio.run_coroutine_threadsafe(self.snapshots.take(), self._loop)

    async def ask(self, *commands: c.Command) -> Reply:
        """Carry out commands; return the reply to the last."""
        for command in commands:
            reply = await self.dispatcher.ask(command)
        return reply

    async def join(self, *workers: str, job_id: str = "job", incarnation: str = "1-x") -> None:
        """Register workers."""
        for worker in workers:
            await self.ask(c.RegisterWorker(job_id=job_id, worker_id=worker, incarnation=incarnation))

    async def get(self, path: str, *, method: str = "GET", **headers: str) -> Answer:
        """Return the answer to a request."""
        sent: list[dict[str, Any]] = []

        async def send(message: Any) -> None:
            sent.append(message)

        await self.app(scope_of(path, method=method, **headers), _receive, send)
        found = {name.decode(): value.decode() for name, value in sent[0]["headers"]}
        return Answer(sent[0]["status"], found, b"".join(message.get("body", b"") for message in sent[1:]))

    async def see(self, path: str) -> Any:
        """Return what an answer that must be there holds."""
        answer = await self.get(path)
        assert answer.status == 200, answer.body
        return answer.content


def scope_of(path: str, *, method: str = "GET", **headers: str) -> dict[str, Any]:
    """Return a request as a server hands it to an application; ``_`` in the name of a header is ``-``."""
    place, _, query = path.partition("?")
    return {
        "type": "http",
        "asgi": {"version": "3.0", "spec_version": "2.4"},
        "http_version": "1.1",
        "method": method,
        "scheme": "http",
        "path": unquote(place),
        "raw_path": place.encode(),
        "root_path": "",
        "query_string": query.encode(),
        "headers": [(name.replace("_", "-").encode(), value.encode("latin-1")) for name, value in headers.items()],
        "client": ("127.0.0.1", 1),
        "server": ("127.0.0.1", 8080),
    }


async def _receive() -> dict[str, Any]:
    """Say that the client is still there, without a wait."""
    return {"type": "http.request", "body": b"", "more_body": False}


def request_of(path: str, **headers: str) -> Request:
    """Return a request whose client is there."""
    return Request(scope_of(path, **headers), _receive)


@asynccontextmanager
async def serving_api(journal: Journal | None = None) -> AsyncIterator[ServedApi]:
    """Serve until the block ends; what waits for the journal is written then."""
    api = ServedApi(journal)
    try:
        yield api
    finally:
        await api.dispatcher.stand_by()


def account(elapsed_s: float, *, steps: int, rank: int = 0, generation: int = 1, **parts: Any) -> WorkerAccount:
    """Return what a worker did since it joined; time that ``parts`` do not name was spent on steps."""
    named = {f"{part}_s": float(parts.pop(part)) for part in tuple(parts) if part != "saves"}
    rest = dict.fromkeys(("data_s", "save_s", "restore_s", "wait_s", "repeated_s", "other_s"), 0.0) | named
    return WorkerAccount(
        elapsed_s=elapsed_s,
        compute_s=elapsed_s - sum(rest.values()),
        **rest,
        steps=steps,
        repeated_steps=0,
        samples=0,
        generation=generation,
        rank=rank,
        **parts,
    )
