"""Commits: a worker's checkpoints from its acknowledged part to the announcement, and the manifests it is asked for.

An announcement may get lost with a connection, so nothing rests on it: it only makes the worker ask at once what it
asks every few seconds anyway, what became of its part.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Sequence
from functools import partial
from typing import TYPE_CHECKING

from strata.checkpoint.coordination import CommitRecord, ManifestOrder, ManifestWriter, PartAck
from strata.cluster import commands as c
from strata.cluster.commits import CommitProgress
from strata.cluster.events import CheckpointAborted, CheckpointCommitted, Effect, ManifestWanted
from strata.cluster.replies import RestorePoint
from strata.errors import (
    CheckpointAbortedError,
    CheckpointError,
    CheckpointTimeoutError,
    CommitPendingError,
    JournalUnavailableError,
    StaleGenerationError,
    StaleIncarnationError,
    StorageError,
)

if TYPE_CHECKING:
    from strata.client.connection import Connection

log = logging.getLogger(__name__)

ASK_AGAIN_S = 2.0
RESTORE_AGAIN_S = 0.2
# A coordinator that is away for longer is told at the next occasion.
TELL_TIMEOUT_S = 60.0


class Commits:
    """Belongs to a connection and its event loop; :meth:`take_effect` is told what the coordinator says by itself."""

    def __init__(self, connection: Connection) -> None:
        self._connection = connection
        self._writer: ManifestWriter | None = None
        self._wanted: dict[int, ManifestWanted] = {}
        self._writing: dict[int, asyncio.Task[None]] = {}
        self._ended: dict[int, asyncio.Event] = {}

    def take_effect(self, effect: Effect) -> None:
        """Take what concerns checkpoints, and leave the rest."""
        match effect:
            case ManifestWanted():
                self._wanted[effect.step] = effect
                self._write_wanted()
            case CheckpointCommitted() | CheckpointAborted():
                self._wanted.pop(effect.step, None)
                if effect.step in self._ended:
                    self._ended[effect.step].set()

    def serve_manifests(self, writer: ManifestWriter | None) -> None:
        """Let this writer write manifests from now on; without one they wait."""
        self._writer = writer
        self._write_wanted()

    async def commit_part(self, ack: PartAck, *, timeout_s: float, on_wait: Callable[[Sequence[str]], None]) -> None:
        """Return when the checkpoint of this part is committed, or raise why it is not."""
        missing: tuple[str, ...] = ()

        def note(workers: tuple[str, ...]) -> None:
            nonlocal missing
            missing = workers
            on_wait(workers)

        ended = self._ended.setdefault(ack.step, asyncio.Event())
        try:
            async with asyncio.timeout(timeout_s):
                await self._see_through(ack, ended, note)
        except TimeoutError:
            what = f"the save of step {ack.step}"
            raise CheckpointTimeoutError(
                what, phase="committing", timeout_s=timeout_s, waits_for=missing or ["the coordinator"]
            ) from None
        finally:
            if self._ended.get(ack.step) is ended:
                del self._ended[ack.step]

    async def adopt_checkpoints(self, records: Sequence[CommitRecord]) -> None:
        """Make known what storage holds."""
        rows = tuple((record.step, record.epoch, record.manifest, record.cursors) for record in records)
        adopt = c.AdoptCheckpoints(job_id=self._connection.job_id, checkpoints=rows)
        await self._connection.ask(adopt, timeout_s=TELL_TIMEOUT_S)

    async def forget_checkpoints(self, steps: Sequence[int]) -> None:
        """Make known what was deleted."""
        forget = c.ForgetCheckpoints(job_id=self._connection.job_id, steps=tuple(steps))
        await self._connection.ask(forget, timeout_s=TELL_TIMEOUT_S)

    async def reject_checkpoint(self, step: int, reason: str) -> None:
        """Make known that a committed step cannot be restored."""
        reject = self._connection.fenced(c.RejectCheckpoint, step=step, reason=reason)
        await self._connection.ask(reject, timeout_s=TELL_TIMEOUT_S)

    async def find_restore_point(self, *, timeout_s: float) -> int | None:
        """Return the step of the present generation; a commit that is about to happen is waited for."""
        pending: Exception | None = None
        try:
            async with asyncio.timeout(timeout_s):
                while True:
                    try:
                        point = await self._connection.ask(self._connection.fenced(c.AskRestorePoint))
                    except (CommitPendingError, StaleGenerationError, StaleIncarnationError) as error:
                        pending = error
                        await asyncio.sleep(RESTORE_AGAIN_S)
                        continue
                    assert isinstance(point, RestorePoint)
                    return None if point.checkpoint is None else point.checkpoint.step
        except TimeoutError:
            raise CheckpointTimeoutError(
                "the restore", phase="waiting for the coordinator", timeout_s=timeout_s
            ) from pending

    async def _see_through(self, ack: PartAck, ended: asyncio.Event, note: Callable[[tuple[str, ...]], None]) -> None:
        await self._acknowledge(ack)
        while True:
            # An announcement between the answer and the wait must count, so it is forgotten before the question.
            ended.clear()
            progress = await self._connection.ask(self._connection.own(c.AskCommit, step=ack.step, part=ack.report))
            assert isinstance(progress, CommitProgress)
            if progress.phase == "committed":
                return
            if progress.phase == "aborted":
                raise CheckpointAbortedError(ack.step, progress.reason)
            if progress.phase == "unknown":
                # The coordinator lost its journal, or so much has happened since that it forgot: its answer decides.
                await self._acknowledge(ack)
            note(progress.missing)
            try:
                async with asyncio.timeout(ASK_AGAIN_S):
                    await ended.wait()
            except TimeoutError:
                pass

    async def _acknowledge(self, ack: PartAck) -> None:
        while True:
            command = self._connection.own(
                c.AckPart,
                generation=ack.generation,
                step=ack.step,
                epoch=ack.epoch,
                part=ack.report,
                size_bytes=ack.size_bytes,
                digest=ack.digest,
            )
            try:
                await self._connection.ask(command)
            except JournalUnavailableError as error:
                log.warning("step %d waits: %s", ack.step, error)
                await asyncio.sleep(ASK_AGAIN_S)
            except StaleGenerationError as error:
                raise CheckpointAbortedError(ack.step, self._connection.why_changed or str(error)) from error
            except StaleIncarnationError as error:
                raise CheckpointAbortedError(ack.step, str(error)) from error
            else:
                return

    def _write_wanted(self) -> None:
        writer = self._writer
        if writer is None:
            return
        for step in [step for step in self._wanted if step not in self._writing]:
            task = asyncio.get_running_loop().create_task(self._write(self._wanted.pop(step), writer))
            self._writing[step] = task
            task.add_done_callback(partial(self._written, step))

    def _written(self, step: int, task: asyncio.Task[None]) -> None:
        del self._writing[step]
        if not task.cancelled() and (error := task.exception()) is not None:
            log.error("the manifest of step %d could not be seen through: %s", step, error)

    async def _write(self, wanted: ManifestWanted, writer: ManifestWriter) -> None:
        order = ManifestOrder(
            step=wanted.step,
            epoch=wanted.epoch,
            generation=wanted.generation,
            reports=wanted.parts,
            cursors=wanted.cursors,
        )
        try:
            record = await asyncio.wrap_future(writer.write_manifest(order))
        except CheckpointError as error:
            log.error("step %d cannot be committed: %s", order.step, error)  # noqa: TRY400 - the message says it all
            give_up = {"step": order.step, "generation": order.generation, "reason": str(error)}
            await self._connection.ask(self._connection.own(c.GiveUpCheckpoint, **give_up))
        except (StorageError, RuntimeError) as error:
            log.warning("the manifest of step %d is left to another worker: %s", order.step, error)
        else:
            where = {"manifest": record.manifest, "cursors": record.cursors}
            confirm = {"step": record.step, "epoch": record.epoch, "generation": order.generation, **where}
            await self._confirm(self._connection.own(c.ConfirmCommit, **confirm))
            writer.clean_up(order)

    async def _confirm(self, command: c.WorkerCommand) -> None:
        while True:
            try:
                await self._connection.ask(command)
            except JournalUnavailableError as error:
                log.warning("a commit waits to be announced: %s", error)
                await asyncio.sleep(ASK_AGAIN_S)
            else:
                return
