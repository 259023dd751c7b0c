"""Joint checkpoints: one worker's side of those that all workers of a job commit together through a coordinator.

Each worker writes its part and a report about it under names that no other attempt has, and acknowledges the report.
Whoever is asked reads exactly the acknowledged reports and writes the manifest. So a part of an older generation, or of
an attempt that was given up, cannot get into a manifest, whoever still writes to the same step.
"""

from __future__ import annotations

import asyncio
import json
import logging
import uuid
from contextlib import suppress
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from strata.checkpoint.commit.merge import merge_reports, plan_repair
from strata.checkpoint.commit.protocol import LEDGER, Place
from strata.checkpoint.format import layout
from strata.checkpoint.format.rewind_record import is_left_behind
from strata.checkpoint.save.progress import SaveProgress
from strata.cluster.values import CommitRecord, PartReport
from strata.errors import (
    CheckpointAbortedError,
    CheckpointBusyError,
    CheckpointError,
    CheckpointExistsError,
    CheckpointNotFoundError,
    ClusterError,
    DamagedCheckpointError,
    IncompleteCheckpointError,
    LastCheckpointError,
    MembershipError,
    ObjectNotFoundError,
    StorageError,
)
from strata.tracing.trace_names import checkpoint_trace
from strata.tracing.traces import NO_TRACES

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from concurrent.futures import Future

    from strata.checkpoint.commit.protocol import CommitCoordinator
    from strata.checkpoint.engine import Engine, Saved
    from strata.checkpoint.format.manifest import Manifest, PartRecord
    from strata.checkpoint.load.restore import Restored
    from strata.checkpoint.save.background_work import BackgroundWork
    from strata.checkpoint.save.backup import Backup
    from strata.checkpoint.save.draft import Draft
    from strata.checkpoint.save.handle import CheckpointInfo
    from strata.checkpoint.save.notices import Notices
    from strata.cluster.events import ManifestWanted, RepairWanted
    from strata.cluster.values import Divergence
    from strata.tracing.traces import Traces

log = logging.getLogger(__name__)

READERS = 16
# Of so many saves that are not committed yet a worker keeps what could repair them.
MAX_BACKUPS = 2
# So many parts may wait for the other workers; one more means that nothing is committed any more.
MAX_UNCOMMITTED = 16
RESTORE_WAIT_S = 120.0
SEE_LOOKS = 10
SEE_AGAIN_S = 0.5


