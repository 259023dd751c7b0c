"""CheckpointManager: what a training loop holds. Blocking and awaitable faces over one engine in the background."""

from __future__ import annotations

import asyncio
import logging
import threading
import warnings
from concurrent.futures import Future
from concurrent.futures import TimeoutError as FutureTimeoutError
from concurrent.futures import wait as wait_for
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any, Literal, Self, TypeVar, get_args

from strata import ids
from strata.checkpoint.background import BackgroundLoop, close_at_exit
from strata.checkpoint.draft import Draft, make_draft
from strata.checkpoint.engine import Engine
from strata.checkpoint.handle import CheckpointInfo, Phase, SaveHandle
from strata.checkpoint.location import find_storage
from strata.checkpoint.retention import GRACE_S, Best, RetentionPolicy, Verdict
from strata.checkpoint.staging import StagedImage, StagingPool
from strata.clock import Clock, SystemClock
from strata.errors import (
    CheckpointBusyError,
    CheckpointError,
    CheckpointTimeoutError,
    UnchangedStateWarning,
)

if TYPE_CHECKING:
    import os
    from collections.abc import Callable, Coroutine, Sequence
    from types import TracebackType

    from strata.checkpoint.restore import Restored
    from strata.storage import Storage

T = TypeVar("T")
WhenBusy = Literal["wait", "skip", "fail"]
log = logging.getLogger(__name__)


@dataclass(slots=True)
class Counters:
    """How many saves ended how."""

    saved: int = 0
    failed: int = 0
    skipped: int = 0


