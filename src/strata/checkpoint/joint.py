"""Joint checkpoints: one worker's side of those that all workers of a job commit together through a coordinator.

Each worker writes its part and a report about it under names that no other attempt has, and acknowledges the report.
Whoever is asked reads exactly the acknowledged reports and writes the manifest. So a part of an older generation, or of
an attempt that was given up, cannot get into a manifest, whoever still writes to the same step.
"""

from __future__ import annotations

import asyncio
import json
import logging
from contextlib import suppress
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from strata.checkpoint import layout
from strata.checkpoint.coordination import LEDGER, CommitRecord
from strata.checkpoint.merge import merge_reports
from strata.errors import (
    CheckpointError,
    CheckpointExistsError,
    CheckpointNotFoundError,
    ClusterError,
    DamagedCheckpointError,
    IncompleteCheckpointError,
    LastCheckpointError,
    ObjectNotFoundError,
    StaleGenerationError,
    StaleIncarnationError,
    StorageError,
)

if TYPE_CHECKING:
    from collections.abc import Sequence
    from concurrent.futures import Future

    from strata.checkpoint.coordination import CommitCoordinator, ManifestOrder, PartAck
    from strata.checkpoint.engine import Engine
    from strata.checkpoint.handle import CheckpointInfo, SaveHandle
    from strata.checkpoint.manifest import Manifest, PartRecord
    from strata.checkpoint.restore import Restored
    from strata.checkpoint.saver import Saver

log = logging.getLogger(__name__)

READERS = 16
RESTORE_WAIT_S = 120.0
SEE_LOOKS = 10
SEE_AGAIN_S = 0.5


