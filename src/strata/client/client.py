"""Client: the connection for a training loop that has no event loop of its own.

It lives in a thread with its own event loop, so that the worker keeps beating while the training thread computes. While
a call holds the interpreter's lock, a small process beside it keeps the worker alive; see docs/coordinator.md.
"""

from __future__ import annotations

import atexit
import logging
import os
import sys
import uuid
import weakref
from collections.abc import Callable, Coroutine, Sequence
from concurrent.futures import Future
from dataclasses import replace
from functools import partial
from types import TracebackType
from typing import Any, Self, TypeVar

from strata.background import BackgroundLoop
from strata.checkpoint.commit.protocol import ManifestWriter
from strata.client.keep_alive import KeepAliveProcess
from strata.client.membership_loop import MembershipLoop
from strata.client.worker.goodbye import goodbye_of
from strata.client.worker.identity import W
from strata.client.worker.states import State
from strata.clock import read_boot_time
from strata.cluster import commands as c
from strata.cluster.events import BarrierReleased, Cause, Effect
from strata.cluster.membership import name_process, new_incarnation
from strata.cluster.replies import CommittedSteps, HeartbeatReply, Registered, Reply
from strata.cluster.values import BootTime, CommitRecord, PartReport, RankInfo, Span
from strata.errors import ClientClosedError, ClusterError
from strata.reported_numbers import ReportedNumbers

T = TypeVar("T")
log = logging.getLogger(__name__)
GOODBYE_TIMEOUT_S = 2.0
# A coordinator that is away for longer is told at the next occasion.
TELL_TIMEOUT_S = 60.0
# The index is compared with storage again after the next commit, and a program may be about to end.
ASK_TIMEOUT_S = 3.0
RANK_INFO_TIMEOUT_S = 10.0
# So long may the interpreter's lock be held before the worker counts as hanging.
KEEP_ALIVE_S = 300.0


