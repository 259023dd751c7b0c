"""The saver: takes a draft from the training loop to the engine. Staging, slots, and what becomes of failures."""

from __future__ import annotations

import asyncio
import logging
import threading
import warnings
from concurrent.futures import Future
from concurrent.futures import wait as wait_for
from contextlib import suppress
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, Literal, TypeVar, get_args

from strata.background import BackgroundLoop, close_at_exit
from strata.checkpoint.handle import Phase, SaveHandle
from strata.checkpoint.staging import StagedImage, StagingPool
from strata.errors import CheckpointBusyError, CheckpointError, CheckpointTimeoutError, UnchangedStateWarning

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Coroutine

    from strata.checkpoint.coordination import PartAck
    from strata.checkpoint.draft import Draft
    from strata.checkpoint.engine import Engine
    from strata.checkpoint.handle import CheckpointInfo
    from strata.clock import Clock

T = TypeVar("T")
WhenBusy = Literal["wait", "skip", "fail"]
log = logging.getLogger(__name__)
# So many parts may wait for the other workers; one more means that nothing is committed any more.
MAX_UNCOMMITTED = 16


@dataclass(slots=True)
class Counters:
    """How many saves ended how."""

    saved: int = 0
    failed: int = 0
    skipped: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class SavePolicy:
    """How many saves may be staged at a time, and what becomes of one more."""

    max_pending: int = 1
    when_busy: WhenBusy = "wait"
    wait_timeout_s: float = 600.0

    def __post_init__(self) -> None:
        if self.when_busy not in get_args(WhenBusy):
            raise ValueError(f"when_busy={self.when_busy!r} must be one of {', '.join(get_args(WhenBusy))}")
        if self.max_pending < 1:
            raise ValueError(f"max_pending={self.max_pending} must be 1 or more")