class JointCheckpoints:
    """A ManifestWriter, and the bridge between a manager's event loop and its coordinator's."""

    def __init__(self, coordinator: CommitCoordinator, engine: Engine, saver: Saver, *, timeout_s: float) -> None:
        self._coordinator = coordinator
        self._engine = engine
        self._saver = saver
        self._timeout_s = timeout_s
        # What storage holds is made known before anyone is asked where to go on: the coordinator may be a new one.
        self._adopting = saver.submit(self._adopt())
        self._adopting.add_done_callback(_log_failure)
        engine.on_removed = self._forget
        coordinator.serve_manifests(self)

    def close(self) -> None:
        """Write no more manifests; another worker is asked for those that are missing."""
        self._coordinator.serve_manifests(None)

    async def commit(self, ack: PartAck, handle: SaveHandle) -> None:
        """Return when the checkpoint of this part is committed, or raise why it will not be."""

        def note(workers: Sequence[str]) -> None:
            handle.waits_for = tuple(workers)

        await asyncio.wrap_future(self._coordinator.commit_part(ack, timeout_s=self._timeout_s, on_wait=note))
        handle.waits_for = ()

    def write_manifest(self, order: ManifestOrder) -> Future[CommitRecord]:
        """Commit in storage what the coordinator has all parts of; from any thread."""
        return self._saver.serve(self._write_manifest(order))

    def clean_up(self, order: ManifestOrder) -> None:
        """Begin to delete reports, and what retention does not keep any more; from any thread."""
        self._saver.serve(self._clean_up(order))

    async def load(self, like: Any, only: Sequence[str]) -> Restored:
        """Restore the step that all workers of the present generation do; if it cannot be, all go back further."""
        try:
            await asyncio.wrap_future(self._adopting)
        except (StorageError, ClusterError):
            # Without it a coordinator that is new would say that there is nothing, and all would begin anew.
            await self._adopt()
        skipped: list[CheckpointError] = []
        while True:
            step = await asyncio.wrap_future(self._coordinator.find_restore_point(timeout_s=RESTORE_WAIT_S))
            if step is None:
                raise CheckpointNotFoundError(None, path=self._engine.directory)
            try:
                await self._see(step)
                return await self._engine.load(step, like, only, skipped)
            except (DamagedCheckpointError, CheckpointNotFoundError) as error:
                await self._reject(step, error)
                skipped.append(error)

    async def _reject(self, step: int, error: DamagedCheckpointError | CheckpointNotFoundError) -> None:
        """Have all workers go back to an older checkpoint; raise the error where there is none, or only not here."""
        if isinstance(error, CheckpointNotFoundError) and not error.known:
            error.add_note("the job has checkpoints, and none is here: do all workers use the same storage?")
            raise error
        log.error("%s; all workers go back to an older checkpoint", error)
        try:
            # In another generation by now, all ask again anyway.
            with suppress(StaleGenerationError, StaleIncarnationError):
                await asyncio.wrap_future(self._coordinator.reject_checkpoint(step, str(error)))
        except LastCheckpointError as last:
            error.add_note(str(last))
            raise error from last

    async def _see(self, step: int) -> None:
        """Wait a little for a manifest that another machine wrote: a shared file system may show it late."""
        for _ in range(SEE_LOOKS):
            if await self._engine.is_committed(step):
                return
            await asyncio.sleep(SEE_AGAIN_S)

    async def _forget(self, steps: list[int]) -> None:
        """Tell the coordinator what was deleted; it goes on without if it cannot be told."""
        try:
            await asyncio.wrap_future(self._coordinator.forget_checkpoints(steps))
        except ClusterError as error:
            log.warning("the coordinator could not be told that steps %s were deleted: %s", steps, error)

    async def _write_manifest(self, order: ManifestOrder) -> CommitRecord:
        committed = await self._find_committed(order)
        if committed is not None:
            return committed
        try:
            reports = await self._read_reports(order)
        except ObjectNotFoundError as error:
            # Another one that was asked may have been faster, and cleaned up.
            committed = await self._find_committed(order)
            if committed is None:
                raise IncompleteCheckpointError(
                    order.step, f"a report is not in this worker's storage: {error}"
                ) from error
            return committed
        # Workers that read shards of their own end an epoch at different steps; it is over when it is for all.
        epoch = min(report.epoch for report in reports)
        manifest = merge_reports([replace(report, epoch=epoch) for report in reports])
        manifest = replace(manifest, cursors={**manifest.cursors, LEDGER: json.loads(order.cursors)})
        try:
            _, same_as = await self._engine.publish(manifest, {report.parent for report in reports})
        except CheckpointExistsError:
            committed = await self._find_committed(order)
            if committed is None:
                raise
            return committed
        self._saver.note_unchanged(order.step, same_as)
        return self._record(manifest)

    async def _find_committed(self, order: ManifestOrder) -> CommitRecord | None:
        """Return the commit that is already there, if it is this one; raise if it is another one."""
        if not await self._engine.is_committed(order.step):
            return None
        committed = await self._engine.catalog.read(order.step)
        wanted = [(size, digest) for _, size, digest in order.reports]
        if committed.generation != order.generation or wanted != [_brief(part) for part in committed.parts]:
            raise CheckpointExistsError(order.step, path=self._path(order.step))
        return self._record(committed)

    async def _read_reports(self, order: ManifestOrder) -> list[Manifest]:
        gate = asyncio.Semaphore(READERS)

        async def read(row: tuple[str, int, str]) -> Manifest:
            name, size_bytes, digest = row
            async with gate:
                report = await self._engine.catalog.read_report(order.step, name)
            if [(size_bytes, digest)] != [_brief(part) for part in report.parts]:
                raise DamagedCheckpointError(order.step, "it is not the report that was acknowledged", part=name)
            if (report.generation, report.step) != (order.generation, order.step):
                raise DamagedCheckpointError(order.step, "it is the report of another save", part=name)
            return report

        return await asyncio.gather(*(read(row) for row in order.reports))

    async def _clean_up(self, order: ManifestOrder) -> None:
        for name, _, _ in order.reports:
            with suppress(StorageError):  # of no use any more, and swept some day
                await self._engine.storage.delete(f"{self._engine.directory}/{name}")
        await self._engine.retain()

    async def _adopt(self) -> None:
        scan = await self._engine.catalog.scan()
        records = [self._record(entry.info) for entry in scan.entries.values()]
        if records:
            await asyncio.wrap_future(self._coordinator.adopt_checkpoints(records))

    def _record(self, source: Manifest | CheckpointInfo) -> CommitRecord:
        cursors = json.dumps(source.cursors.get(LEDGER, []), separators=(",", ":"))
        return CommitRecord(step=source.step, epoch=source.epoch, manifest=self._path(source.step), cursors=cursors)

    def _path(self, step: int) -> str:
        return f"{self._engine.directory}/{layout.manifest_name(step)}"


def _brief(part: PartRecord) -> tuple[int, str]:
    return part.size_bytes, part.digest.hex()


def _log_failure(adopting: Future[None]) -> None:
    if not adopting.cancelled() and (error := adopting.exception()) is not None:
        log.warning("the coordinator could not be told which checkpoints there are: %s", error)
