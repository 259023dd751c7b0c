"""CheckpointManager: what a training loop holds. Blocking and awaitable faces over one engine in the background."""

from __future__ import annotations

import asyncio
import uuid
from concurrent.futures import TimeoutError as FutureTimeoutError
from functools import partial
from typing import TYPE_CHECKING, Any, Self, TypeVar

from strata import ids
from strata.checkpoint.draft import make_draft
from strata.checkpoint.engine import Engine
from strata.checkpoint.handle import CheckpointInfo, SaveHandle
from strata.checkpoint.joint import JointCheckpoints
from strata.checkpoint.layout import Planner
from strata.checkpoint.location import find_storage
from strata.checkpoint.retention import GRACE_S, Best, RetentionPolicy, Verdict
from strata.checkpoint.saver import SavePolicy, Saver, WhenBusy
from strata.clock import Clock, SystemClock
from strata.errors import CheckpointAbortedError, CheckpointTimeoutError, ClusterError
from strata.storage.blocking import finish_in_thread

if TYPE_CHECKING:
    import os
    from collections.abc import Callable, Coroutine, Sequence
    from types import TracebackType

    from strata.checkpoint.coordination import CommitCoordinator
    from strata.checkpoint.restore import Restored
    from strata.storage import Storage

T = TypeVar("T")


class CheckpointManager:
    """Saves and restores a job's state. A checkpoint that was announced as committed can be restored.

    ``path`` is a directory, a URL, or with ``backend`` a prefix in the bucket of the environment. At most
    ``max_pending`` saves are staged at a time, and staging memory is at most that many times the state; one more
    waits (at most ``wait_timeout_s``), is skipped, or fails, as ``when_busy`` says. A save that fails in the
    background is on its handle, in ``counters``, in the log, and given to ``on_error``; it never stops training.

    With a ``coordinator`` (a :class:`strata.client.client.Client`), all workers of the job save together: each its
    part, and the checkpoint is committed when all are durable. A commit that is not there after ``commit_timeout_s``
    fails on this worker's handle, and names whom it waits for.
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
        coordinator: CommitCoordinator | None = None,
        commit_timeout_s: float = 1_800.0,
    ) -> None:
        if full_every < 1:
            raise ValueError(f"full_every={full_every} must be 1 or more")
        policy = RetentionPolicy(
            keep_count=keep_count, keep_every=keep_every, ttl_s=ttl_s, best=keep_best, grace_s=grace_s
        )
        self._job_id = ids.job_id(job_id)
        self._clock = clock or SystemClock()
        self._engine = Engine(
            find_storage(path, backend) if storage is None else storage,
            self._job_id,
            policy=policy,
            clock=self._clock,
            delta=delta,
            full_every=full_every,
            on_phase=on_phase or _ignore,
        )
        self._saver = Saver(
            self._engine,
            SavePolicy(max_pending=max_pending, when_busy=when_busy, wait_timeout_s=wait_timeout_s),
            clock=self._clock,
            on_error=on_error,
            on_phase=on_phase or _ignore,
        )
        self.counters = self._saver.counters
        self._planner = Planner()
        self._coordinator = coordinator
        self._joint: JointCheckpoints | None = None
        if coordinator is not None:
            self._joint = JointCheckpoints(coordinator, self._engine, self._saver, timeout_s=commit_timeout_s)
            self._saver.commit_jointly = self._joint.commit

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
        self._saver.warn_of_unchanged()
        return info

    async def save_async(
        self, data: Any, step: int, epoch: int = 0, metadata: dict[str, Any] | None = None, **more: Any
    ) -> SaveHandle:
        """Return a handle as soon as the state is staged, without holding up the event loop meanwhile."""
        # The thread reads the state, which may change when this returns.
        return await finish_in_thread(partial(self.save_background, data, step, epoch, metadata, **more))

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
        generation: int | None = None,
    ) -> SaveHandle:
        """Return a handle as soon as the state is staged; from then on it may change.

        With ``parts`` above 1 this saves part number ``part``, and :meth:`commit` makes a checkpoint of all. With a
        coordinator it gives both; ``generation`` is then the one that the state belongs to, and the save fails if it
        is over.
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
        generation: int | None = None,
        write_behind: bool = False,
    ) -> SaveHandle:
        """Stage a save and hand it to the background: when it is staged, or with ``write_behind`` at once."""
        started_s = self._clock.monotonic_s()
        self._saver.warn_of_unchanged()
        token = ""
        if self._coordinator is not None:
            if parts != 1 or part != 0:
                raise ValueError(f"part={part}, parts={parts}: with a coordinator, the rank says which part this is")
            try:
                seat = self._coordinator.take_seat()
            except ClusterError as error:
                return self._saver.refuse(step, error)
            if generation not in (None, seat.generation):
                reason = f"generation {generation} is over, it is {seat.generation} now"
                return self._saver.refuse(step, CheckpointAbortedError(step, reason))
            part, parts, generation, token = seat.rank, seat.world_size, seat.generation, uuid.uuid4().hex[:8]
        draft = make_draft(
            data,
            self._planner,
            job_id=self._job_id,
            step=step,
            epoch=epoch,
            metadata=metadata,
            cursors=cursors,
            part=part,
            parts=parts,
            generation=generation or 0,
            token=token,
        )
        return self._saver.begin(draft, started_s, write_behind=write_behind)

    def commit(self, step: int, *, generation: int = 0, timeout_s: float | None = None) -> CheckpointInfo:
        """Make a checkpoint of all parts of a step that were saved in this generation; not for a coordinator's."""
        if self._coordinator is not None:
            raise ValueError("with a coordinator, a checkpoint is committed by itself when all parts are there")
        info, same_as = self._call(self._engine.commit(step, generation), f"the commit of step {step}", timeout_s)
        self._saver.note_unchanged(step, same_as)
        self._saver.track(self._engine.retain())
        self._saver.warn_of_unchanged()
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

        With a coordinator and no step, it is the one that all workers of this generation restore.

        ``like`` gives structure, types, devices and slices, and its tensors are filled in place; after an error
        their values are undefined. ``only`` is a pattern, or several, of dotted paths.
        """
        what = "the restore" if step is None else f"the restore of step {step}"
        return self._call(self._load(step, like, _patterns(only)), what, timeout_s)

    async def load_async(
        self, step: int | None = None, like: Any = None, *, only: str | Sequence[str] = ()
    ) -> Restored:
        """As :meth:`load`, for an event loop."""
        return await asyncio.wrap_future(self._saver.submit(self._load(step, like, _patterns(only))))

    async def _load(self, step: int | None, like: Any, only: tuple[str, ...]) -> Restored:
        if step is not None:
            return await self._engine.load(step, like, only)
        if self._joint is not None:
            return await self._joint.load(like, only)
        return await self._engine.load_newest(like, only)

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
        self._saver.wait(timeout_s)
        self._saver.warn_of_unchanged()

    def close(self, timeout_s: float | None = None) -> None:
        """Wait for pending saves, at most ``timeout_s``, and let go of threads and memory."""
        try:
            self._saver.close(timeout_s)
        finally:
            if self._joint is not None:
                self._joint.close()
        self._saver.warn_of_unchanged()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def __repr__(self) -> str:
        return f"CheckpointManager({self._engine.storage!r}, job_id={self._job_id!r})"

    def _call(self, work: Coroutine[Any, Any, T], what: str, timeout_s: float | None) -> T:
        future = self._saver.submit(work)
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


def _ignore(name: str) -> None:
    """The phases of a save interest nobody."""