class Client:
    """A worker's connection with blocking calls, usable from any thread; leaving the block says goodbye and why.

    It does not survive a fork: a child that uses it gets an error that says so, and its parent is not disturbed.
    ``keep_alive_s`` is how long the interpreter's lock may be held before the worker counts as hanging. With 0 there is
    no keep-alive process, and a lock that is held for longer than the lease ends the worker.
    """

    def __init__(
        self,
        url: str,
        worker_id: str,
        *,
        job_id: str = "default",
        on_effect: Callable[[Effect], None] = lambda _: None,
        keep_alive_s: float = KEEP_ALIVE_S,
        **registration: Any,
    ) -> None:
        self._pid = os.getpid()
        self._job_id = job_id
        started = read_boot_time()
        incarnation = new_incarnation(None if started is None else BootTime(*started), uuid.uuid4().hex[:12])
        self.process = name_process(incarnation)
        """What tells this process apart from others of the same worker id; status has it of each worker."""
        self._worker = c.RegisterWorker(job_id=job_id, worker_id=worker_id, incarnation=incarnation, **registration)
        self._background = BackgroundLoop(
            "strata-client", owner="a Client", make_closed_error=partial(ClientClosedError, worker_id)
        )
        keep_alive = KeepAliveProcess(bound_s=keep_alive_s) if keep_alive_s else None
        try:
            membership = self._call(_make(url, self._worker, on_effect, keep_alive))
        except BaseException:
            self._background.close()
            raise
        self._driver = membership.driver
        self._numbers = ReportedNumbers()
        self._background.submit(membership.run()).add_done_callback(_log_end)
        self._closed = False
        # Also when nobody holds this client any more; then the channel closes without a goodbye.
        self._finalizer = weakref.finalize(self, self._background.stop)
        self._finalizer.atexit = False
        # After the managers that use it: they are closed before plain atexit, and their last commits need it.
        self._at_exit = partial(_close_at_exit, weakref.ref(self))
        atexit.register(self._at_exit)

    @property
    def incarnation(self) -> str:
        """The life of this process in which it is a worker of the job."""
        return self._driver.protocol.worker.incarnation

    @property
    def generation(self) -> int:
        """The generation that the worker knows of."""
        return self._driver.protocol.generation

    @property
    def why_changed(self) -> str:
        """Why the generation before this one ended, as far as it was said."""
        return self._driver.protocol.why_changed

    @property
    def cause_changed(self) -> Cause | None:
        """What ended the generation before this one, as far as the coordinator said."""
        return self._driver.protocol.cause_changed

    @property
    def transport(self) -> str:
        """What carries the frames now: channel, stream, or nothing."""
        return self._driver.kind

    def check(self, generation: int) -> None:
        """Raise why this worker must not go on training in a generation, as far as it is known here."""
        error = self._driver.protocol.check(generation)
        if error is not None:
            raise error

    def wait_registered(self, timeout_s: float = 30.0) -> Registered:
        """Return the worker's place in its job, when the coordinator has taken it in."""
        self.heartbeat(timeout_s=timeout_s)
        assert self._driver.protocol.registered is not None
        return self._driver.protocol.registered

    def heartbeat(self, *, timeout_s: float | None = None, **fields: Any) -> HeartbeatReply:
        """Say what the worker is doing; the heartbeats in the background go on saying it."""
        self.note(**fields)
        return self._call(self._driver.heartbeat(timeout_s=timeout_s))

    def note(self, **fields: Any) -> None:
        """Let the heartbeats in the background say what the worker is doing, without waiting for one.

        Resources that are no numbers, or too many, are left out with a warning: they end no worker.
        """
        if "resources" in fields:
            fields["resources"] = self._numbers.fit(fields["resources"])
        heartbeats = self._driver.protocol.heartbeats
        heartbeats.beat = replace(heartbeats.beat, **fields)

    def worker_command(self, kind: type[W], **fields: Any) -> W:
        """Return a command of this worker in its present incarnation."""
        return self._driver.protocol.worker_command(kind, **fields)

    def ask(self, command: c.JobCommand, *, timeout_s: float | None = None) -> Reply:
        """Send a command and return its reply, or raise its error."""
        return self._call(self._driver.ask(command, timeout_s=timeout_s))

    def tell(self, command: c.JobCommand) -> Future[Reply]:
        """Send a command without waiting; it is sent again until it is answered, also after an outage."""
        return self._background.submit(self._driver.ask(command))

    def report(
        self,
        *,
        generation: int,
        dataset_id: str,
        epoch: int,
        step: int,
        spans: tuple[Span, ...],
        is_passed_over: bool = False,
    ) -> Future[None]:
        """Say what the model has seen, or passed over, without waiting; it arrives before what is said after it."""
        return self._background.submit(
            self._driver.report(
                generation=generation,
                dataset_id=dataset_id,
                epoch=epoch,
                step=step,
                spans=spans,
                is_passed_over=is_passed_over,
            )
        )

    def next_round(self, name: str, generation: int) -> int:
        """Return which round of a barrier comes next: 1, unless its name was used in this generation before."""
        return self._driver.protocol.meetings.next_round(name, generation)

    def meet(self, name: str, **fields: Any) -> BarrierReleased:
        """Arrive at a barrier and return when it is released, or raise why it will not be."""
        return self._call(self._driver.meet(name, **fields))

    # What a CheckpointManager needs of it: see strata.checkpoint.commit.protocol.CommitCoordinator.

    def get_rank_info(self) -> RankInfo:
        """Return the worker's present rank, as last heard; waits only if it is known that there is a new one."""
        protocol = self._driver.protocol
        self.check(protocol.generation)
        if protocol.registered is None:
            self.wait_registered()
        if protocol.rank_info.generation < protocol.generation:
            self.heartbeat(timeout_s=RANK_INFO_TIMEOUT_S)
        return protocol.rank_info

    def begin_part(self, step: int, generation: int) -> int:
        """Note that a save has begun; see ``CommitCoordinator``."""
        return self._call(self._begin_part(step, generation))

    def commit_part(
        self,
        number: int,
        *,
        epoch: int,
        report: PartReport,
        timeout_s: float,
        on_wait: Callable[[Sequence[str]], None],
    ) -> Future[None]:
        """Report a durable part; done when its checkpoint is committed."""
        return self._background.submit(
            self._driver.commit_part(number, epoch=epoch, report=report, timeout_s=timeout_s, on_wait=on_wait)
        )

    def drop_part(self, number: int, reason: str) -> None:
        """Say that a save failed, so that the other workers do not wait for its part."""
        if not self._closed:
            self._background.call_soon(self._driver.drop_part, number, reason)

    def serve_manifests(self, writer: ManifestWriter | None) -> None:
        """Let this writer write the manifests that the worker is asked for."""
        if not self._closed:
            self._background.call_soon(self._driver.serve_manifests, writer)

    def adopt_checkpoints(self, records: Sequence[CommitRecord]) -> Future[None]:
        """Make known what storage holds."""
        return self._background.submit(self._do(c.AdoptCheckpoints(job_id=self._job_id, checkpoints=tuple(records))))

    def adopt_rewind(self, number: int, to_step: int, reason: str) -> Future[None]:
        """Make known that an operator rewound the job."""
        command = c.RewindJob(job_id=self._job_id, number=number, to_step=to_step, reason=reason)
        return self._background.submit(self._do(command))

    def reject_checkpoint(self, step: int, reason: str) -> Future[None]:
        """Make known that a committed step cannot be restored; see ``CommitCoordinator``."""
        reject = self._driver.protocol.generation_command(c.RejectCheckpoint, step=step, reason=reason)
        return self._background.submit(self._do(reject))

    def forget_checkpoints(self, steps: Sequence[int]) -> Future[None]:
        """Make known what was deleted."""
        return self._background.submit(self._do(c.DropCheckpoints(job_id=self._job_id, steps=tuple(steps))))

    def list_checkpoints(self) -> Future[tuple[int, ...]]:
        """Return the steps that the coordinator has in its index."""
        return self._background.submit(self._list_checkpoints())

    def find_restore_point(self, *, timeout_s: float, allow_suspect: bool = False) -> Future[int | None]:
        """Return the step that all workers of this generation go on from, or None for the beginning."""
        find = self._driver.find_restore_point(timeout_s=timeout_s, allow_suspect=allow_suspect)
        return self._background.submit(find)

    def close(self, reason: str = "", *, cause: Cause = Cause.FINISHED) -> None:
        """Say goodbye and why, if the coordinator can hear it, and end the thread."""
        self._close(reason, cause, is_patient=True)

    def close_at_exit(self, reason: str, *, cause: Cause) -> None:
        """Say goodbye when the program has ended, unless there is no connection: none can be opened any more."""
        self._close(reason, cause, is_patient=False)

    def _close(self, reason: str, cause: Cause, *, is_patient: bool) -> None:
        if self._closed or self._pid != os.getpid():
            return
        self._closed = True
        atexit.unregister(self._at_exit)
        self._finalizer.detach()
        try:
            protocol = self._driver.protocol
            if protocol.registered is not None and (is_patient or protocol.state is State.JOINED):
                self._call(self._driver.leave(cause, reason, timeout_s=GOODBYE_TIMEOUT_S))
        except ClusterError as error:
            log.info("the goodbye could not be sent, so the lease ends by its timeout: %s", error)
        finally:
            self._background.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        cause, reason = goodbye_of(error)
        self.close(reason, cause=cause)

    async def _begin_part(self, step: int, generation: int) -> int:
        return self._driver.protocol.begin_part(step, generation)

    async def _list_checkpoints(self) -> tuple[int, ...]:
        found = await self._driver.ask(c.AskCheckpoints(job_id=self._job_id), timeout_s=ASK_TIMEOUT_S)
        assert isinstance(found, CommittedSteps)
        return found.steps

    async def _do(self, command: c.JobCommand) -> None:
        await self._driver.ask(command, timeout_s=TELL_TIMEOUT_S)

    def _call(self, work: Coroutine[Any, Any, T]) -> T:
        future = self._background.submit(work)
        try:
            return future.result()
        except KeyboardInterrupt:
            future.cancel()
            raise


async def _make(
    url: str, worker: c.RegisterWorker, on_effect: Callable[[Effect], None], keep_alive: KeepAliveProcess | None
) -> MembershipLoop:
    return MembershipLoop(url, worker, on_effect=on_effect, keep_alive=keep_alive)


def _close_at_exit(client: weakref.ref[Client]) -> None:
    if (alive := client()) is None:
        return
    # Set by the interpreter if an exception ended the script.
    error: BaseException | None = getattr(sys, "last_value", None)
    cause, reason = (Cause.LEFT, "exited without close") if error is None else goodbye_of(error)
    alive.close_at_exit(reason, cause=cause)


def _log_end(running: Future[None]) -> None:
    if running.cancelled() or isinstance(error := running.exception(), ClientClosedError):
        return
    if error is not None:
        log.error("the connection to the coordinator ended: %s", error, exc_info=error)
