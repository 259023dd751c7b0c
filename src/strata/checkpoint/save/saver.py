"""The saver: takes a draft from the training loop to the engine. Staging, slots, and what becomes of failures."""

from __future__ import annotations

import asyncio
import logging
import platform
import threading
from contextlib import suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING

from strata.background import STARTS_THREADS_AT_EXIT, close_at_exit
from strata.checkpoint.save.handle import SaveHandle
from strata.checkpoint.save.lazy import OptimizerGate
from strata.checkpoint.save.progress import SaveProgress
from strata.checkpoint.save.save_trace import describe_save
from strata.checkpoint.save.staging import StagedImage, StagingPool
from strata.errors import CheckpointBusyError, CheckpointError, CheckpointTimeoutError, ManagerClosedError
from strata.tracing.trace_names import checkpoint_trace

if TYPE_CHECKING:
    from collections.abc import Callable

    from strata.checkpoint.commit.protocol import CommitPart
    from strata.checkpoint.engine import Engine
    from strata.checkpoint.save.background_work import BackgroundWork
    from strata.checkpoint.save.draft import Draft
    from strata.checkpoint.save.notices import Notices
    from strata.checkpoint.save.save_policy import SavePolicy
    from strata.clock import Clock
    from strata.tracing.traces import Traces

log = logging.getLogger(__name__)


@dataclass(slots=True)
class Counters:
    """How many saves ended how."""

    saved: int = 0
    failed: int = 0
    skipped: int = 0


