"""CheckpointManager: what a training loop holds. Blocking and awaitable faces over one engine in the background."""

from __future__ import annotations

import asyncio
import operator
from concurrent.futures import TimeoutError as FutureTimeoutError
from functools import partial
from typing import TYPE_CHECKING, Any, Self, TypeVar

from strata.checkpoint.commit.joint import JointCommit
from strata.checkpoint.commit.solo import SoloCommit
from strata.checkpoint.engine import Engine
from strata.checkpoint.format.layout import Planner
from strata.checkpoint.keep.retention import KEEP_COUNT, RetentionPolicy, Verdict
from strata.checkpoint.location import find_storage
from strata.checkpoint.save.background_work import BackgroundWork
from strata.checkpoint.save.draft import make_draft
from strata.checkpoint.save.handle import CheckpointInfo, SaveHandle
from strata.checkpoint.save.notices import Notices
from strata.checkpoint.save.save_policy import SavePolicy
from strata.checkpoint.save.saver import Saver
from strata.clock import Clock, SystemClock
from strata.errors import CheckpointAbortedError, CheckpointTimeoutError, ClusterError, InvalidIdError
from strata.storage.blocking import finish_in_thread
from strata.tracing.traces import NO_TRACES

if TYPE_CHECKING:
    import os
    from collections.abc import Callable, Coroutine, Sequence
    from types import TracebackType

    from strata.checkpoint.commit.protocol import Commit, CommitCoordinator
    from strata.checkpoint.format.rewind_record import BatchRange, Rewind
    from strata.checkpoint.load.restore import Restored
    from strata.storage import Storage
    from strata.tracing.traces import Traces

T = TypeVar("T")


