"""The engine: saving, committing and restoring on storage, on one event loop; the manager has the faces."""

from __future__ import annotations

import asyncio
import logging
import uuid
from collections import Counter
from contextlib import suppress
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from strata.checkpoint.commit.merge import merge_reports
from strata.checkpoint.format import layout
from strata.checkpoint.format.manifest import StoredSlice
from strata.checkpoint.format.random_state import list_state_tensors
from strata.checkpoint.format.rewind_record import Rewind, is_left_behind
from strata.checkpoint.keep.catalog import Catalog
from strata.checkpoint.keep.pruner import InUse, Pruner, counted
from strata.checkpoint.keep.rewinder import Rewinder
from strata.checkpoint.load.part_reader import Reader, add_up
from strata.checkpoint.load.restore import Restored, restore
from strata.checkpoint.save.part_writer import Writer
from strata.cluster.values import PartReport
from strata.errors import (
    CheckpointError,
    CheckpointExistsError,
    CheckpointNotFoundError,
    DamagedCheckpointError,
    IncompleteCheckpointError,
    ReplicasDivergedError,
    StorageError,
    StorageFullError,
    SuspectCheckpointError,
    UnknownFormatError,
)

if TYPE_CHECKING:
    import mmap
    from collections.abc import Callable, Sequence

    from strata.checkpoint.format.manifest import CopyRecord, Manifest, PartRecord
    from strata.checkpoint.keep.retention import RetentionPolicy
    from strata.checkpoint.save.backup import Backup, Repair
    from strata.checkpoint.save.draft import Draft
    from strata.checkpoint.save.handle import CheckpointInfo
    from strata.checkpoint.save.progress import SaveProgress
    from strata.checkpoint.save.save_policy import SavePolicy
    from strata.checkpoint.save.staging import StagedImage
    from strata.clock import Clock
    from strata.storage import Storage

log = logging.getLogger(__name__)

# How many checkpoints a load tries, and how often one that is listed and cannot be found.
LOOKS = 1_000
LOOKS_AT_ONE = 3


class _ParentGoneError(Exception):
    """The parent of a delta was deleted while it was written; it is written again, in full."""


@dataclass(frozen=True, slots=True)
class Saved:
    """What a save came to: the step that it is bit-identical to, if it is, and the report for the coordinator."""

    info: CheckpointInfo
    same_as: int | None = None
    report: PartReport | None = None
    backup: Backup | None = None
    """Blocks that others wrote, until the commit."""