class Saver:
    """Runs saves in the background; a failure ends up on its handle and nowhere else."""

    def __init__(
        self,
        engine: Engine,
        work: BackgroundWork,
        notices: Notices,
        policy: SavePolicy,
        *,
        clock: Clock,
        on_error: Callable[[SaveHandle, Exception], None] | None,
        observer: Callable[[str], None] | None,
        traces: Traces,
    ) -> None:
        self._engine = engine
        self._work = work
        self._notices = notices
        self._policy = policy
        self._clock = clock
        self._on_error = on_error
        self._observer = observer
        self._traces = traces
        self.counters = Counters()
        self._pool = StagingPool(policy.max_pending)
        self._backups = StagingPool(2 * policy.max_pending)
        self.gate = OptimizerGate()
        self._slots = threading.Condition()
        self._staged: list[SaveHandle] = []
        # Not the manager, which may be garbage while its last save is still under way.
        close_at_exit(self)

    def begin(
        self, draft: Draft, part: CommitPart, started_s: float, *, write_behind: bool, lazy: bool = False
    ) -> SaveHandle:
        """Stage a save and pass it to the background: when it is staged, or with ``write_behind`` at once.

        If it is ``lazy``, what only optimizers change is staged in the background too.
        """
        lazy = lazy and draft.pieces is not None
        finish: Callable[[], None] | None = None
        progress = SaveProgress(draft.size_bytes, observer=self._observer)
        handle = SaveHandle(draft.step, progress)
        try:
            if not self._take_slot(handle, started_s):
                part.drop(str(handle.error()))
                return handle
        except CheckpointBusyError as error:
            handle.fail(error, phase="skipped")
            part.drop(str(error))
            raise
        image: StagedImage | None = None
        try:
            image = draft.lend(self._pool)
            if draft.backup is not None:
                draft.backup.lend(self._backups)
            image.on_taken = progress.note_bytes
            image.is_followed = write_behind
            if lazy:
                self.gate.open()
                finish = draft.begin_fill(self._pool, image, self.gate.find_managed())
            elif not write_behind:
                draft.fill(self._pool, image)
                handle.note_staged()
                progress.mark("staged")
        except Exception as error:  # noqa: BLE001 - for want of memory, say; training goes on without this checkpoint
            self._abandon(handle, draft, image)
            self._report_failure(handle, error)
            part.drop(str(error))
            return handle
        except BaseException:
            self._abandon(handle, draft, image)
            raise
        try:
            if finish is not None:
                self._fill_later(finish, draft, image, handle, part, progress)
            else:
                self._work.track(self._run_save(draft, image, handle, part, progress))
        except BaseException:
            self._abandon(handle, draft, image)
            raise
        if finish is None and write_behind:
            # What goes wrong is told to the background, which waits for the bytes, and so ends up on the handle.
            with suppress(Exception):
                draft.fill(self._pool, image)
                progress.mark("staged")
            handle.note_staged()
        handle.blocked_s = self._clock.monotonic_s() - started_s
        return handle

    def _fill_later(
        self,
        finish: Callable[[], None],
        draft: Draft,
        image: StagedImage,
        handle: SaveHandle,
        part: CommitPart,
        progress: SaveProgress,
    ) -> None:
        """Have the rest staged in the background, and then saved.

        The event loop is woken when all is staged, and by the thread that staged it: a loop that wakes takes the
        interpreter's lock, and whoever wakes it may wait milliseconds to get it back.
        """
        promise = self._work.promise()

        def work() -> None:
            try:
                # A failure is told to the background, which waits for the bytes, and so ends up on the handle.
                with suppress(Exception):
                    finish()
                    progress.mark("staged")
            finally:
                handle.note_staged()
                self.gate.let_go(handle)
                try:
                    saving = self._work.serve(self._run_save(draft, image, handle, part, progress))
                    saving.add_done_callback(lambda _: promise.set_result(None))
                except RuntimeError as error:
                    # It was closed meanwhile, and did not wait for this.
                    self._abandon(handle, draft, image)
                    self._report_failure(handle, error)
                    part.drop(str(error))
                    promise.set_result(None)

        self.gate.hold(handle)
        try:
            self._pool.run_later(work)
        except RuntimeError:
            # No thread to be had: the interpreter ends, say. It is staged here then, as for any other save.
            work()

    def wait_staged(self) -> None:
        """Wait until the state of every save may change."""
        with self._slots:
            staged = list(self._staged)
        for handle in staged:
            handle.wait_staged(self._policy.wait_timeout_s)

    def wait(self, timeout_s: float | None) -> None:
        """Wait until nothing is pending, saves and pruning both; how each ended is on its handle."""
        if not self._work.wait(timeout_s) and timeout_s is not None:
            raise CheckpointTimeoutError(
                ", ".join(self._describe_staged()) or "pruning", phase="under way", timeout_s=timeout_s
            )

    def close(self, timeout_s: float | None) -> None:
        """Take no more work, wait for what is pending, and let go of threads and memory; not in a forked child."""
        if self._work.is_closed or not self._work.is_own:
            return
        self._work.refuse_more()
        deadline_s = None if timeout_s is None else self._clock.monotonic_s() + timeout_s
        try:
            # What is pending may bring more: the commit of this save may be asked of this very worker.
            while self._work.has_pending():
                self.wait(None if deadline_s is None else max(0.0, deadline_s - self._clock.monotonic_s()))
        finally:
            self.gate.close()
            self._work.close()
            self._pool.close()
            self._backups.close()

    async def _run_save(
        self, draft: Draft, image: StagedImage, handle: SaveHandle, part: CommitPart, progress: SaveProgress
    ) -> None:
        draft = draft.without_values()
        trace = checkpoint_trace(draft.generation, draft.step)
        try:
            with self._traces.within(trace):
                await self._save(draft, image, handle, part, progress)
        finally:
            if draft.backup is not None:
                draft.backup.release()
            if self._traces.is_on:
                self._traces.record(trace, describe_save(handle, draft), leads=draft.part == 0)

    async def _save(
        self, draft: Draft, image: StagedImage, handle: SaveHandle, part: CommitPart, progress: SaveProgress
    ) -> None:
        try:
            try:
                saved = await self._engine.save(draft, image, progress)
            finally:
                # Whoever fills the image still writes to it, though nobody wants it any more.
                await asyncio.to_thread(image.wait_filled)
                image.release()
                self._give_slot_back(handle)
            # Memory and slot are free again: a slow worker, or a coordinator that is away, holds up no later save.
            info = await part.commit(saved, progress)
            # Before anyone is told, so that the next save finds it free.
            if draft.backup is not None:
                draft.backup.release()
        except asyncio.CancelledError:
            self._report_failure(handle, ManagerClosedError(f"the save of step {draft.step}"))
            raise
        except Exception as error:  # noqa: BLE001 - whatever it is, training goes on and the handle has it
            explained = _explained(error)
            self._report_failure(handle, explained)
            part.drop(str(explained))
            return
        self.counters.saved += 1
        self._notices.note_unchanged(draft.step, saved.same_as)
        handle.end(info)
        await part.clean_up(info, progress)
        await asyncio.to_thread(self._pool.improve)

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
            if self._work.is_closed:
                raise ManagerClosedError
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

    def _abandon(self, handle: SaveHandle, draft: Draft, image: StagedImage | None) -> None:
        if draft.backup is not None:
            draft.backup.release()
        if image is not None:
            image.release()
        self._give_slot_back(handle)

    def _describe_staged(self) -> list[str]:
        return [f"the save of step {each.step} ({each.phase})" for each in self._staged]


def _explained(error: Exception) -> Exception:
    """Return an error that tells what to do where this version of Python is why a pending save cannot be finished."""
    if STARTS_THREADS_AT_EXIT or not (isinstance(error, RuntimeError) and "at interpreter shutdown" in str(error)):
        return error
    return CheckpointError(
        f"Python {platform.python_version()} starts no thread once the program has ended; "
        "close the CheckpointManager before, or use Python 3.12.3 or newer"
    )
