"""The thread that serves HTTP: an event loop of its own, so that no request delays a heartbeat."""

from __future__ import annotations

import asyncio
import logging
import socket
import threading
import time
import uuid
from collections.abc import Callable
from concurrent.futures import Future
from contextlib import suppress
from functools import partial

import uvicorn
from starlette.routing import BaseRoute

from strata.address import join_address
from strata.cluster.events import Event
from strata.coordinator.dispatcher import Dispatcher
from strata.coordinator.entry.gate import Gate
from strata.coordinator.entry.server_tls import ServerTls
from strata.coordinator.failing.fail_stop import FailStop
from strata.coordinator.http.desk import Desk
from strata.coordinator.http.http_api import make_app
from strata.coordinator.http.http_gate import HttpGate
from strata.coordinator.http.known import Facts
from strata.coordinator.http.snapshot import Snapshot, Snapshots
from strata.coordinator.journal import journal_path
from strata.coordinator.replication.leadership import Leadership
from strata.coordinator.sessions import Sessions
from strata.coordinator.telemetry.event_store import EventStore
from strata.coordinator.telemetry.feed import Feed
from strata.coordinator.telemetry.history import History
from strata.coordinator.telemetry.history_file import HistoryFile
from strata.errors import PortTakenError

log = logging.getLogger(__name__)

BACKLOG = 256
# So many requests may be under way; more are refused with 503 at once.
MAX_UNDER_WAY = 512
# How often the feed is drained when nobody asks, and how often what is new goes to the file. After a failure it goes
# there with the next drain. A large history goes there less often: at most a hundredth of the time.
DRAIN_S = 1.0
SAVE_S = 5.0
SHARE = 100
# So much of the feed is taken over at once, and then others have the interpreter for a while.
DRAIN_ITEMS = 32
DRAIN_PAUSE_S = 0.003
STOP_S = 2.0
MakePage = Callable[[], BaseRoute]


class HttpThread:
    """Serves from :meth:`start` to :meth:`close`. The port is bound before that, so that one that is taken is an error.

    ``take`` is called in this thread and asks the coordinator's loop for a snapshot.
    """

    def __init__(
        self,
        host: str,
        port: int,
        *,
        feed: Feed,
        history: History,
        file: HistoryFile | None,
        now_s: Callable[[], float],
        gate: Gate,
        make_page: MakePage | None,
        leadership: Leadership,
        tls: ServerTls | None = None,
        fail_stop: FailStop | None = None,
    ) -> None:
        self._fail_stop = fail_stop or FailStop()
        self._leadership = leadership
        self._socket = _bind(host, port)
        self._host = host
        self.port: int = self._socket.getsockname()[1]
        self._feed = feed
        self._history = history
        self._file = file
        self._now_s = now_s
        self._gate = gate
        self._make_page = make_page
        self._tls = tls
        self._server: uvicorn.Server | None = None
        self._desk: Desk | None = None
        self._loop: asyncio.AbstractEventLoop | None = None
        self._thread: threading.Thread | None = None
        self._is_closing = False

    def start(self, facts: Facts, replayed: list[Event], take: Callable[[], Future[Snapshot]]) -> None:
        """Begin to serve, with the events that are known already."""
        run = self._fail_stop.guard(partial(self._run, facts, replayed, take), name="strata-http")
        self._thread = threading.Thread(target=run, name="strata-http", daemon=True)
        self._thread.start()

    def close(self) -> None:
        """End streams, answer what is under way, and end the thread; in another thread than the coordinator's loop."""
        # Before the server is looked for: the thread may be about to make it, and looks at this afterwards.
        self._is_closing = True
        if self._loop is not None and self._server is not None and self._desk is not None:
            with suppress(RuntimeError):  # it has ended by itself
                self._loop.call_soon_threadsafe(self._desk.is_closing.set)
            self._server.should_exit = True
        if self._thread is not None:
            self._thread.join(2 * STOP_S + SAVE_S)
        self._socket.close()

    def _run(self, facts: Facts, replayed: list[Event], take: Callable[[], Future[Snapshot]]) -> None:
        # Here, and not on the coordinator's loop: a long history takes a second to read.
        if self._file is not None:
            self._file.load(self._history)
        self._history.recover(replayed)
        self._history.note_start(facts.started_s)
        self._history.events.extend(replayed)
        with asyncio.Runner() as runner:
            runner.run(self._serve(facts, take))

    async def _serve(self, facts: Facts, take: Callable[[], Future[Snapshot]]) -> None:
        tls = self._tls
        self._desk = desk = Desk(take, self._feed, self._history, facts, self._now_s, self._leadership, self._gate)
        config = uvicorn.Config(
            HttpGate(make_app(desk, None if self._make_page is None else self._make_page()), self._gate),
            log_config=None,
            log_level="warning",
            access_log=False,
            backlog=BACKLOG,
            limit_concurrency=MAX_UNDER_WAY,
            lifespan="off",
            server_header=False,
            timeout_keep_alive=30,
            timeout_graceful_shutdown=int(STOP_S),
            ws="none",
            ssl_context_factory=None if tls is None else lambda *_: tls.context(),
        )
        self._loop = asyncio.get_running_loop()
        # Signals belong to the coordinator's loop, which is the main thread's.
        self._server = uvicorn.Server(config)
        keeping = self._fail_stop.own(self._keep(), name="telemetry")
        try:
            if not self._is_closing:
                await self._server.serve(sockets=[self._socket])
                if not self._is_closing:
                    raise RuntimeError("the HTTP server ended by itself")
        finally:
            keeping.cancel()
            await asyncio.gather(keeping, return_exceptions=True)
            await self._save()

    async def _keep(self) -> None:
        """Take over what the coordinator does, and write down what is new; nobody waits for it."""
        since_saved_s, took_s, failures = 0.0, 0.0, self._history.failures
        while True:
            await asyncio.sleep(DRAIN_S)
            await self._drain()
            since_saved_s += DRAIN_S
            due_s = DRAIN_S if self._history.failures != failures else SAVE_S
            if since_saved_s >= max(due_s, SHARE * took_s):
                failures, began_s = self._history.failures, time.monotonic()
                await self._save()
                since_saved_s, took_s = 0.0, time.monotonic() - began_s

    async def _drain(self) -> None:
        """Take over the feed, a little at a time: the coordinator's loop waits for the interpreter meanwhile."""
        is_empty = False
        while not is_empty:
            is_empty = self._history.drain(self._now_s(), most=DRAIN_ITEMS)
            await asyncio.sleep(DRAIN_PAUSE_S)

    async def _save(self) -> None:
        if self._file is not None:
            self._history.drain(self._now_s())
            await self._file.save(self._history, now_s=self._now_s())