class JointCommit:
    """A ManifestWriter, and the bridge between a manager's event loop and its coordinator's."""

    def __init__(
        self,
        coordinator: CommitCoordinator,
        engine: Engine,
        work: BackgroundWork,
        notices: Notices,
        *,
        timeout_s: float,
        observer: Callable[[str], None] | None = None,
        traces: Traces = NO_TRACES,
    ) -> None:
        self._coordinator = coordinator
        self._engine = engine
        self._work = work
        self._notices = notices
        self._timeout_s = timeout_s
        self._observer = observer
        self._traces = traces
        # The steps of this worker whose parts are reported, and whose commits are not known yet.
        self._uncommitted: list[int] = []
        # Which replicas differed in those of them whose manifest this worker wrote: nobody else's save knows.
        self._diverged: dict[int, Divergence] = {}
        # What could repair the saves that are not committed yet, by step, with the path of this worker's report.
        self._backups: dict[int, tuple[str, Backup]] = {}
        # What storage holds is made known before anyone is asked where to go on: the coordinator may be a new one.
        self._adopting = work.submit(self._adopt())
        self._adopting.add_done_callback(_log_failure)
        coordinator.serve_manifests(self)

    def close(self) -> None:
        """Write no more manifests; another worker is asked for those that are missing."""
        self._coordinator.serve_manifests(None)

    def find_place(self, step: int, *, part: int, parts: int, generation: int | None) -> Place:
        """Return which part this worker saves: the rank says so; raise why it cannot be a part of any checkpoint."""
        if parts != 1 or part != 0:
            raise ValueError(f"part={part}, parts={parts}: with a coordinator, the rank says which part this is")
        try:
            rank_info = self._coordinator.get_rank_info()
        except MembershipError as error:
            raise CheckpointAbortedError(step, str(error)) from error
        if generation not in (None, rank_info.generation):
            reason = f"generation {generation} is over, it is {rank_info.generation} now"
            raise CheckpointAbortedError(step, reason)
        return Place(rank_info.rank, rank_info.world_size, rank_info.generation, uuid.uuid4().hex[:8])

    def begin(self, draft: Draft) -> JointPart:
        """Note that a save has begun; the other workers wait for its part, or are told that there is none."""
        number = self._coordinator.begin_part(draft.step, draft.generation)
        return JointPart(
            self._coordinator,
            number,
            step=draft.step,
            epoch=draft.epoch,
            timeout_s=self._timeout_s,
            uncommitted=self._uncommitted,
            diverged=self._diverged,
            backups=self._backups,
        )

    async def commit_parts(self, step: int, generation: int) -> CheckpointInfo:
        """Refuse: nobody commits by hand what all workers commit together."""
        raise ValueError("with a coordinator, a checkpoint is committed by itself when all parts are there")

    async def forget(self, steps: list[int]) -> None:
        """Tell the coordinator what was deleted; training goes on if it cannot be told."""
        if not steps:
            return
        try:
            await asyncio.wrap_future(self._coordinator.forget_checkpoints(steps))
        except ClusterError as error:
            log.warning("the coordinator could not be notified that steps %s were deleted: %s", steps, error)

    def write_manifest(self, wanted: ManifestWanted) -> Future[CommitRecord]:
        """Commit in storage what the coordinator has all parts of; from any thread."""
        return self._work.serve(self._write_manifest(wanted))

    def write_repair(self, wanted: RepairWanted) -> Future[PartReport | None]:
        """Write the blocks of which this worker keeps a right copy in memory; from any thread."""
        return self._work.serve(self._write_repair(wanted))

    def clean_up(self, wanted: ManifestWanted) -> None:
        """Begin to delete reports, and what retention does not keep any more; from any thread."""
        self._work.serve(self._clean_up(wanted))

    async def load(self, like: Any, only: Sequence[str], *, allow_suspect: bool) -> Restored:
        """Restore the step that all workers of the present generation do; if it cannot be, all go back further."""
        try:
            await asyncio.wrap_future(self._adopting)
        except (StorageError, ClusterError):
            # Without it a coordinator that is new would say that there is nothing, and all would begin anew.
            await self._adopt()
        skipped: list[CheckpointError] = []
        while True:
            asking = self._coordinator.find_restore_point(timeout_s=RESTORE_WAIT_S, allow_suspect=allow_suspect)
            step = await asyncio.wrap_future(asking)
            if step is None:
                raise CheckpointNotFoundError(None, path=self._engine.directory)
            # All workers read them in this generation; whoever read others saves parts that do not fit.
            await self._engine.read_rewinds()
            try:
                await self._see(step)
                return await self._engine.load(step, like, only, skipped)
            except CheckpointNotFoundError as error:
                await self._pass_deleted(step, error)
                skipped.append(error)
            except DamagedCheckpointError as error:
                log.error("%s; all workers go back to an older checkpoint", error)  # noqa: TRY400 - it says it all
                await self._reject(step, str(error), error)
                skipped.append(error)

    async def _pass_deleted(self, step: int, error: CheckpointNotFoundError) -> None:
        """Have all workers restore another step than one that was deleted; raise if there is none, or only not here."""
        if not error.known:
            error.add_note("the job has checkpoints, and none is here: do all workers use the same storage?")
            raise error
        log.info("%s; all workers restore another checkpoint", error)
        # Storage may hold newer checkpoints that the coordinator does not know.
        await self._adopt()
        await self._reject(step, "it was deleted from storage, and is not damaged", error)

    async def _reject(self, step: int, reason: str, error: CheckpointError) -> None:
        """Have all workers go on from another step; raise the error if the coordinator knows no other one."""
        try:
            # In another generation by now, all ask again anyway.
            with suppress(MembershipError):
                await asyncio.wrap_future(self._coordinator.reject_checkpoint(step, reason))
        except LastCheckpointError as last:
            error.add_note(str(last))
            raise error from last

    async def _see(self, step: int) -> bool:
        """Wait a little for a manifest that another machine wrote: a shared file system may show it late."""
        for _ in range(SEE_LOOKS):
            if await self._engine.is_committed(step):
                return True
            await asyncio.sleep(SEE_AGAIN_S)
        return False

    async def _drop_deleted(self) -> None:
        """Have the coordinator drop from its index what storage has no longer, whoever deleted it.

        Each is looked for after the coordinator has named it: one that is committed now is there. Where storage has
        none of them it may be another one, and nothing is dropped.
        """
        try:
            steps = await asyncio.wrap_future(self._coordinator.list_checkpoints())
            unlisted = [step for step in steps if step not in self._engine.catalog.listed]
            is_there = await asyncio.gather(*map(self._see, unlisted))
        except (ClusterError, StorageError) as error:
            log.warning("the checkpoints that the coordinator lists were not compared with storage: %s", error)
            return
        gone = [step for step, found in zip(unlisted, is_there, strict=True) if not found]
        if gone and len(gone) < len(steps):
            log.info("steps %s are no longer in storage; the coordinator drops them from its index", gone)
            await self.forget(gone)

    async def _write_manifest(self, wanted: ManifestWanted) -> CommitRecord:
        trace = checkpoint_trace(wanted.generation, wanted.step)
        with self._traces.timed(trace, "manifest", parts=len(wanted.reports)):
            return await self._merge_and_publish(wanted)

    async def _merge_and_publish(self, wanted: ManifestWanted) -> CommitRecord:
        committed = await self._find_committed(wanted)
        if committed is not None:
            return committed
        try:
            reports = await self._read_reports(wanted)
        except ObjectNotFoundError as error:
            # Another one that was asked may have been faster, and cleaned up.
            committed = await self._find_committed(wanted)
            if committed is None:
                raise IncompleteCheckpointError(
                    wanted.step, f"a report is not in this worker's storage: {error}"
                ) from error
            return committed
        # Workers that read shards of their own end an epoch at different steps; it is over when it is for all.
        epoch = min(report.epoch for report in reports)
        repairs = {part: repair for part, repair in enumerate(wanted.repairs) if repair.path}
        found = await self._read_all(wanted, list(repairs.values()))
        manifest = await asyncio.to_thread(
            merge_reports, [replace(report, epoch=epoch) for report in reports], dict(zip(repairs, found, strict=True))
        )
        manifest = replace(manifest, cursors={**manifest.cursors, LEDGER: json.loads(wanted.cursors)})
        parents = {report.parent for report in reports}
        try:
            _, same_as = await self._engine.publish(manifest, parents, self._progress())
        except CheckpointExistsError:
            committed = await self._find_committed(wanted)
            if committed is None:
                raise
            return committed
        self._notices.note_unchanged(wanted.step, same_as)
        self._notices.note_divergence(wanted.step, manifest.diverged)
        if manifest.diverged is not None and wanted.step in self._uncommitted:
            self._diverged[wanted.step] = manifest.diverged
        return self._record(manifest)

    async def _write_repair(self, wanted: RepairWanted) -> PartReport | None:
        # Removed from the list, so that the end of its save does not release its memory during the repair.
        own_path, backup = self._backups.pop(wanted.step, ("", None))
        paths = [report.path for report in wanted.reports]
        if backup is None or own_path not in paths:
            return None
        try:
            part = paths.index(own_path)
            reports = await self._read_reports(wanted)
            wrong = await asyncio.to_thread(plan_repair, reports, part)
            repair = await asyncio.to_thread(backup.select, wrong)
            if repair is None:
                return None
            log.warning("step %d is repaired: %d blocks are not as most ranks hold them", wanted.step, len(wrong))
            return await self._engine.write_repair(reports[part], part, len(reports), repair)
        finally:
            backup.release()

    async def _find_committed(self, wanted: ManifestWanted) -> CommitRecord | None:
        """Return the commit that is already there, if it is this one; raise if it is another one.

        A suspect one of an older generation was passed over, and is replaced.
        """
        if not await self._engine.is_committed(wanted.step):
            return None
        committed = await self._engine.catalog.read(wanted.step)
        reported = [(report.size_bytes, report.digest) for report in wanted.reports]
        if committed.is_suspect and committed.generation < wanted.generation:
            return None
        if committed.generation != wanted.generation or reported != [
            _brief(part) for part in committed.parts[: len(reported)]
        ]:
            raise CheckpointExistsError(wanted.step, path=self._path(wanted.step))
        return self._record(committed)

    async def _read_reports(self, wanted: ManifestWanted | RepairWanted) -> list[Manifest]:
        return await self._read_all(wanted, wanted.reports)

    async def _read_all(self, wanted: ManifestWanted | RepairWanted, reports: Sequence[PartReport]) -> list[Manifest]:
        gate = asyncio.Semaphore(READERS)

        async def read(report: PartReport) -> Manifest:
            async with gate:
                found = await self._engine.catalog.read_report(wanted.step, report.path)
            if [(report.size_bytes, report.digest)] != [_brief(part) for part in found.parts]:
                problem = "it is not the report that the worker sent"
                raise DamagedCheckpointError(wanted.step, problem, part=report.path)
            if (found.generation, found.step) != (wanted.generation, wanted.step):
                raise DamagedCheckpointError(wanted.step, "it is the report of another save", part=report.path)
            return found

        return await asyncio.gather(*(read(report) for report in reports))

    async def _clean_up(self, wanted: ManifestWanted) -> None:
        for report in filter(lambda each: each.path, (*wanted.reports, *wanted.repairs)):
            with suppress(StorageError):  # of no use any more, and swept some day
                await self._engine.storage.delete(f"{self._engine.directory}/{report.path}")
        await self.forget(await self._engine.pruner.retain(self._progress()))
        await self._drop_deleted()

    def _progress(self) -> SaveProgress:
        """The progress of what this worker does for all; no handle shows it."""
        return SaveProgress(observer=self._observer)

    async def _adopt(self) -> None:
        rewinds = await self._engine.read_rewinds()
        scan = await self._engine.catalog.scan()
        infos = [entry.info for entry in scan.entries.values()]
        infos = [info for info in infos if not is_left_behind(info.step, len(info.rewinds), rewinds)]
        known = len(infos[-1].rewinds) if infos else 0
        for rewind in rewinds[known:]:
            await asyncio.wrap_future(self._coordinator.adopt_rewind(rewind.number, rewind.to_step, str(rewind)))
        records = [self._record(info) for info in infos]
        if records:
            await asyncio.wrap_future(self._coordinator.adopt_checkpoints(records))
            await self._drop_deleted()

    def _record(self, source: Manifest | CheckpointInfo) -> CommitRecord:
        cursors = json.dumps(source.cursors.get(LEDGER, []), separators=(",", ":"))
        diverged = source.diverged.shorten() if source.diverged is not None else None
        return CommitRecord(source.step, source.epoch, self._path(source.step), cursors, diverged)

    def _path(self, step: int) -> str:
        return f"{self._engine.directory}/{layout.manifest_name(step)}"


