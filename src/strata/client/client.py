"""Client: the connection for a training loop that has no event loop of its own.

It lives in a thread with its own event loop, so that the worker keeps beating while the training thread computes. While
a call holds the interpreter's lock, a small process beside it vouches for the worker; see docs/coordinator.md.
"""

from __future__ import annotations

import asyncio
import atexit
import logging
import os
import uuid
from collections.abc import Callable, Coroutine, Sequence
from concurrent.futures import Future
from dataclasses import replace
from typing import Any, Self, TypeVar

from strata.background import BackgroundLoop
from strata.checkpoint.coordination import CommitRecord, ManifestWriter, PartAck
from strata.client.commits import Commits
from strata.client.connection import Connection, W
from strata.client.vouching import BEATS_PER_LEASE, Vouching
from strata.cluster import commands as c
from strata.cluster.events import BarrierReleased, Effect
from strata.cluster.replies import Heard, Registered, Reply
from strata.cluster.seat import Seat
from strata.errors import ClusterError

T = TypeVar("T")
log = logging.getLogger(__name__)
GOODBYE_TIMEOUT_S = 2.0
SEAT_TIMEOUT_S = 10.0
# So long may the interpreter's lock be held before the worker counts as hanging.
VOUCH_S = 300.0


class Client:
    """A worker's connection with blocking calls, usable from any thread; leaving the block says goodbye.

    It does not survive a fork: a child that uses it gets an error that says so, and its parent is not disturbed.
    ``vouch_s`` is how long the interpreter's lock may be held before the worker counts as hanging; with 0 there is no
    process beside it, and a lock that is held for longer than the lease ends it.
    """

    def __init__(
        self,
        url: str,
        worker_id: str,
        *,
        job_id: str = "default",
        on_effect: Callable[[Effect], None] = lambda _: None,
        vouch_s: float = VOUCH_S,
        **registration: Any,
    ) -> None:
        self._pid = os.getpid()
        self._worker = c.RegisterWorker(
            job_id=job_id, worker_id=worker_id, incarnation=uuid.uuid4().hex, **registration
        )
        self._url = url
        self._background = BackgroundLoop("strata-client", owner="a Client")
        self._on_effect = on_effect
        self._vouching = Vouching(bound_s=vouch_s) if vouch_s else None
        self._connection, self._commits = self._call(self._make())
        self._background.submit(self._run()).add_done_callback(_log_end)
        self._closed = False
        # After the managers that use it: they are closed before plain atexit, and their last commits need it.
        atexit.register(self.close)

    @property
    def generation(self) -> int:
        """The generation that the worker knows of."""
        return self._connection.generation

    @property
    def why_changed(self) -> str:
        """Why the generation before this one ended, as far as it was said."""
        return self._connection.why_changed

    @property
    def transport(self) -> str:
        """What carries the frames now: channel, stream, or nothing."""
        return self._connection.kind

    def wait_registered(self, timeout_s: float = 30.0) -> Registered:
        """Return the worker's place in its job, when the coordinator has taken it in."""
        self.heartbeat(timeout_s=timeout_s)
        assert self._connection.registered is not None
        return self._connection.registered

    def heartbeat(self, *, timeout_s: float | None = None, **fields: Any) -> Heard:
        """Say what the worker is doing; the beats in the background go on saying it."""
        # Another incarnation than the first, if it was declared dead meanwhile and joined anew.
        fields["incarnation"] = self._connection.worker.incarnation
        self._connection.beat = replace(self._connection.beat, **fields)
        heard = self.ask(self._connection.beat, timeout_s=timeout_s)
        assert isinstance(heard, Heard)
        return heard

    def note(self, **fields: Any) -> None:
        """Let the beats in the background say what the worker is doing, without waiting for one."""
        self._connection.beat = replace(self._connection.beat, **fields)

    def own(self, kind: type[W], **fields: Any) -> W:
        """Return a command of this worker in its present life."""
        return self._connection.own(kind, **fields)

    def ask(self, command: c.JobCommand, *, timeout_s: float | None = None) -> Reply:
        """Send a command and return its reply, or raise its error."""
        return self._call(self._connection.ask(command, timeout_s=timeout_s))

    def tell(self, command: c.JobCommand) -> Future[Reply]:
        """Send a command without waiting; it is sent again until it is answered, also after an outage."""
        return self._background.submit(self._connection.ask(command))

    def meet(self, name: str, **fields: Any) -> BarrierReleased:
        """Arrive at a barrier and return when it is released, or raise why it will not be."""
        return self._call(self._connection.meet(name, **fields))

    # What a CheckpointManager needs of it: see strata.checkpoint.coordination.CommitCoordinator.

    def take_seat(self) -> Seat:
        """Return the worker's present seat, as last heard; waits only if it was heard that there is a new one."""
        if self._connection.registered is None:
            self.wait_registered()
        if self._connection.seat.generation < self._connection.generation:
            self.heartbeat(timeout_s=SEAT_TIMEOUT_S)
        return self._connection.seat

    def commit_part(self, ack: PartAck, *, timeout_s: float, on_wait: Callable[[Sequence[str]], None]) -> Future[None]:
        """Acknowledge a part; done when its checkpoint is committed."""
        return self._background.submit(self._commits.commit_part(ack, timeout_s=timeout_s, on_wait=on_wait))

    def serve_manifests(self, writer: ManifestWriter | None) -> None:
        """Let this writer write the manifests that the worker is asked for."""
        if not self._closed:
            self._background.call_soon(self._commits.serve_manifests, writer)

    def adopt_checkpoints(self, records: Sequence[CommitRecord]) -> Future[None]:
        """Make known what storage holds."""
        return self._background.submit(self._commits.adopt_checkpoints(records))

    def reject_checkpoint(self, step: int, reason: str) -> Future[None]:
        """Make known that a committed step cannot be restored; see ``CommitCoordinator``."""
        return self._background.submit(self._commits.reject_checkpoint(step, reason))

    def forget_checkpoints(self, steps: Sequence[int]) -> Future[None]:
        """Make known what was deleted."""
        return self._background.submit(self._commits.forget_checkpoints(steps))

    def find_restore_point(self, *, timeout_s: float) -> Future[int | None]:
        """Return the step that all workers of this generation go on from, or None for the beginning."""
        return self._background.submit(self._commits.find_restore_point(timeout_s=timeout_s))

    def close(self) -> None:
        """Say goodbye, if the coordinator can hear it, and end the thread."""
        if self._closed or self._pid != os.getpid():
            return
        self._closed = True
        atexit.unregister(self.close)
        try:
            if self._connection.registered is not None:
                self.ask(self._connection.own(c.Goodbye), timeout_s=GOODBYE_TIMEOUT_S)
        except ClusterError as error:
            log.info("no goodbye was said, so the lease will end: %s", error)
        finally:
            self._background.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    async def _make(self) -> tuple[Connection, Commits]:
        connection = Connection(self._url, self._worker, on_effect=self._take_effect, on_join=self._tick)
        return connection, Commits(connection)

    async def _run(self) -> None:
        ticking = asyncio.get_running_loop().create_task(self._tick_for_ever())
        try:
            await self._connection.run()
        finally:
            ticking.cancel()
            if self._vouching is not None:
                self._vouching.close()

    async def _tick_for_ever(self) -> None:
        while True:
            self._tick()
            lease_s = self._connection.registered.lease_s if self._connection.registered is not None else 1.0
            await asyncio.sleep(lease_s / BEATS_PER_LEASE / 2)

    def _tick(self) -> None:
        """Let the process beside this one know that this thread runs; it speaks for the worker when it does not."""
        if self._vouching is None:
            return
        connection = self._connection
        # Only where the channel is open: the small process does not speak gRPC.
        if connection.registered is not None and connection.kind == "channel":
            self._vouching.speak_for(connection.worker, connection.channel_url, connection.registered.lease_s)
        self._vouching.tick()

    def _take_effect(self, effect: Effect) -> None:
        self._commits.take_effect(effect)
        self._on_effect(effect)

    def _call(self, work: Coroutine[Any, Any, T]) -> T:
        future = self._background.submit(work)
        try:
            return future.result()
        except KeyboardInterrupt:
            future.cancel()
            raise


def _log_end(running: Future[None]) -> None:
    if not running.cancelled() and (error := running.exception()) is not None:
        log.error("the connection to the coordinator ended: %s", error, exc_info=error)