class CheckpointManager:
    """Saves and restores a job's state. A checkpoint that was announced as committed can be restored.

    ``path`` is a directory, a URL, or with ``backend`` a prefix in the bucket of the environment. ``retention`` says
    what is kept, in place of ``keep_count``, and ``saving`` how saves wait, what they write and when they are given up.
    A save that fails in the background is on its handle, in ``counters``, in the log, and given to ``on_error``; it
    never stops training. ``on_read`` is told, from any thread, how many bytes of a restore were read and checked, and
    of how many. ``observer`` is called with each phase of a save; it is there for tests. ``traces`` are told of each
    save that is over.

    With a ``coordinator`` (a :class:`strata.client.client.Client`), all workers of the job save together: each its
    part, and the checkpoint is committed when all are durable. What several workers hold is compared at each commit.
    """

    def __init__(
        self,
        path: str | os.PathLike[str] | None = None,
        backend: str | None = None,
        keep_count: int | None = KEEP_COUNT,
        job_id: str = "default",
        *,
        retention: RetentionPolicy | None = None,
        saving: SavePolicy | None = None,
        coordinator: CommitCoordinator | None = None,
        storage: Storage | None = None,
        clock: Clock | None = None,
        on_error: Callable[[SaveHandle, Exception], None] | None = None,
        on_read: Callable[[int, int], None] | None = None,
        observer: Callable[[str], None] | None = None,
        traces: Traces = NO_TRACES,
    ) -> None:
        if retention is not None and keep_count != KEEP_COUNT:
            raise ValueError(f"keep_count={keep_count} and a retention: say it in RetentionPolicy(keep_count=...)")
        self._job_id = InvalidIdError.check("job id", job_id)
        self._clock = clock or SystemClock()
        saving = saving or SavePolicy()
        self._engine = Engine(
            find_storage(path, backend) if storage is None else storage,
            self._job_id,
            retention=retention or RetentionPolicy(keep_count=keep_count),
            saving=saving,
            clock=self._clock,
            on_read=on_read,
        )
        self._work, self._notices = BackgroundWork(), Notices()
        self._saver = Saver(
            self._engine,
            self._work,
            self._notices,
            saving,
            clock=self._clock,
            on_error=on_error,
            observer=observer,
            traces=traces,
        )
        self.counters = self._saver.counters
        self._planner = Planner()
        keeps_backups = coordinator is not None and saving.on_divergence == "majority"
        self._backup_planner = Planner() if keeps_backups else None
        self._commit: Commit
        if coordinator is None:
            self._commit = SoloCommit(self._engine, self._work, self._notices, observer=observer)
        else:
            self._commit = JointCommit(
                coordinator,
                self._engine,
                self._work,
                self._notices,
                timeout_s=saving.commit_timeout_s,
                observer=observer,
                traces=traces,
            )

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
        self._notices.warn()
        return info

    async def save_async(
        self, data: Any, step: int, epoch: int = 0, metadata: dict[str, Any] | None = None, **more: Any
    ) -> CheckpointInfo:
        """As :meth:`save`, for an event loop; who stops waiting does not stop the save."""
        # The thread reads the state, which may change when this is cancelled.
        begin = partial(self._begin_save, data, step, epoch, metadata, write_behind=True, **more)
        info = await (await finish_in_thread(begin))
        self._notices.warn()
        return info

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
        lazy: bool = False,
        replicated: str | Sequence[str] = (),
        random_state: bytes | None = None,
    ) -> SaveHandle:
        """Return a handle as soon as the state is staged; from then on it may change.

        With ``lazy`` the parameters and the state of torch's optimizers are staged while forward and backward run, and
        their next ``step()`` waits for that; whoever else changes them calls ``handle.wait_staged()`` before. What is
        changed too early fails the save with StateChangedError. Optimizers are known once they were seen stepping after
        the first lazy save, or by :meth:`watch`; everything else is staged when this returns.

        With ``parts`` above 1 this saves part number ``part``, and :meth:`commit` makes a checkpoint of all. With a
        coordinator it gives both; ``generation`` is then the one that the state belongs to, and the save fails if it
        is over. ``replicated`` is a pattern, or several, of dotted paths of tensors that all parts hold alike: each
        byte of them is written by one part. ``random_state`` is this part's own and is saved beside the state, which
        must be a dict.
        """
        return self._begin_save(
            data,
            step,
            epoch,
            metadata,
            cursors=cursors,
            part=part,
            parts=parts,
            generation=generation,
            lazy=lazy,
            replicated=replicated,
            random_state=random_state,
        )

    def watch(self, *optimizers: Any) -> None:
        """Know torch optimizers before they step, so that the first lazy save stages their tensors lazily too."""
        for optimizer in optimizers:
            self._saver.gate.watch(optimizer)

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
        lazy: bool = False,
        replicated: str | Sequence[str] = (),
        random_state: bytes | None = None,
    ) -> SaveHandle:
        """Stage a save and hand it to the background: when it is staged, or with ``write_behind`` at once."""
        started_s = self._clock.monotonic_s()
        self._notices.warn()
        try:
            place = self._commit.find_place(step, part=part, parts=parts, generation=generation)
        except (CheckpointAbortedError, ClusterError) as error:
            return self._saver.refuse(step, error)
        draft = make_draft(
            data,
            self._planner,
            job_id=self._job_id,
            step=step,
            epoch=epoch,
            metadata=metadata,
            cursors=cursors,
            part=place.part,
            parts=place.parts,
            generation=place.generation,
            token=place.token,
            replicated=_patterns(replicated),
            random_state=random_state,
            backup_planner=self._backup_planner,
        )
        self._notices.note_left_out(step, draft.left_out)
        return self._saver.begin(draft, self._commit.begin(draft), started_s, write_behind=write_behind, lazy=lazy)

    def commit(self, step: int, *, generation: int = 0, timeout_s: float | None = None) -> CheckpointInfo:
        """Make a checkpoint of all parts of a step that were saved in this generation; not for a coordinator's."""
        step = _check_step(step)
        info = self._call(self._commit.commit_parts(step, generation), f"the commit of step {step}", timeout_s)
        self._notices.warn()
        return info

    # Restoring

    def load(
        self,
        step: int | None = None,
        like: Any = None,
        *,
        only: str | Sequence[str] = (),
        allow_suspect: bool = False,
        timeout_s: float | None = None,
    ) -> Restored:
        """Restore a step, or the newest good one; every byte is checked against its digest.

        With a coordinator and no step, it is the one that all workers of this generation restore. Without a step,
        suspect checkpoints are passed over while there is another one, unless ``allow_suspect``.

        ``like`` gives structure, types, devices and slices, and its tensors are filled in place; after an error
        their values are undefined. ``only`` is a pattern, or several, of dotted paths.
        """
        step = None if step is None else _check_step(step)
        # It may be filled in place, while a lazy save still copies it.
        self._saver.wait_staged()
        what = "the restore" if step is None else f"the restore of step {step}"
        return self._call(self._load(step, like, _patterns(only), allow_suspect=allow_suspect), what, timeout_s)

    async def load_async(
        self,
        step: int | None = None,
        like: Any = None,
        *,
        only: str | Sequence[str] = (),
        allow_suspect: bool = False,
    ) -> Restored:
        """As :meth:`load`, for an event loop."""
        step = None if step is None else _check_step(step)
        await asyncio.to_thread(self._saver.wait_staged)
        load = self._load(step, like, _patterns(only), allow_suspect=allow_suspect)
        return await asyncio.wrap_future(self._work.submit(load))

    async def _load(self, step: int | None, like: Any, only: tuple[str, ...], *, allow_suspect: bool) -> Restored:
        if step is not None:
            return await self._engine.load(step, like, only)
        return await self._commit.load(like, only, allow_suspect=allow_suspect)

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
        self._call(self._engine.pruner.pin(_check_step(step), reason), f"the pin of step {step}", None)

    def unpin(self, step: int) -> None:
        """Leave a checkpoint to retention again."""
        self._call(self._engine.pruner.unpin(_check_step(step)), f"the unpin of step {step}", None)

    def delete(self, step: int) -> None:
        """Delete a checkpoint, also a damaged one whose step is to be saved again."""
        self._call(self._delete(_check_step(step)), f"the deletion of step {step}", None)

    def prune(self, *, dry_run: bool = False) -> list[Verdict]:
        """Delete what retention does not keep, and debris; return what was, or would be, deleted and why."""
        return self._call(self._prune(dry_run=dry_run), "the prune", None)

    def prune_rewound(self, *, dry_run: bool = False) -> list[Verdict]:
        """Delete the checkpoints that rewinds set aside; return what was, or would be, deleted."""
        return self._call(self._engine.pruner.prune_rewound(dry_run=dry_run), "the prune", None)

    def rewind(self, to_step: int, skips: tuple[BatchRange, ...] = (), dataset: str = "") -> Rewind:
        """Have the next start of the job go on from ``to_step`` and pass over batches of a dataset.

        Nobody may work on the job. Newer checkpoints are set aside: no restart takes them, and they are kept.
        ``strata rewind`` also checks what the numbers of the batches mean, and tells a coordinator.
        """
        work = self._engine.rewinder.rewind(_check_step(to_step), skips, dataset)
        return self._call(work, f"the rewind to step {to_step}", None)

    async def _delete(self, step: int) -> None:
        await self._engine.pruner.delete(step)
        await self._commit.forget([step])

    async def _prune(self, *, dry_run: bool) -> list[Verdict]:
        going = await self._engine.pruner.prune(dry_run=dry_run)
        if not dry_run:
            await self._commit.forget([verdict.step for verdict in going])
        return going

    # Ending

    def wait_pending(self, timeout_s: float | None = None) -> None:
        """Wait until nothing is pending, saves and pruning both; how each ended is on its handle."""
        self._saver.wait(timeout_s)
        self._notices.warn()

    def close(self, timeout_s: float | None = None) -> None:
        """Wait for pending saves, at most ``timeout_s``, and let go of threads and memory."""
        try:
            self._saver.close(timeout_s)
        finally:
            self._commit.close()
        self._notices.warn()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def __repr__(self) -> str:
        return f"CheckpointManager({self._engine.storage!r}, job_id={self._job_id!r})"

    def _call(self, work: Coroutine[Any, Any, T], what: str, timeout_s: float | None) -> T:
        future = self._work.submit(work)
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


def _check_step(step: Any) -> int:
    """Return a step as an int: the name of its directory would also be that of a string."""
    try:
        return operator.index(step)
    except TypeError:
        raise ValueError(f"step is of type {type(step).__name__}; use a whole number") from None
