"""The engine: saving, committing, restoring and pruning on storage, on one event loop; the manager has the faces."""

from __future__ import annotations

import asyncio
import json
import logging
from collections import Counter
from contextlib import contextmanager, suppress
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from strata.checkpoint import layout
from strata.checkpoint.catalog import Catalog
from strata.checkpoint.coordination import PartAck
from strata.checkpoint.merge import merge_reports
from strata.checkpoint.reader import Reader
from strata.checkpoint.restore import Restored, restore
from strata.checkpoint.retention import Facts, Verdict, decide, find_debris, find_unneeded
from strata.checkpoint.writer import Writer
from strata.errors import (
    CheckpointError,
    CheckpointExistsError,
    CheckpointNotFoundError,
    DamagedCheckpointError,
    IncompleteCheckpointError,
    StorageError,
    StorageFullError,
    UnknownFormatError,
)

if TYPE_CHECKING:
    import mmap
    from collections.abc import Awaitable, Callable, Iterator, Sequence

    from strata.checkpoint.draft import Draft
    from strata.checkpoint.handle import CheckpointInfo
    from strata.checkpoint.manifest import Manifest, PartRecord
    from strata.checkpoint.retention import RetentionPolicy
    from strata.checkpoint.staging import StagedImage
    from strata.clock import Clock
    from strata.storage import Storage

log = logging.getLogger(__name__)


class _ParentGoneError(Exception):
    """The parent of a delta was deleted while it was written; it is written again, in full."""


@dataclass(frozen=True, slots=True)
class Saved:
    """What a save came to: the step that it is bit-identical to, if it is, and what the coordinator is to be told."""

    info: CheckpointInfo
    same_as: int | None = None
    ack: PartAck | None = None


