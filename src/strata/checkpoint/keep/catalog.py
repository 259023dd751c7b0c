"""The catalog: which checkpoints a job has, read from storage and from nowhere else."""

from __future__ import annotations

import asyncio
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

from strata.checkpoint.format import layout
from strata.checkpoint.format.manifest import VERSION, Manifest
from strata.checkpoint.format.manifest_reader import ManifestProblem, ManifestVersionProblem, decode
from strata.checkpoint.keep.read_lease import hold_lease
from strata.checkpoint.keep.retention import Facts
from strata.checkpoint.save.handle import CheckpointInfo
from strata.errors import (
    CheckpointError,
    CheckpointNotFoundError,
    DamagedCheckpointError,
    ObjectNotFoundError,
    StorageError,
    UnknownFormatError,
)
from strata.storage.blocking import is_of_one_object

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Collection

    from strata.checkpoint.format.manifest import Format
    from strata.storage import ObjectInfo, Storage

READERS = 8
# How often a listing is made again that shows nothing, or what is gone when it is read.
LOOKS = 5


@dataclass(frozen=True, slots=True)
class Entry:
    """One committed checkpoint: what a listing shows, and what retention needs."""

    info: CheckpointInfo
    facts: Facts


@dataclass(slots=True)
class Scan:
    """Everything below the directory at one moment. ``unreadable`` says why a manifest could not be read."""

    entries: dict[int, Entry] = field(default_factory=dict)
    unreadable: dict[int, CheckpointError] = field(default_factory=dict)
    objects: list[ObjectInfo] = field(default_factory=list)
    rewound: list[Entry] = field(default_factory=list)
    """What rewinds set aside: it is kept, and no restart takes it."""


