"""The rewinder: has a job go on from an older checkpoint, by a record in storage that every start reads.

The record is the commit point. The commit records of newer checkpoints are then renamed: their step can be saved again,
and what they name stays. If this is interrupted, no process starts before it is finished by doing it again.
"""

from __future__ import annotations

import json
from dataclasses import replace
from typing import TYPE_CHECKING

from strata.checkpoint.format import layout
from strata.checkpoint.format.rewind_record import BatchRange, Rewind, find_skips
from strata.errors import DamagedRecordError, ObjectExistsError, ObjectNotFoundError, RewindError, UnfinishedRewindError

if TYPE_CHECKING:
    from collections.abc import Sequence

    from strata.checkpoint.keep.catalog import Catalog
    from strata.clock import Clock
    from strata.storage import Storage


class Rewinder:
    """The rewinds of one job."""

    def __init__(self, storage: Storage, catalog: Catalog, directory: str, *, clock: Clock) -> None:
        self._storage = storage
        self._catalog = catalog
        self._directory = directory
        self._clock = clock

    async def read(self) -> tuple[Rewind, ...]:
        """Return all rewinds of the job, oldest first; raise UnfinishedRewindError if one was interrupted."""
        rewinds = await self._read_all()
        for rewind in rewinds:
            if not rewind.is_finished:
                raise UnfinishedRewindError(self._job_id, to_step=rewind.to_step)
        return rewinds

    async def rewind(self, to_step: int, skips: tuple[BatchRange, ...] = (), dataset: str = "") -> Rewind:
        """Have the next start of the job go on from ``to_step`` and pass over ``skips``; nobody may work on the job.

        One that was interrupted is finished before; if it was to the same step, that is all.
        """
        found = await self._read_all()
        earlier = [await self._finish(rewind) for rewind in found]
        if found and not found[-1].is_finished and found[-1].to_step == to_step and skips in ((), found[-1].skips):
            return earlier[-1]
        steps = await self._catalog.steps()
        if to_step not in steps:
            raise RewindError(self._job_id, _nearest(to_step, steps, self._storage))
        await self._catalog.read(to_step)
        for first, last in skips:
            if not to_step < first <= last:
                problem = f"batches {first}..{last} cannot be skipped after step {to_step}: use FIRST..LAST from "
                raise RewindError(self._job_id, f"{problem}{to_step + 1} on, with FIRST not above LAST")
        newer = tuple(step for step in steps if step > to_step)
        held = {each for rewind in earlier for each in find_skips(earlier, rewind.dataset) if each[1] > to_step}
        if not newer and held == set(skips):
            raise RewindError(
                self._job_id, f"step {to_step} is the newest checkpoint: the job goes on from there anyway"
            )
        rewind = Rewind(
            number=len(earlier) + 1,
            from_step=steps[-1],
            to_step=to_step,
            at_s=self._clock.wall_s(),
            dataset=dataset if skips else "",
            skips=tuple(sorted(skips)),
            set_aside=newer,
        )
        try:
            await self._storage.write_new(self._path(layout.rewind_name(rewind.number)), _encode(rewind))
        except ObjectExistsError:
            raise RewindError(self._job_id, "another rewind was begun at the same time; look at it first") from None
        return await self._finish(rewind)

    async def _read_all(self) -> tuple[Rewind, ...]:
        found: dict[int, Rewind] = {}
        async for info in self._storage.list(self._path(layout.REWINDS)):
            number = layout.number_of_rewind(info.path[len(self._directory) + 1 :])
            if number is not None:
                try:
                    found[number] = Rewind.from_json(json.loads(await self._storage.read(info.path)))
                except (ValueError, OverflowError, RecursionError) as error:
                    raise DamagedRecordError("rewind", f"{info.path} is not JSON") from error
                except DamagedRecordError as error:
                    raise DamagedRecordError("rewind", f"{info.path}: {error.problem}") from error
        return tuple(rewind for _, rewind in sorted(found.items()))

    async def _finish(self, rewind: Rewind) -> Rewind:
        if rewind.is_finished:
            return rewind
        # The newest first: whatever is left in its place meanwhile is a checkpoint that the job had.
        for step in reversed(rewind.set_aside):
            manifest = self._path(layout.manifest_name(step))
            try:
                data = await self._storage.read(manifest)
            except ObjectNotFoundError:
                continue  # it was done before the interruption
            await self._storage.write(self._path(layout.rewound_name(step, rewind.number)), data)
            await self._storage.delete(manifest)
        rewind = replace(rewind, is_finished=True)
        await self._storage.write(self._path(layout.rewind_name(rewind.number)), _encode(rewind))
        return rewind

    @property
    def _job_id(self) -> str:
        return self._directory.partition("/")[0]

    def _path(self, name: str) -> str:
        return f"{self._directory}/{name}"


def _encode(rewind: Rewind) -> bytes:
    return json.dumps(rewind.to_json()).encode()


def _nearest(step: int, steps: Sequence[int], storage: Storage) -> str:
    """Say which checkpoints are nearest to one that is not there."""
    before = [str(each) for each in steps if each < step][-1:]
    after = [str(each) for each in steps if each > step][:1]
    if not steps:
        return f"{storage!r} has no committed checkpoint of it; is --checkpoints right?"
    return f"there is no committed checkpoint of step {step}; the nearest are {' and '.join([*before, *after])}"