class JointPart:
    """One save of this worker, as a part of a checkpoint of all workers."""

    def __init__(
        self,
        coordinator: CommitCoordinator,
        number: int,
        *,
        step: int,
        epoch: int,
        timeout_s: float,
        uncommitted: list[int],
        diverged: dict[int, Divergence],
        backups: dict[int, tuple[str, Backup]],
    ) -> None:
        self._coordinator = coordinator
        self._number = number
        self._step = step
        self._epoch = epoch
        self._timeout_s = timeout_s
        self._uncommitted = uncommitted
        self._diverged = diverged
        self._backups = backups
        self._is_reported = False

    async def commit(self, saved: Saved, progress: SaveProgress) -> CheckpointInfo:
        """Return when the checkpoint of this part is committed, or raise why it will not be."""
        assert saved.report is not None
        if len(self._uncommitted) >= MAX_UNCOMMITTED:
            waiting = [f"the commit of step {each}" for each in self._uncommitted]
            raise CheckpointBusyError(self._step, pending=waiting, waited_s=0.0)

        def note(workers: Sequence[str]) -> None:
            progress.waits_for = tuple(workers)

        progress.phase = "committing"
        progress.mark("acknowledging")
        self._uncommitted.append(self._step)
        self._is_reported = True
        if saved.backup is not None:
            self._backups[self._step] = saved.report.path, saved.backup
            while len(self._backups) > MAX_BACKUPS:
                self._backups.pop(min(self._backups))[1].release()
        try:
            committing = self._coordinator.commit_part(
                self._number, epoch=self._epoch, report=saved.report, timeout_s=self._timeout_s, on_wait=note
            )
            await asyncio.wrap_future(committing)
        finally:
            self._uncommitted.remove(self._step)
            self._backups.pop(self._step, None)
            diverged = self._diverged.pop(self._step, None)
        progress.waits_for = ()
        return replace(saved.info, committed=True, diverged=diverged)

    async def clean_up(self, info: CheckpointInfo, progress: SaveProgress) -> None:
        """Leave it to the worker that writes the manifest: the coordinator asks it to."""

    def drop(self, reason: str) -> None:
        """Say that this worker has no part of this step, unless it was reported already."""
        if not self._is_reported:
            self._coordinator.drop_part(self._number, reason)


def _brief(part: PartRecord) -> tuple[int, str]:
    return part.size_bytes, part.digest.hex()


def _log_failure(adopting: Future[None]) -> None:
    if not adopting.cancelled() and (error := adopting.exception()) is not None:
        log.warning("the existing checkpoints could not be reported to the coordinator: %s", error)
