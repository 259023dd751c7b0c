"""The pruner: deletes what retention does not keep and what dead saves left, and tells its caller which steps went."""

from __future__ import annotations

import asyncio
import json
import logging
from collections import Counter
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from strata.checkpoint.format import layout
from strata.checkpoint.keep.read_lease import leased_steps
from strata.checkpoint.keep.retention import Facts, RetentionPolicy, Verdict, decide, find_debris, find_unneeded
from strata.errors import (
    CheckpointNotFoundError,
    CheckpointPinnedError,
    ObjectExistsError,
    ObjectNotFoundError,
    StorageError,
    UnknownFormatError,
)

if TYPE_CHECKING:
    from collections.abc import Iterator

    from strata.checkpoint.format.manifest import Manifest
    from strata.checkpoint.keep.catalog import Catalog
    from strata.checkpoint.save.progress import SaveProgress
    from strata.clock import Clock
    from strata.storage import Storage

log = logging.getLogger(__name__)


@dataclass(slots=True)
class InUse:
    """The steps that this process works with, so that none of them is deleted meanwhile."""

    saving: Counter[int] = field(default_factory=Counter)
    reading: Counter[int] = field(default_factory=Counter)
    last: Manifest | None = None
    """What was committed or restored last; a delta may point at it."""


@contextmanager
def counted(counter: Counter[int], step: int) -> Iterator[None]:
    """Count a step as in use."""
    counter[step] += 1
    try:
        yield
    finally:
        counter[step] -= 1
        if not counter[step]:
            del counter[step]