class Catalog:
    """Finds and reads manifests. What it knows of one is kept as long as the store says that it is the same."""

    def __init__(self, storage: Storage, directory: str) -> None:
        self._storage = storage
        self._directory = directory
        self._known: dict[ObjectInfo, Entry] = {}
        self._written: dict[tuple[str, int], Entry] = {}
        self.listed: frozenset[int] = frozenset()
        """The steps whose manifests the last scan found."""

    def remember(self, manifest: Manifest, size_bytes: int) -> None:
        """Know a manifest that was just written, so that it need not be read: large ones take a while."""
        self._written[layout.manifest_name(manifest.step), size_bytes] = self.describe(manifest)

    async def list_objects(self, step: int | None = None) -> list[ObjectInfo]:
        """Every object of the job's checkpoints, or of one; their paths are relative to the directory."""
        prefix = self._directory if step is None else f"{self._directory}/{layout.step_directory(step)}"
        cut = len(self._directory) + 1
        return [
            type(info)(info.path[cut:], info.size_bytes, info.modified_s, info.etag)
            async for info in self._storage.list(prefix)
        ]

    async def steps(self) -> list[int]:
        """The committed steps, oldest first; their manifests are not looked into."""
        for _ in range(LOOKS):
            found = {layout.step_of(info.path) for info in await self.list_objects() if layout.is_manifest(info.path)}
            steps = sorted({step for step in found if step is not None} | (await self._find_links()).keys())
            if steps:
                return steps
            # A listing that saw one checkpoint go may have missed that a newer one came.
        return []

    async def _find_links(self) -> dict[int, str]:
        """The steps that are there behind a symbolic link, which no listing has, and the links."""
        if (files := self._storage.local_files) is None:
            return {}
        links = [name[len(self._directory) + 1 :] for name in await files.find_links(self._directory)]
        return {step: name for name in links if (step := layout.step_of_link(name)) is not None}

    async def scan(self) -> Scan:
        """List everything and read the manifests that are new since the last time.

        It is done again if a manifest was deleted between the two: the newest may have come in the meantime.
        """
        for _ in range(LOOKS):
            scan, is_whole = await self._scan_once()
            if is_whole and (scan.entries or scan.unreadable):
                break
        return scan

    async def _scan_once(self) -> tuple[Scan, bool]:
        """Return what a listing shows, and whether every manifest in it could still be read."""
        scan = Scan(objects=await self.list_objects())
        lost: list[int] = []
        paths = {info.path for info in scan.objects}
        manifests = [info for info in scan.objects if layout.is_manifest(info.path)]
        rewound = [info for info in scan.objects if layout.is_rewound(info.path)]
        self.listed = frozenset(step for info in manifests if (step := layout.step_of(info.path)) is not None)
        self._known = {info: self._known[info] for info in (*manifests, *rewound) if info in self._known}
        for info in manifests:
            if (info.path, info.size_bytes) in self._written:
                self._known[info] = self._written[info.path, info.size_bytes]
        self._written.clear()
        gate = asyncio.Semaphore(READERS)

        async def learn(info: ObjectInfo) -> None:
            step = layout.step_of(info.path)
            assert step is not None
            async with gate:
                try:
                    if info not in self._known:
                        self._known[info] = self.describe(await self.read(step, info.path))
                except CheckpointNotFoundError:
                    lost.append(step)  # deleted since it was listed
                    return
                except (DamagedCheckpointError, UnknownFormatError) as error:
                    scan.unreadable[step] = error
                    return
            if layout.is_rewound(info.path):
                scan.rewound.append(_as_rewound(self._known[info], info.path))
            else:
                scan.entries[step] = _with_pin(self._known[info], pinned=layout.pin_name(step) in paths)

        async with asyncio.TaskGroup() as group:
            for info in (*manifests, *rewound):
                group.create_task(learn(info))
        for step, name in (await self._find_links()).items():
            scan.unreadable[step] = DamagedCheckpointError(step, "it is a symbolic link", part=name)
        scan.entries = dict(sorted(scan.entries.items()))
        scan.rewound.sort(key=lambda entry: (entry.info.step, entry.info.created_s))
        return scan, not lost

    @asynccontextmanager
    async def reading(self, step: int) -> AsyncIterator[Manifest]:
        """Lend the manifest of a step, which no other process prunes while the block runs.

        The bytes of a checkpoint that was deleted all the same, or replaced, are not damage: that is a
        CheckpointNotFoundError with the steps that there are. So damage is believed if the manifest is still there.
        """
        async with AsyncExitStack() as stack:
            # Before the manifest is read: whoever deletes it looks for leases afterwards.
            if await self._has_manifest(step):
                await stack.enter_async_context(hold_lease(self._storage, self._directory, step))
            manifest: Manifest | None = None
            try:
                manifest = await self.read(step)
                yield manifest
            except DamagedCheckpointError as error:
                await self._check_unchanged(step, manifest, error)
                raise

    async def _has_manifest(self, step: int) -> bool:
        try:
            return await self._storage.exists(f"{self._directory}/{layout.manifest_name(step)}")
        except StorageError as error:
            if is_of_one_object(error):
                return False  # to read it says what is wrong with it
            raise

    async def _check_unchanged(self, step: int, manifest: Manifest | None, error: DamagedCheckpointError) -> None:
        known: Collection[int]
        try:
            if (found := await self.read(step)) == manifest:
                return
        except CheckpointNotFoundError as gone:
            known = gone.known
        except (DamagedCheckpointError, UnknownFormatError):
            return
        else:
            known = [found.step]
        raise CheckpointNotFoundError(step, path=self._directory, known=known, is_deleted=True) from error

    async def read(self, step: int, name: str | None = None) -> Manifest:
        """Return the manifest of a step; one that cannot be believed is a DamagedCheckpointError.

        ``name`` is that of a manifest which was set aside.
        """
        name = name or layout.manifest_name(step)
        try:
            data = await self._storage.read(f"{self._directory}/{name}")
        except ObjectNotFoundError:
            raise CheckpointNotFoundError(step, path=self._directory, known=await self.steps()) from None
        except StorageError as error:
            if is_of_one_object(error):
                raise DamagedCheckpointError(step, error.problem, part=name) from error
            raise
        manifest = await self._decode(data, step, name, "strata-checkpoint")
        if manifest.step != step:
            raise DamagedCheckpointError(step, f"it is the manifest of step {manifest.step}", part=name)
        return manifest

    async def read_report(self, step: int, name: str) -> Manifest:
        """Return what a worker said about its part."""
        data = await self._storage.read(f"{self._directory}/{name}")
        return await self._decode(data, step, name, "strata-part")

    def describe(self, manifest: Manifest) -> Entry:
        """What a listing and retention need to know of a manifest."""
        info = CheckpointInfo(
            job_id=manifest.job_id,
            step=manifest.step,
            epoch=manifest.epoch,
            created_s=manifest.created_s,
            size_bytes=manifest.size_bytes,
            path=f"{self._directory}/{layout.step_directory(manifest.step)}",
            parts=len(manifest.parts),
            generation=manifest.generation,
            parent=manifest.parent,
            metadata=manifest.metadata,
            cursors=manifest.cursors,
            diverged=manifest.diverged,
            rewinds=manifest.rewinds,
        )
        facts = Facts(
            manifest.step,
            manifest.created_s,
            metadata=manifest.metadata,
            objects=frozenset(manifest.objects()),
            size_bytes=manifest.size_bytes,
            suspect=manifest.is_suspect,
        )
        return Entry(info, facts)

    async def _decode(self, data: bytes, step: int, name: str, kind: Format) -> Manifest:
        try:
            return await asyncio.to_thread(decode, data, kind)
        except ManifestVersionProblem as error:
            raise UnknownFormatError(step, found=str(error), known=f"versions 1 to {VERSION}") from None
        except ManifestProblem as error:
            raise DamagedCheckpointError(step, str(error), part=name) from None


def _with_pin(entry: Entry, *, pinned: bool) -> Entry:
    if not pinned:
        return entry
    return Entry(replace(entry.info, pinned=True), replace(entry.facts, pinned=True))


def _as_rewound(entry: Entry, name: str) -> Entry:
    """Return the entry of a checkpoint that was set aside: its commit record is one of the objects that it needs."""
    facts = replace(entry.facts, objects=entry.facts.objects | {name})
    return Entry(replace(entry.info, rewound=layout.number_of_rewound(name)), facts)