def serve_http(
    host: str,
    port: int,
    dispatcher: Dispatcher,
    sessions: Sessions,
    feed: Feed,
    leadership: Leadership,
    *,
    replayed: list[Event],
    state: str,
    version: str,
    grpc_port: int,
    channel_port: int,
    gate: Gate,
    make_page: MakePage | None,
    tls: ServerTls | None = None,
    fail_stop: FailStop | None = None,
) -> HttpThread:
    """Serve HTTP for a coordinator; called on its event loop.

    ``replayed`` are the events from before its first command; what came since is in the feed.
    """
    loop, snapshots = asyncio.get_running_loop(), Snapshots(dispatcher, sessions, feed)
    events = EventStore(uuid.uuid4().hex[:8])
    history = History(feed, events)
    path = journal_path(state)
    file = None if path is None else HistoryFile(path.with_name(path.name + "-history.jsonl"))
    thread = HttpThread(
        host,
        port,
        feed=feed,
        history=history,
        file=file,
        now_s=dispatcher.now_s,
        gate=gate,
        make_page=make_page,
        leadership=leadership,
        tls=tls,
        fail_stop=fail_stop,
    )
    facts = Facts(
        version=version,
        started_s=dispatcher.now_s(),
        journal=state.partition("://")[0],
        grpc_port=grpc_port,
        channel_port=channel_port,
    )
    thread.start(facts, replayed, lambda: asyncio.run_coroutine_threadsafe(snapshots.take(), loop))
    return thread


def _bind(host: str, port: int) -> socket.socket:
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    listening = socket.socket(family, socket.SOCK_STREAM)
    try:
        listening.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listening.bind((host, port))
        # Before the thread serves: who is told that the coordinator is ready may connect at once.
        listening.listen(BACKLOG)
    except OSError as error:
        listening.close()
        raise PortTakenError("HTTP", join_address(host, port), error.strerror or str(error)) from error
    return listening