class Saver:
    """Runs saves in the background, one event loop for all; a failure ends up on its handle and nowhere else."""

    def __init__(
        self,
        engine: Engine,
        policy: SavePolicy,
        *,
        clock: Clock,
        on_error: Callable[[SaveHandle, Exception], None] | None,
        on_phase: Callable[[str], None],
    ) -> None:
        self._engine = engine
        self._policy = policy
        self._clock = clock
        self._on_error = on_error
        self._on_phase = on_phase
        self.commit_jointly: Callable[[PartAck, SaveHandle], Awaitable[None]] | None = None
        self._uncommitted: list[int] = []
        self.counters = Counters()
        self._pool = StagingPool(policy.max_pending)
        self._background = BackgroundLoop("strata-checkpoint", owner="a CheckpointManager")
        self._slots = threading.Condition()
        self._staged: list[SaveHandle] = []
        self._pending: set[Future[Any]] = set()
        self._unchanged: list[UnchangedStateWarning] = []
        self._closed = False
        # Not the manager, which may be garbage while its last save is still under way.
        close_at_exit(self)

    def begin(self, draft: Draft, started_s: float, *, write_behind: bool) -> SaveHandle:
        """Stage a save and hand it to the background: when it is staged, or with ``write_behind`` at once."""
        handle = SaveHandle(draft.step)
        handle.bytes_total = draft.size_bytes
        if not self._take_slot(handle, started_s):
            return handle
        image: StagedImage | None = None
        try:
            image = draft.lend(self._pool)
            image.on_taken = handle.note_bytes
            image.is_followed = write_behind
            if not write_behind:
                draft.fill(self._pool, image)
                handle.phase = "staged"
                self._on_phase("staged")
        except Exception as error:  # noqa: BLE001 - for want of memory, say; training goes on without this checkpoint
            self._abandon(handle, image)
            self._report_failure(handle, error)
            return handle
        except BaseException:
            self._abandon(handle, image)
            raise
        try:
            self.track(self._run_save(draft, image, handle))
        except BaseException:
            self._abandon(handle, image)
            raise
        if write_behind:
            # What goes wrong is told to the background, which waits for the bytes, and so ends up on the handle.
            with suppress(Exception):
                draft.fill(self._pool, image)
                self._on_phase("staged")
        handle.blocked_s = self._clock.monotonic_s() - started_s
        return handle

    def wait(self, timeout_s: float | None) -> None:
        """Wait until nothing is pending, saves and pruning both; how each ended is on its handle."""
        with self._slots:
            pending = set(self._pending)
        _, left = wait_for(pending, timeout_s)
        if left and timeout_s is not None:
            raise CheckpointTimeoutError(
                ", ".join(self._describe_staged()) or "pruning", phase="under way", timeout_s=timeout_s
            )

    def close(self, timeout_s: float | None) -> None:
        """Take no more work, wait for what is pending, and let go of threads and memory."""
        if self._closed:
            return
        self._closed = True
        deadline_s = None if timeout_s is None else self._clock.monotonic_s() + timeout_s
        try:
            # What is pending may bring more: the commit of this save may be asked of this very worker.
            while self._pending:
                self.wait(None if deadline_s is None else max(0.0, deadline_s - self._clock.monotonic_s()))
        finally:
            self._background.close()
            self._pool.close()

    def submit(self, work: Coroutine[Any, Any, T]) -> Future[T]:
        """Run a coroutine on the background loop; the future belongs to whoever asked."""
        if self._closed:
            work.close()
            raise RuntimeError("this CheckpointManager is closed")
        return self._background.submit(work)

    def track(self, work: Coroutine[Any, Any, None]) -> None:
        """Run a coroutine on the background loop, and count it as pending until it ends."""
        self._count(self.submit(work))

    def serve(self, work: Coroutine[Any, Any, T]) -> Future[T]:
        """Run what others wait for, and count it as pending; also while this closes, but not after."""
        with self._slots:
            if self._closed and not self._pending:
                work.close()
                raise RuntimeError("this CheckpointManager is closed")
            future = self._background.submit(work)
            self._pending.add(future)
        future.add_done_callback(self._forget)
        return future

    def _count(self, future: Future[None]) -> None:
        with self._slots:
            self._pending.add(future)
        future.add_done_callback(self._forget)

    def note_unchanged(self, step: int, same_as: int | None) -> None:
        """Remember to warn that a step has the bits of another one."""
        if same_as is not None:
            warning = UnchangedStateWarning(step, same_as)
            log.warning("%s", warning)
            self._unchanged.append(warning)

    def warn_of_unchanged(self) -> None:
        """Warn in the thread of the caller: nobody sees, or can turn into an error, a warning in another one."""
        while self._unchanged:
            warnings.warn(self._unchanged.pop(0), stacklevel=3)

    async def _run_save(self, draft: Draft, image: StagedImage, handle: SaveHandle) -> None:
        def follow(name: str) -> None:
            if name in get_args(Phase):
                handle.phase = name  # type: ignore[assignment]

        draft = draft.without_values()
        try:
            try:
                saved = await self._engine.save(draft, image, follow)
            finally:
                # Whoever fills the image still writes to it, though nobody wants it any more.
                await asyncio.to_thread(image.wait_filled)
                image.release()
                self._give_slot_back(handle)
            info = saved.info
            if saved.ack is not None:
                # Memory and slot are free again: a slow worker, or a coordinator that is away, holds up no later save.
                info = await self._commit_jointly(saved.ack, handle, info)
        except asyncio.CancelledError:
            self._report_failure(handle, CheckpointError(f"the save of step {draft.step} was stopped by close()"))
            raise
        except Exception as error:  # noqa: BLE001 - whatever it is, training goes on and the handle has it
            self._report_failure(handle, error)
            return
        self.counters.saved += 1
        self.note_unchanged(draft.step, saved.same_as)
        handle.end(info)
        if info.committed and saved.ack is None:
            await self._engine.retain()
        await asyncio.to_thread(self._pool.improve)

    async def _commit_jointly(self, ack: PartAck, handle: SaveHandle, info: CheckpointInfo) -> CheckpointInfo:
        assert self.commit_jointly is not None
        if len(self._uncommitted) >= MAX_UNCOMMITTED:
            waiting = [f"the commit of step {step}" for step in self._uncommitted]
            raise CheckpointBusyError(ack.step, pending=waiting, waited_s=0.0)
        handle.phase = "committing"
        self._on_phase("acknowledging")
        self._uncommitted.append(ack.step)
        try:
            await self.commit_jointly(ack, handle)
        finally:
            self._uncommitted.remove(ack.step)
        return replace(info, committed=True)

    def refuse(self, step: int, error: Exception) -> SaveHandle:
        """Return the handle of a save that cannot even begin, for a reason that is no reason to stop training."""
        handle = SaveHandle(step)
        self._report_failure(handle, error)
        return handle

    def _report_failure(self, handle: SaveHandle, error: Exception) -> None:
        self.counters.failed += 1
        log.error("the save of step %d failed: %s", handle.step, error)
        if self._on_error is not None:
            try:
                self._on_error(handle, error)
            except Exception:
                log.exception("on_error failed for step %d", handle.step)
        handle.fail(error)

    def _take_slot(self, handle: SaveHandle, started_s: float) -> bool:
        with self._slots:
            if self._closed:
                raise RuntimeError("this CheckpointManager is closed")
            timeout_s = self._policy.wait_timeout_s if self._policy.when_busy == "wait" else 0.0
            if self._slots.wait_for(lambda: len(self._staged) < self._policy.max_pending, timeout_s):
                self._staged.append(handle)
                return True
            waited_s = self._clock.monotonic_s() - started_s
            error = CheckpointBusyError(handle.step, pending=self._describe_staged(), waited_s=waited_s)
        if self._policy.when_busy == "fail":
            raise error
        if self._policy.when_busy == "skip":
            self.counters.skipped += 1
            log.warning("%s", error)
            handle.fail(error, phase="skipped")
        else:
            self._report_failure(handle, error)
        handle.blocked_s = waited_s
        return False

    def _give_slot_back(self, handle: SaveHandle) -> None:
        with self._slots:
            self._staged.remove(handle)
            self._slots.notify_all()

    def _abandon(self, handle: SaveHandle, image: StagedImage | None) -> None:
        if image is not None:
            image.release()
        self._give_slot_back(handle)

    def _describe_staged(self) -> list[str]:
        return [f"the save of step {each.step} ({each.phase})" for each in self._staged]

    def _forget(self, future: Future[Any]) -> None:
        with self._slots:
            self._pending.discard(future)