class CheckpointManager:
    """Saves and restores a job's state. A checkpoint that was announced as committed can be restored.

    ``path`` is a directory, a URL, or with ``backend`` a prefix in the bucket of the environment. At most
    ``max_pending`` saves are staged at a time, and staging memory is at most that many times the state; one more
    waits (at most ``wait_timeout_s``), is skipped, or fails, as ``when_busy`` says. A save that fails in the
    background is on its handle, in ``counters``, in the log, and given to ``on_error``; it never stops training.
    """

    def __init__(
        self,
        path: str | os.PathLike[str] | None = None,
        backend: str | None = None,
        keep_count: int | None = 5,
        job_id: str = "default",
        *,
        keep_every: int | None = None,
        ttl_s: float | None = None,
        keep_best: Best | None = None,
        grace_s: float = GRACE_S,
        max_pending: int = 1,
        when_busy: WhenBusy = "wait",
        wait_timeout_s: float = 600.0,
        delta: bool = False,
        full_every: int = 10,
        on_error: Callable[[SaveHandle, Exception], None] | None = None,
        on_phase: Callable[[str], None] | None = None,
        storage: Storage | None = None,
        clock: Clock | None = None,
    ) -> None:
        if when_busy not in get_args(WhenBusy):
            raise ValueError(f"when_busy={when_busy!r} must be one of {', '.join(get_args(WhenBusy))}")
        for name, number in (("max_pending", max_pending), ("full_every", full_every)):
            if number < 1:
                raise ValueError(f"{name}={number} must be 1 or more")
        policy = RetentionPolicy(
            keep_count=keep_count, keep_every=keep_every, ttl_s=ttl_s, best=keep_best, grace_s=grace_s
        )
        self._job_id = ids.job_id(job_id)
        self._clock = clock or SystemClock()
        self._on_phase = on_phase or (lambda name: None)
        self._engine = Engine(
            find_storage(path, backend) if storage is None else storage,
            self._job_id,
            policy=policy,
            clock=self._clock,
            delta=delta,
            full_every=full_every,
            on_phase=self._on_phase,
        )
        self._max_pending = max_pending
        self._when_busy = when_busy
        self._wait_timeout_s = wait_timeout_s
        self._on_error = on_error
        self.counters = Counters()
        self._pool = StagingPool(max_pending)
        self._background = BackgroundLoop()
        self._slots = threading.Condition()
        self._staged: list[SaveHandle] = []
        self._pending: set[Future[None]] = set()
        self._unchanged: list[UnchangedStateWarning] = []
        self._closed = False
        close_at_exit(self)

    # Saving

    def save(
        self,
        data: Any,
        step: int,
        epoch: int = 0,
        metadata: dict[str, Any] | None = None,
        *,
        timeout_s: float | None = None,
        **more: Any,
    ) -> CheckpointInfo:
        """Save and return when it is committed; raise what went wrong. ``more`` is as for save_background."""
        info = self._begin_save(data, step, epoch, metadata, write_behind=True, **more).result(timeout_s)
        self._warn_of_unchanged()
        return info

    async def save_async(
        self, data: Any, step: int, epoch: int = 0, metadata: dict[str, Any] | None = None, **more: Any
    ) -> SaveHandle:
        """Return a handle as soon as the state is staged, without holding up the event loop meanwhile."""
        call = partial(self.save_background, data, step, epoch, metadata, **more)
        staging = asyncio.ensure_future(asyncio.to_thread(call))
        try:
            return await asyncio.shield(staging)
        except asyncio.CancelledError:
            # The thread reads the state, which may change when this returns: it is left to finish first.
            while not staging.done():
                with suppress(asyncio.CancelledError):
                    await asyncio.wait([staging])
            raise

    def save_background(
        self,
        data: Any,
        step: int,
        epoch: int = 0,
        metadata: dict[str, Any] | None = None,
        *,
        cursors: dict[str, Any] | None = None,
        part: int = 0,
        parts: int = 1,
        generation: int = 0,
    ) -> SaveHandle:
        """Return a handle as soon as the state is staged; from then on it may change.

        With ``parts`` above 1 this saves part number ``part``, and :meth:`commit` makes a checkpoint of all.
        """
        return self._begin_save(
            data, step, epoch, metadata, cursors=cursors, part=part, parts=parts, generation=generation
        )

    def _begin_save(
        self,
        data: Any,
        step: int,
        epoch: int,
        metadata: dict[str, Any] | None,
        *,
        cursors: dict[str, Any] | None = None,
        part: int = 0,
        parts: int = 1,
        generation: int = 0,
        write_behind: bool = False,
    ) -> SaveHandle:
        """Stage a save and hand it to the background: when it is staged, or with ``write_behind`` at once."""
        started_s = self._clock.monotonic_s()
        self._warn_of_unchanged()
        draft = make_draft(
            data,
            job_id=self._job_id,
            step=step,
            epoch=epoch,
            metadata=metadata,
            cursors=cursors,
            part=part,
            parts=parts,
            generation=generation,
        )
        handle = SaveHandle(step)
        handle.bytes_total = draft.size_bytes
        if not self._take_slot(handle, started_s):
            return handle
        image: StagedImage | None = None
        try:
            image = draft.lend(self._pool)
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
            self._track(self._run_save(draft, image, handle))
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

    def _abandon(self, handle: SaveHandle, image: StagedImage | None) -> None:
        if image is not None:
            image.release()
        self._give_slot_back(handle)

    def commit(self, step: int, *, generation: int = 0, timeout_s: float | None = None) -> CheckpointInfo:
        """Make a checkpoint of all parts of a step that were saved in this generation."""
        info, same_as = self._call(self._engine.commit(step, generation), f"the commit of step {step}", timeout_s)
        self._note_unchanged(step, same_as)
        self._track(self._engine.retain())
        self._warn_of_unchanged()
        return info

    # Restoring

    def load(
        self,
        step: int | None = None,
        like: Any = None,
        *,
        only: str | Sequence[str] = (),
        timeout_s: float | None = None,
    ) -> Restored:
        """Restore a step, or the newest good one; every byte is checked against its digest.

        ``like`` gives structure, types, devices and slices, and its tensors are filled in place; after an error
        their values are undefined. ``only`` is a pattern, or several, of dotted paths.
        """
        what = "the restore" if step is None else f"the restore of step {step}"
        return self._call(self._engine.load(step, like, _patterns(only)), what, timeout_s)

    async def load_async(
        self, step: int | None = None, like: Any = None, *, only: str | Sequence[str] = ()
    ) -> Restored:
        """As :meth:`load`, for an event loop."""
        return await asyncio.wrap_future(self._submit(self._engine.load(step, like, _patterns(only))))

    # Looking

    def all_checkpoints(self) -> list[CheckpointInfo]:
        """Every committed checkpoint whose manifest can be read, oldest first."""
        scan = self._call(self._engine.catalog.scan(), "the listing", None)
        return [entry.info for entry in scan.entries.values()]

    def list_checkpoints(self) -> list[int]:
        """The steps of :meth:`all_checkpoints`."""
        return [info.step for info in self.all_checkpoints()]

    def latest(self) -> CheckpointInfo | None:
        """The newest checkpoint, or None if nothing was committed yet."""
        return next(reversed(self.all_checkpoints()), None)

    def get_by_step(self, step: int) -> CheckpointInfo | None:
        """The checkpoint of a step, or None."""
        return next((info for info in self.all_checkpoints() if info.step == step), None)

    # Keeping

    def pin(self, step: int, reason: str = "") -> None:
        """Keep a checkpoint whatever retention thinks."""
        self._call(self._engine.pin(step, reason), f"the pin of step {step}", None)

    def unpin(self, step: int) -> None:
        """Leave a checkpoint to retention again."""
        self._call(self._engine.unpin(step), f"the unpin of step {step}", None)

    def delete(self, step: int) -> None:
        """Delete a checkpoint, also a damaged one whose step is to be saved again."""
        self._call(self._engine.delete(step), f"the deletion of step {step}", None)

    def prune(self, *, dry_run: bool = False) -> list[Verdict]:
        """Delete what retention does not keep, and debris; return what was, or would be, deleted and why."""
        return self._call(self._engine.prune(dry_run=dry_run), "the prune", None)

    # Ending

    def wait_pending(self, timeout_s: float | None = None) -> None:
        """Wait until nothing is pending, saves and pruning both; how each ended is on its handle."""
        with self._slots:
            pending = set(self._pending)
        _, left = wait_for(pending, timeout_s)
        if left and timeout_s is not None:
            raise CheckpointTimeoutError(
                ", ".join(self._describe_staged()) or "pruning", phase="under way", timeout_s=timeout_s
            )
        self._warn_of_unchanged()

    def close(self, timeout_s: float | None = None) -> None:
        """Wait for pending saves, at most ``timeout_s``, and let go of threads and memory."""
        if self._closed:
            return
        self._closed = True
        try:
            self.wait_pending(timeout_s)
        finally:
            self._background.close()
            self._pool.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def __repr__(self) -> str:
        return f"CheckpointManager({self._engine.storage!r}, job_id={self._job_id!r})"

    async def _run_save(self, draft: Draft, image: StagedImage, handle: SaveHandle) -> None:
        def follow(name: str) -> None:
            if name in get_args(Phase):
                handle.phase = name  # type: ignore[assignment]

        draft = draft.without_values()
        try:
            try:
                info, same_as = await self._engine.save(draft, image, follow)
            finally:
                # Whoever fills the image still writes to it, though nobody wants it any more.
                await asyncio.to_thread(image.wait_filled)
                image.release()
                self._give_slot_back(handle)
        except asyncio.CancelledError:
            self._report_failure(handle, CheckpointError(f"the save of step {draft.step} was stopped by close()"))
            raise
        except Exception as error:  # noqa: BLE001 - whatever it is, training goes on and the handle has it
            self._report_failure(handle, error)
            return
        self.counters.saved += 1
        self._note_unchanged(draft.step, same_as)
        handle.end(info)
        if info.committed:
            await self._engine.retain()
        await asyncio.to_thread(self._pool.improve)

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
            timeout_s = self._wait_timeout_s if self._when_busy == "wait" else 0.0
            if self._slots.wait_for(lambda: len(self._staged) < self._max_pending, timeout_s):
                self._staged.append(handle)
                return True
            waited_s = self._clock.monotonic_s() - started_s
            error = CheckpointBusyError(handle.step, pending=self._describe_staged(), waited_s=waited_s)
        if self._when_busy == "fail":
            raise error
        if self._when_busy == "skip":
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

    def _describe_staged(self) -> list[str]:
        return [f"the save of step {each.step} ({each.phase})" for each in self._staged]

    def _note_unchanged(self, step: int, same_as: int | None) -> None:
        if same_as is not None:
            warning = UnchangedStateWarning(step, same_as)
            log.warning("%s", warning)
            self._unchanged.append(warning)

    def _warn_of_unchanged(self) -> None:
        """Warn in the thread of the caller: nobody sees, or can turn into an error, a warning in another one."""
        while self._unchanged:
            warnings.warn(self._unchanged.pop(0), stacklevel=3)

    def _submit(self, work: Coroutine[Any, Any, T]) -> Future[T]:
        if self._closed:
            work.close()
            raise RuntimeError("this CheckpointManager is closed")
        return self._background.submit(work)

    def _track(self, work: Coroutine[Any, Any, None]) -> None:
        future = self._submit(work)
        with self._slots:
            self._pending.add(future)
        future.add_done_callback(self._forget)

    def _forget(self, future: Future[None]) -> None:
        with self._slots:
            self._pending.discard(future)

    def _call(self, work: Coroutine[Any, Any, T], what: str, timeout_s: float | None) -> T:
        future = self._submit(work)
        try:
            return future.result(timeout_s)
        except FutureTimeoutError:
            if future.done() or timeout_s is None:
                raise
            future.cancel()
            raise CheckpointTimeoutError(what, phase="under way", timeout_s=timeout_s) from None
        except KeyboardInterrupt:
            future.cancel()
            raise


def _patterns(only: str | Sequence[str]) -> tuple[str, ...]:
    return (only,) if isinstance(only, str) else tuple(only)