class Pruner:
    """Deletes checkpoints of one job; one deletion at a time, and never what is in use."""

    def __init__(
        self,
        storage: Storage,
        catalog: Catalog,
        directory: str,
        *,
        policy: RetentionPolicy,
        clock: Clock,
        in_use: InUse,
    ) -> None:
        self._storage = storage
        self._catalog = catalog
        self._directory = directory
        self._policy = policy
        self._clock = clock
        self._in_use = in_use
        self._lock = asyncio.Lock()
        self._retain_waits = False
        self._is_swept = False

    async def pin(self, step: int, reason: str) -> None:
        """Keep a checkpoint whatever retention thinks."""
        await self._catalog.read(step)
        await self._storage.write(self._path(layout.pin_name(step)), json.dumps({"reason": reason}).encode())

    async def unpin(self, step: int) -> None:
        """Leave a checkpoint to retention again, also a damaged one."""
        await self._require(step)
        await self._storage.delete(self._path(layout.pin_name(step)))

    async def delete(self, step: int) -> None:
        """Delete one checkpoint, readable or not, and what only it needed."""
        async with self._lock:
            await self._require(step)
            if await self._storage.exists(self._path(layout.pin_name(step))):
                raise CheckpointPinnedError(step)
            if self._in_use.last is not None and self._in_use.last.step == step:
                self._in_use.last = None
            # Whoever deletes it by hand means it: its readers get an error that says so.
            await self._remove({step}, even_leased=True)

    async def _require(self, step: int) -> None:
        if not await self._storage.exists(self._path(layout.manifest_name(step))):
            raise CheckpointNotFoundError(step, path=self._directory, known=await self._catalog.steps())

    async def prune(self, *, dry_run: bool = False) -> list[Verdict]:
        """Delete what the policy does not keep, and debris; return what was, or would be, deleted and why."""
        async with self._lock:
            self._retain_waits = False
            scan = await self._catalog.scan()
            newer = [step for step, error in scan.unreadable.items() if isinstance(error, UnknownFormatError)]
            if newer:
                # What a newer version wrote may need any object here.
                log.warning("nothing is pruned: step %d has a manifest of a newer version", newer[0])
                return []
            facts = [entry.facts for entry in scan.entries.values()]
            last = self._in_use.last
            leased = leased_steps(scan.objects, now_s=self._clock.wall_s())
            in_use = {*leased, *self._in_use.reading, *([last.step] if last is not None else [])}
            verdicts = decide(facts, self._policy, now_s=self._clock.wall_s(), in_use=in_use)
            going = [verdict for verdict in verdicts if not verdict.keep]
            if not dry_run:
                gone = await self._remove({verdict.step for verdict in going})
                return [verdict for verdict in going if verdict.step in gone]
            return going

    async def prune_rewound(self, *, dry_run: bool = False) -> list[Verdict]:
        """Delete what rewinds set aside, and only that; return what was, or would be, deleted."""
        async with self._lock:
            scan = await self._catalog.scan()
            victims = [entry.facts for entry in scan.rewound]
            if not dry_run and victims:
                names = {path for facts in victims for path in facts.objects if layout.is_rewound(path)}
                for name in sorted(names):
                    await self._storage.delete(self._path(name))
                needed = {path for entry in scan.entries.values() for path in entry.facts.objects}
                for path in sorted({path for facts in victims for path in facts.objects} - needed - names):
                    await self._storage.delete(self._path(path))
            return [
                Verdict(entry.info.step, keep=False, reason=f"rewind {entry.info.rewound} set it aside")
                for entry in scan.rewound
            ]

    async def retain(self, progress: SaveProgress) -> list[int]:
        """Prune after a commit, and return the steps that went; what goes wrong does not touch the new checkpoint.

        One that has not begun yet will see this commit too, so they do not queue up behind a slow store.
        """
        if self._retain_waits:
            return []
        self._retain_waits = True
        going: list[Verdict] = []
        progress.mark("retaining")
        try:
            going = await self.prune()
        except StorageError as error:
            log.warning("old checkpoints could not be pruned: %s", error)
        progress.mark("retained")
        return [verdict.step for verdict in going]

    async def sweep(self) -> None:
        """Remove what dead saves left, once; what goes wrong is logged and does not touch the save."""
        if self._is_swept:
            return
        self._is_swept = True
        try:
            async with self._lock:
                unreadable = (await self._catalog.scan()).unreadable.values()
                if not any(isinstance(error, UnknownFormatError) for error in unreadable):
                    await self._remove(set())
        except StorageError as error:
            log.warning("the files of interrupted saves could not be removed: %s", error)

    async def _remove(self, steps: set[int], *, even_leased: bool = False) -> set[int]:
        """Delete steps with what only they need, and debris; return those that no reader has taken meanwhile."""
        before = await self._catalog.scan()
        manifests = {} if even_leased else await self._read_manifests(steps)
        # First what makes it a checkpoint, so that no reader begins with one that is half gone.
        for step in sorted(steps):
            await self._storage.delete(self._path(layout.manifest_name(step)))
        # Then ask again who needs what: a delta may have been committed since, and a reader that read a manifest before
        # it went has its lease by now.
        after = await self._catalog.scan() if steps else before
        now_s = self._clock.wall_s()
        spared = manifests.keys() & leased_steps(after.objects, now_s=now_s)
        for step in sorted(spared):
            with suppress(ObjectExistsError):  # saved again by another process
                await self._storage.write_new(self._path(layout.manifest_name(step)), manifests[step])
        if spared:
            after = await self._catalog.scan()
        gone = steps - spared
        victims = [before.entries[step].facts if step in before.entries else Facts(step, 0.0) for step in gone]
        kept = [entry.facts for entry in (*after.entries.values(), *after.rewound)]
        going = find_unneeded(victims, kept, [info.path for info in after.objects])
        untouchable = {*self._in_use.saving, *after.unreadable}
        going += find_debris(after.objects, kept, now_s=now_s, policy=self._policy, untouchable=untouchable)
        for path in dict.fromkeys(going):
            await self._storage.delete(self._path(path))
        if going:
            log.info("pruned steps %s and %d objects", sorted(gone), len(going))
        return gone

    async def _read_manifests(self, steps: set[int]) -> dict[int, bytes]:
        """Return the commit records of steps, to put back those that a reader has taken."""
        found: dict[int, bytes] = {}
        for step in sorted(steps):
            with suppress(ObjectNotFoundError):
                found[step] = await self._storage.read(self._path(layout.manifest_name(step)))
        return found

    def _path(self, name: str) -> str:
        return f"{self._directory}/{name}"