class Engine:
    """One job's checkpoints on one storage. ``on_phase`` is told where a save is, before it goes on."""

    def __init__(
        self,
        storage: Storage,
        job_id: str,
        *,
        policy: RetentionPolicy,
        clock: Clock,
        delta: bool,
        full_every: int,
        on_phase: Callable[[str], None],
    ) -> None:
        self.storage = storage
        self.directory = layout.checkpoints_directory(job_id)
        self.catalog = Catalog(storage, self.directory)
        self._writer = Writer(storage, self.directory)
        self._policy = policy
        self._clock = clock
        self._delta = delta
        self._full_every = full_every
        self._on_phase = on_phase
        # Told which steps were deleted, when they are.
        self.on_removed: Callable[[list[int]], Awaitable[None]] | None = None
        self._last: Manifest | None = None
        # Newer than what was restored: of a history that nobody continues, and perhaps damaged.
        self._abandoned: set[int] = set()
        self._saving: Counter[int] = Counter()
        self._reading: Counter[int] = Counter()
        self._pruning = asyncio.Lock()
        self._retain_waits = False
        self._scratch: list[mmap.mmap] = []

    async def save(self, draft: Draft, image: StagedImage, follow: Callable[[str], None]) -> Saved:
        """Save one part, and commit it if it is the only one; ``follow`` is told of every phase too."""
        with _counted(self._saving, draft.step):
            await self._writer.check_free(draft.step)
            try:
                return await self._save(draft, image, await self._find_parent(draft), follow)
            except _ParentGoneError:
                return await self._save(draft, image, None, follow)

    async def _save(
        self, draft: Draft, image: StagedImage, parent: Manifest | None, follow: Callable[[str], None]
    ) -> Saved:
        self._enter("writing", follow)
        if draft.parts > 1 and not draft.token:
            await self._writer.retract_report(draft.step, draft.part, draft.parts)
        record = await self._writer.write_part(
            image,
            step=draft.step,
            part=draft.part,
            parts=draft.parts,
            opaque=draft.flat is None,
            token=draft.token,
            parent=parent.parts[draft.part] if parent is not None else None,
        )
        self._enter("written", follow)
        try:
            return await self._commit_part(draft, record, parent, follow)
        except StorageFullError:
            # Nothing was committed for certain, so what was written can make room again.
            await self._writer.remove(record, draft.step)
            raise

    async def _commit_part(
        self, draft: Draft, record: PartRecord, parent: Manifest | None, follow: Callable[[str], None]
    ) -> Saved:
        is_delta = parent is not None and any(layout.step_of(e.path) != draft.step for e in record.extents)
        manifest = draft.manifest(
            record,
            created_s=self._clock.wall_s(),
            parent=parent.step if parent is not None and is_delta else None,
            deltas=parent.deltas + 1 if parent is not None and is_delta else 0,
        )
        if draft.parts > 1 or draft.token:
            report = await self._writer.report(manifest, draft.part, draft.parts, token=draft.token)
            self._enter("reported", follow)
            info = replace(self.catalog.describe(manifest).info, parts=draft.parts, committed=False)
            return Saved(info, None, _acknowledge(draft, record, report) if draft.token else None)
        if any(tensor.shape != tensor.slices[0].shape for tensor in manifest.tensors.values()):
            manifest = merge_reports([manifest])
        return Saved(*await self._publish(manifest, follow, {manifest.parent}))

    async def _publish(
        self, manifest: Manifest, follow: Callable[[str], None], parents: set[int | None]
    ) -> tuple[CheckpointInfo, int | None]:
        self._enter("committing", follow)
        self.catalog.remember(manifest, await self._writer.publish(manifest))
        self._enter("committed", follow)
        named = [parent for parent in parents if parent is not None]
        if not all([await self._exists(layout.manifest_name(parent)) for parent in named]):
            # Whoever prunes deletes a manifest before its objects, and looks for references in between. So if the
            # parent's manifest is still here after our commit, its objects stay; if not, they may be gone.
            await self.storage.delete(f"{self.directory}/{layout.manifest_name(manifest.step)}")
            self._last = None
            raise _ParentGoneError
        previous, self._last = self._last, manifest
        same_as = previous.step if previous is not None and _is_same(previous, manifest) else None
        return self.catalog.describe(manifest).info, same_as

    async def commit(self, step: int, generation: int) -> tuple[CheckpointInfo, int | None]:
        """Commit a step whose parts are all durable; doing it again with the same parts is harmless."""
        reports = await self._read_reports(step, generation)
        manifest = merge_reports(reports) if reports else None
        if await self._exists(layout.manifest_name(step)):
            committed = await self.catalog.read(step)
            same = manifest is None or [p.digest for p in committed.parts] == [p.digest for p in manifest.parts]
            if committed.generation == generation and same:
                return self.catalog.describe(committed).info, None
            raise CheckpointExistsError(step, path=f"{self.directory}/{layout.manifest_name(step)}")
        if manifest is None:
            raise IncompleteCheckpointError(step, f"no part of generation {generation} was saved")
        done = await self.publish(manifest, {report.parent for report in reports})
        for part in range(len(reports)):
            with suppress(StorageError):  # of no use any more, and swept some day
                await self._writer.retract_report(step, part, len(reports))
        return done

    async def publish(self, manifest: Manifest, parents: set[int | None]) -> tuple[CheckpointInfo, int | None]:
        """Commit a manifest of several parts; also return the step that it is bit-identical to, if it is."""
        try:
            return await self._publish(manifest, lambda name: None, parents)
        except _ParentGoneError:
            problem = "the checkpoint that its deltas point at was deleted meanwhile"
            raise IncompleteCheckpointError(manifest.step, problem, missing=range(len(manifest.parts))) from None

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

    async def load_newest(self, like: Any, only: Sequence[str]) -> Restored:
        """Restore the newest step that is good."""
        skipped: list[CheckpointError] = []
        for newest in reversed(await self.catalog.steps()):
            try:
                return await self.load(newest, like, only, skipped)
            except DamagedCheckpointError as error:
                log.error("%s; falling back to an older checkpoint", error)  # noqa: TRY400 - the message says it all
                skipped.append(error)
            except CheckpointNotFoundError:
                continue  # deleted since it was listed
        if skipped:
            raise skipped[0]
        raise CheckpointNotFoundError(None, path=self.directory)

    async def load(
        self, step: int, like: Any, only: Sequence[str], skipped: Sequence[CheckpointError] = ()
    ) -> Restored:
        """Restore a step; ``skipped`` says why it is not a newer one."""
        with _counted(self._reading, step):
            manifest = await self.catalog.read(step)
            reader = Reader(self.storage, self.directory, manifest, scratch=self._scratch)
            data = await restore(manifest, reader, like=like, only=only)
            if self._delta:
                self._abandoned = {newer for newer in await self.catalog.steps() if newer > step}
        self._last = manifest
        return Restored(
            data=data,
            step=step,
            epoch=manifest.epoch,
            metadata=manifest.metadata,
            cursors=manifest.cursors,
            generation=manifest.generation,
            skipped=list(skipped),
            job_id=manifest.job_id,
        )

    async def pin(self, step: int, reason: str) -> None:
        """Keep a checkpoint whatever retention thinks."""
        await self.catalog.read(step)
        await self.storage.write(f"{self.directory}/{layout.pin_name(step)}", json.dumps({"reason": reason}).encode())

    async def unpin(self, step: int) -> None:
        """Leave a checkpoint to retention again."""
        await self.storage.delete(f"{self.directory}/{layout.pin_name(step)}")

    async def delete(self, step: int) -> None:
        """Delete one checkpoint, readable or not, and what only it needed."""
        async with self._pruning:
            if not await self._exists(layout.manifest_name(step)):
                raise CheckpointNotFoundError(step, path=self.directory, known=await self.catalog.steps())
            if await self._exists(layout.pin_name(step)):
                raise ValueError(f"step {step} is pinned; unpin it first")
            if self._last is not None and self._last.step == step:
                self._last = None
            await self._remove({step}, self._policy)

    async def prune(self, *, dry_run: bool = False, policy: RetentionPolicy | None = None) -> list[Verdict]:
        """Delete what the policy does not keep, and debris; return what was, or would be, deleted and why."""
        policy = policy or self._policy
        async with self._pruning:
            self._retain_waits = False
            scan = await self.catalog.scan()
            newer = [step for step, error in scan.unreadable.items() if isinstance(error, UnknownFormatError)]
            if newer:
                # What a newer version wrote may need any object here.
                log.warning("nothing is pruned: step %d has a manifest of a newer version", newer[0])
                return []
            facts = [entry.facts for entry in scan.entries.values()]
            in_use = {*self._reading, *([self._last.step] if self._last is not None else [])}
            verdicts = decide(facts, policy, now_s=self._clock.wall_s(), in_use=in_use)
            going = [verdict for verdict in verdicts if not verdict.keep]
            if not dry_run:
                await self._remove({verdict.step for verdict in going}, policy)
            return going

    async def _remove(self, steps: set[int], policy: RetentionPolicy) -> None:
        before = await self.catalog.scan()
        victims = [before.entries[step].facts if step in before.entries else Facts(step, 0.0) for step in steps]
        # First what makes it a checkpoint, so that no reader begins with one that is half gone.
        for step in sorted(steps):
            await self.storage.delete(f"{self.directory}/{layout.manifest_name(step)}")
        # Then ask anew who needs what: a delta may have been committed since.
        after = await self.catalog.scan() if steps else before
        kept = [entry.facts for entry in after.entries.values()]
        stored = [(info.path, info.modified_s) for info in after.objects]
        going = find_unneeded(victims, kept, [path for path, _ in stored])
        untouchable = {*self._saving, *after.unreadable}
        going += find_debris(stored, kept, now_s=self._clock.wall_s(), grace_s=policy.grace_s, untouchable=untouchable)
        for path in dict.fromkeys(going):
            await self.storage.delete(f"{self.directory}/{path}")
        if going:
            log.info("pruned steps %s and %d objects", sorted(steps), len(going))
        if steps and self.on_removed is not None:
            await self.on_removed(sorted(steps))

    async def retain(self) -> None:
        """Prune after a commit; what goes wrong is said and does not touch the new checkpoint.

        One that has not begun yet will see this commit too, so they do not queue up behind a slow store.
        """
        if self._retain_waits:
            return
        self._retain_waits = True
        self._on_phase("retaining")
        try:
            await self.prune()
        except StorageError as error:
            log.warning("old checkpoints could not be pruned: %s", error)
        self._on_phase("retained")

    async def _find_parent(self, draft: Draft) -> Manifest | None:
        """The checkpoint that a delta may point at, or None for a full save."""
        if not self._delta:
            return None
        # Of several writers only one commits, so what this one saw last may be long gone.
        parent = self._last if draft.parts == 1 else None
        if parent is None:
            steps = [step for step in await self.catalog.steps() if step not in self._abandoned]
            try:
                parent = await self.catalog.read(steps[-1]) if steps else None
            except (DamagedCheckpointError, CheckpointNotFoundError, UnknownFormatError):
                return None
        if parent is None or parent.deltas + 1 >= self._full_every or len(parent.parts) != draft.parts:
            return None
        return parent

    def _enter(self, name: str, follow: Callable[[str], None]) -> None:
        follow(name)
        self._on_phase(name)

    async def _exists(self, name: str) -> bool:
        return await self.storage.exists(f"{self.directory}/{name}")


@contextmanager
def _counted(counter: Counter[int], step: int) -> Iterator[None]:
    counter[step] += 1
    try:
        yield
    finally:
        counter[step] -= 1
        if not counter[step]:
            del counter[step]


def _is_same(previous: Manifest, manifest: Manifest) -> bool:
    """Whether two checkpoints of different steps hold the same bits, and there are bits to speak of."""
    digests = [part.digest for part in manifest.parts]
    has_values = manifest.is_opaque or any(0 not in tensor.shape for tensor in manifest.tensors.values())
    return previous.step != manifest.step and has_values and digests == [part.digest for part in previous.parts]


def _acknowledge(draft: Draft, record: PartRecord, report: str) -> PartAck:
    return PartAck(
        step=draft.step,
        epoch=draft.epoch,
        generation=draft.generation,
        report=report,
        size_bytes=record.size_bytes,
        digest=record.digest.hex(),
    )