class Engine:
    """One job's checkpoints on one storage."""

    def __init__(
        self,
        storage: Storage,
        job_id: str,
        *,
        retention: RetentionPolicy,
        saving: SavePolicy,
        clock: Clock,
        on_read: Callable[[int, int], None] | None = None,
    ) -> None:
        self.storage = storage
        self.directory = layout.checkpoints_directory(job_id)
        self.catalog = Catalog(storage, self.directory)
        self._in_use = InUse()
        self.pruner = Pruner(storage, self.catalog, self.directory, policy=retention, clock=clock, in_use=self._in_use)
        self.rewinder = Rewinder(storage, self.catalog, self.directory, clock=clock)
        self._writer = Writer(storage, self.directory)
        self._policy = saving
        self._clock = clock
        self._on_read = on_read
        # No parents of deltas: newer than what was restored, or seen before damage was found.
        self._abandoned: set[int] = set()
        self._scratch: list[mmap.mmap] = []
        # Those that this process goes on after; None until someone asked.
        self._rewinds: tuple[Rewind, ...] | None = None

    async def save(self, draft: Draft, image: StagedImage, progress: SaveProgress) -> Saved:
        """Save one part, and commit it if it is the only one."""
        with counted(self._in_use.saving, draft.step):
            try:
                await self._writer.check_free(draft.step)
            except CheckpointExistsError:
                if not await self._gives_way(draft.step, draft.generation):
                    raise
            if self._rewinds is None:
                await self.read_rewinds()
            if draft.part == 0:
                # A run that dies in every save never comes to the pruning after a commit.
                await self.pruner.sweep()
            try:
                return await self._save(draft, image, await self._find_parent(draft), progress)
            except _ParentGoneError:
                return await self._save(draft, image, None, progress)

    async def _save(self, draft: Draft, image: StagedImage, parent: Manifest | None, progress: SaveProgress) -> Saved:
        progress.enter("writing")
        if draft.parts > 1 and not draft.token:
            await self._writer.retract_report(draft.step, draft.part, draft.parts)
        record = await self._writer.write_part(
            image,
            step=draft.step,
            part=draft.part,
            parts=draft.parts,
            opaque=draft.pieces is None,
            token=draft.token,
            parent=parent.parts[draft.part] if parent is not None else None,
        )
        copies = await asyncio.to_thread(draft.digest_copies, image)
        record = replace(record, state_digest=await asyncio.to_thread(draft.digest_state, image, record.chunks))
        progress.enter("written")
        try:
            return await self._commit_part(draft, record, parent, progress, copies)
        except StorageFullError:
            # Nothing was committed for certain, so what was written can make room again.
            await self._writer.remove(record, draft.step)
            raise

    async def _commit_part(
        self,
        draft: Draft,
        record: PartRecord,
        parent: Manifest | None,
        progress: SaveProgress,
        copies: tuple[CopyRecord, ...],
    ) -> Saved:
        is_delta = parent is not None and any(layout.step_of(e.path) != draft.step for e in record.extents)
        manifest = draft.manifest(
            record,
            created_s=self._clock.wall_s(),
            parent=parent.step if parent is not None and is_delta else None,
            deltas=parent.deltas + 1 if parent is not None and is_delta else 0,
        )
        manifest = replace(manifest, rewinds=self._rewinds or ())
        if draft.parts > 1 or draft.token:
            report = await self._writer.report(
                replace(manifest, copies=copies), draft.part, draft.parts, token=draft.token
            )
            progress.mark("reported")
            info = replace(self.catalog.describe(manifest).info, parts=draft.parts, committed=False)
            if not draft.token:
                return Saved(info)
            replicas = await asyncio.to_thread(draft.describe_replicas, copies)
            brief = PartReport(report, record.size_bytes, record.digest.hex(), replicas)
            return Saved(info, None, brief, draft.backup)
        if any([each.shape for each in tensor.slices] != [tensor.shape] for tensor in manifest.tensors.values()):
            manifest = merge_reports([manifest])
        return Saved(*await self._publish(manifest, {manifest.parent}, progress))

    async def _publish(
        self, manifest: Manifest, parents: set[int | None], progress: SaveProgress
    ) -> tuple[CheckpointInfo, int | None]:
        progress.enter("committing")
        try:
            size_bytes = await self._writer.publish(manifest)
        except CheckpointExistsError:
            if not await self._gives_way(manifest.step, manifest.generation):
                raise
            log.warning("step %d is saved again, in place of a suspect checkpoint", manifest.step)
            size_bytes = await self._writer.publish(manifest, replaces=True)
        self.catalog.remember(manifest, size_bytes)
        progress.enter("committed")
        named = [parent for parent in parents if parent is not None]
        if not all([await self._exists(layout.manifest_name(parent)) for parent in named]):
            # Whoever prunes deletes a manifest before its objects, and looks for references in between. So if the
            # parent's manifest is still here after our commit, its objects stay; if not, they may be gone.
            await self.storage.delete(f"{self.directory}/{layout.manifest_name(manifest.step)}")
            self._in_use.last = None
            raise _ParentGoneError
        previous, self._in_use.last = self._in_use.last, manifest
        same_as = previous.step if previous is not None and _is_same(previous, manifest) else None
        return self.catalog.describe(manifest).info, same_as

    async def commit(self, step: int, generation: int, progress: SaveProgress) -> tuple[CheckpointInfo, int | None]:
        """Commit a step whose parts are all durable; doing it again with the same parts is harmless."""
        reports = await self._read_reports(step, generation)
        manifest = merge_reports(reports) if reports else None
        if await self._exists(layout.manifest_name(step)):
            committed = await self.catalog.read(step)
            same = manifest is None or [p.digest for p in committed.parts] == [p.digest for p in manifest.parts]
            if committed.generation == generation and same:
                return self.catalog.describe(committed).info, None
            if manifest is None or not await self._gives_way(step, generation):
                raise CheckpointExistsError(step, path=f"{self.directory}/{layout.manifest_name(step)}")
        if manifest is None:
            raise IncompleteCheckpointError(step, f"no part of generation {generation} was saved")
        done = await self.publish(manifest, {report.parent for report in reports}, progress)
        for part in range(len(reports)):
            with suppress(StorageError):  # of no use any more, and swept some day
                await self._writer.retract_report(step, part, len(reports))
        return done

    async def publish(
        self, manifest: Manifest, parents: set[int | None], progress: SaveProgress
    ) -> tuple[CheckpointInfo, int | None]:
        """Commit a manifest of several parts; also return the step that it is bit-identical to, if it is."""
        if (diverged := manifest.diverged) is not None:
            if self._policy.on_divergence == "fail":
                raise ReplicasDivergedError(
                    manifest.step, ranks=diverged.ranks, tensor=diverged.tensor, tensors=diverged.tensors
                )
            log.warning("step %d has replicas that are not the same: %s", manifest.step, diverged)
        try:
            return await self._publish(manifest, parents, progress)
        except _ParentGoneError:
            problem = "the checkpoint that its deltas point at was deleted meanwhile"
            raise IncompleteCheckpointError(manifest.step, problem, missing=range(len(manifest.parts))) from None

    async def write_repair(self, report: Manifest, part: int, parts: int, repair: Repair) -> PartReport:
        """Write blocks from a backup as one more part of a step; ``report`` is that of the worker's own part."""
        token = uuid.uuid4().hex[:8]
        record = await self._writer.write_part(repair.image, step=report.step, part=part, parts=parts, token=token)
        slices: dict[str, list[StoredSlice]] = {}
        for (name, start, shape), offset in repair.offsets.items():
            slices.setdefault(name, []).append(StoredSlice(0, offset, start, shape))
        manifest = replace(
            report,
            parts=(record,),
            tensors={name: replace(report.tensors[name], slices=tuple(found)) for name, found in slices.items()},
            structure={"list": [{"tensor": name, "as": "numpy"} for name in slices]},
            copies=(),
        )
        path = await self._writer.report(manifest, part, parts, token=token)
        return PartReport(path, record.size_bytes, record.digest.hex())

    async def is_committed(self, step: int) -> bool:
        """Whether the manifest of a step is in storage."""
        return await self._exists(layout.manifest_name(step))

    async def _read_reports(self, step: int, generation: int) -> list[Manifest]:
        found: dict[int, dict[int, Manifest]] = {}
        for info in await self.catalog.list_objects(step):
            place = layout.part_of_report(info.path)
            if place is not None:
                report = await self.catalog.read_report(step, info.path)
                # A worker of another generation saved another state: its part is never mixed into this one.
                if report.generation == generation:
                    found.setdefault(place[1], {})[place[0]] = report
        if not found:
            return []
        if len(found) > 1:
            counts = " and ".join(map(str, sorted(found)))
            raise IncompleteCheckpointError(step, f"parts were saved as of {counts} in one generation")
        ((parts, reports),) = found.items()
        if missing := sorted(set(range(parts)) - set(reports)):
            shown = ", ".join(map(str, missing[:10]))
            raise IncompleteCheckpointError(step, f"of {parts} parts these are missing: {shown}", missing=missing)
        return [reports[part] for part in range(parts)]

    async def read_rewinds(self) -> tuple[Rewind, ...]:
        """Learn how the job was rewound, before it goes on; what is saved from now on says so."""
        self._rewinds = await self.rewinder.read()
        return self._rewinds

    async def load_newest(self, like: Any, only: Sequence[str], *, allow_suspect: bool = False) -> Restored:
        """Restore the newest step that is good, and a suspect one only if it is allowed or there is no other."""
        await self.read_rewinds()
        skipped: list[CheckpointError] = []
        suspects: list[SuspectCheckpointError] = []
        passed: set[int] = set()
        gone: Counter[int] = Counter()
        for _ in range(LOOKS):
            # Listed again each time: while this process read one, retention elsewhere may have replaced them all.
            newest = max(set(await self.catalog.steps()) - passed, default=None)
            if newest is None:
                break
            try:
                return await self.load(newest, like, only, skipped, allow_suspect=allow_suspect)
            except SuspectCheckpointError as error:
                log.warning("%s; passing over it", error)
                skipped.append(error)
                suspects.append(error)
                passed.add(newest)
            except DamagedCheckpointError as error:
                log.error("%s; falling back to an older checkpoint", error)  # noqa: TRY400 - the message says it all
                skipped.append(error)
                passed.add(newest)
            except CheckpointNotFoundError as error:
                log.info("%s; looking again", error)
                gone[newest] += 1
                if gone[newest] == LOOKS_AT_ONE:
                    passed.add(newest)
        for suspect in suspects:
            log.error("there is no checkpoint left that is not suspect; restoring step %d, which is", suspect.step)
            try:
                return await self.load(suspect.step, like, only, [error for error in skipped if error is not suspect])
            except DamagedCheckpointError as error:
                skipped.append(error)
        if skipped:
            raise skipped[0]
        raise CheckpointNotFoundError(None, path=self.directory)

    async def load(
        self,
        step: int,
        like: Any,
        only: Sequence[str],
        skipped: Sequence[CheckpointError] = (),
        *,
        allow_suspect: bool = True,
    ) -> Restored:
        """Restore a step; ``skipped`` says why it is not a newer one."""
        with counted(self._in_use.reading, step):
            try:
                async with self.catalog.reading(step) as manifest:
                    self._check_line(manifest)
                    if (diverged := manifest.diverged) is not None and diverged.suspect and not allow_suspect:
                        raise SuspectCheckpointError(
                            step, ranks=diverged.ranks, tensor=diverged.tensor, tensors=diverged.tensors
                        )
                    on_bytes = add_up(self._on_read, manifest.size_bytes)
                    reader = Reader(self.storage, self.directory, manifest, on_bytes, scratch=self._scratch)
                    data, unused = await restore(manifest, reader, like=like, only=only)
            except DamagedCheckpointError:
                await self._distrust_all()
                raise
            if self._policy.delta:
                self._abandoned = {newer for newer in await self.catalog.steps() if newer > step}
        self._in_use.last = manifest
        return Restored(
            data=data,
            step=step,
            epoch=manifest.epoch,
            metadata=manifest.metadata,
            cursors=manifest.cursors,
            generation=manifest.generation,
            skipped=list(skipped),
            job_id=manifest.job_id,
            unused=unused,
            rewinds=self._rewinds or (),
            diverged=manifest.diverged,
        )

    async def _distrust_all(self) -> None:
        """Have the next save be full: the chunks that are damaged may be those of other checkpoints too."""
        if self._policy.delta:
            self._in_use.last = None
            self._abandoned = set(await self.catalog.steps())

    def _check_line(self, manifest: Manifest) -> None:
        """Raise if a process saved it that did not know of a rewind: it went on where the job did not."""
        if is_left_behind(manifest.step, len(manifest.rewinds), self._rewinds or ()):
            problem = "the job was rewound before it, and a process saved it that did not know"
            raise DamagedCheckpointError(manifest.step, problem, part=layout.manifest_name(manifest.step))

    async def _find_parent(self, draft: Draft) -> Manifest | None:
        """The checkpoint that a delta may point at, or None for a full save."""
        if not self._policy.delta:
            return None
        # Of several writers only one commits, so what this one saw last may be long gone.
        parent = self._in_use.last if draft.parts == 1 else None
        if parent is None:
            steps = [step for step in await self.catalog.steps() if step not in self._abandoned]
            try:
                parent = await self.catalog.read(steps[-1]) if steps else None
            except (DamagedCheckpointError, CheckpointNotFoundError, UnknownFormatError):
                return None
            if parent is not None and not await self._has_all(parent):
                return None
        # Another save of its step may replace a suspect one.
        if (
            parent is None
            or parent.is_suspect
            or parent.deltas + 1 >= self._policy.full_every
            or len(parent.parts) != draft.parts
        ):
            return None
        return parent

    async def _has_all(self, manifest: Manifest) -> bool:
        """Whether the objects of a checkpoint that was not read here are there: what points at them needs them too."""
        sizes = {info.path: info.size_bytes for info in await self.catalog.list_objects()}
        extents = [extent for part in manifest.parts for extent in part.extents]
        return all(extent.offset + extent.length <= sizes.get(extent.path, -1) for extent in extents)

    async def _gives_way(self, step: int, generation: int) -> bool:
        """Whether a step has a checkpoint that a save of this generation may replace: a suspect one.

        A restart passes over it, and training comes to the same step again.
        """
        try:
            committed = await self.catalog.read(step)
        except (DamagedCheckpointError, CheckpointNotFoundError, UnknownFormatError):
            return False
        return committed.is_suspect and committed.generation <= generation

    async def _exists(self, name: str) -> bool:
        return await self.storage.exists(f"{self.directory}/{name}")


def _is_same(previous: Manifest, manifest: Manifest) -> bool:
    """Whether two checkpoints of different steps hold the same bits, and there are bits to speak of."""
    has_values = manifest.is_opaque or any(
        0 not in manifest.tensors[name].shape for name in list_state_tensors(manifest)
    )
    return previous.step != manifest.step and has_values and _digests(previous) == _digests(manifest)


def _digests(manifest: Manifest) -> list[bytes]:
    return [part.state_digest or part.digest for part in manifest.parts]
