"""A draft: one save before it has bytes. What can be wrong with it is found here, before anything is done."""

from __future__ import annotations

import json
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from strata.checkpoint.format import kinds
from strata.checkpoint.format.digest import digest_bytes, digest_without
from strata.checkpoint.format.layout import PartLayout, Planner
from strata.checkpoint.format.manifest import CopyRecord, Manifest, PartRecord, StoredSlice, StoredTensor
from strata.checkpoint.format.manifest_reader import check_object
from strata.checkpoint.format.random_state import find_random_states, with_random_state
from strata.checkpoint.format.tensors import RefusedError
from strata.checkpoint.format.tree import Leaf, Node, flatten
from strata.checkpoint.save.backup import Backup
from strata.checkpoint.save.lazy import Seal
from strata.checkpoint.save.metadata import plain_metadata
from strata.checkpoint.save.pieces import Pieces, cut_pieces, describe_replicas, digest_live, spread_replicas
from strata.checkpoint.save.staging import THREADS

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from strata.checkpoint.save.lazy import Managed
    from strata.checkpoint.save.staging import StagedImage, StagingPool


@dataclass(frozen=True, slots=True, kw_only=True)
class Draft:
    """What is to be saved, and as what."""

    job_id: str
    step: int
    epoch: int
    metadata: dict[str, Any]
    cursors: dict[str, Any]
    part: int
    parts: int
    generation: int
    token: str = ""
    """Makes the names of this attempt its own; the coordinator is told of it, and nobody looks for it by name."""
    opaque: bytes | bytearray | memoryview | None = None
    structure: Node = None
    pieces: Pieces | None = None
    plan: PartLayout | None = None
    left_out: tuple[str, ...] = ()
    """What of the metadata cannot be kept, and why."""
    backup: Backup | None = None
    """Keeps blocks that others write, until the commit."""

    @property
    def size_bytes(self) -> int:
        """How large the part will be."""
        if self.plan is not None:
            return self.plan.size_bytes
        return memoryview(self.opaque or b"").nbytes

    def lend(self, pool: StagingPool) -> StagedImage:
        """Get memory for the state; :meth:`fill` must follow, for whoever waits for it."""
        return pool.lend_bytes(self.opaque or b"") if self.plan is None else pool.lend(self.plan.size_bytes)

    def fill(self, pool: StagingPool, image: StagedImage) -> None:
        """Copy the state; when this returns, it may change. A failure is told to who waits, and raised."""
        try:
            if self.pieces is None or self.plan is None:
                pool.fill_bytes(image, self.opaque or b"")
            else:
                if self.parts > 1:
                    image.digests = digest_live(self.pieces.copies, self.step)
                pool.fill_state(image, self.plan, self.pieces.entries)
                self._fill_backup(pool, self.pieces.backups)
        except BaseException as error:
            image.publish(0, ended=True, failure=error)
            raise

    def begin_fill(self, pool: StagingPool, image: StagedImage, managed: Managed) -> Callable[[], None]:
        """Copy what may change at any moment, and return what copies the rest, which must not change until then.

        A failure of either is told to who waits for the image, and raised.
        """
        assert self.pieces is not None and self.plan is not None
        plan, pieces = self.plan, self.pieces
        later = {name: leaf for name, leaf in pieces.entries.items() if managed.holds(leaf.tensor)}
        is_compared = self.parts > 1
        try:
            later_backups = {name: leaf for name, leaf in pieces.backups.items() if managed.holds(leaf.tensor)}
            seal, backup_seal = Seal(self.step, later), Seal(self.step, later_backups)
            now = {name: leaf for name, leaf in pieces.entries.items() if name not in later}
            if is_compared:
                image.digests = digest_live(pieces.copies, self.step, lambda tensor: not managed.holds(tensor))
            pool.copy_tensors(image, plan, now, in_order=False)
            now_backups = {name: leaf for name, leaf in pieces.backups.items() if name not in later_backups}
            self._fill_backup(pool, now_backups)
        except BaseException as error:
            image.publish(0, ended=True, failure=error)
            raise

        def finish() -> None:
            try:
                if is_compared:
                    image.digests |= digest_live(pieces.copies, self.step, managed.holds)
                # One thread: the others are training's.
                pool.copy_tensors(image, plan, later, in_order=False, threads=1)
                self._fill_backup(pool, later_backups, threads=1)
                seal.check(image, plan)
                if self.backup is not None and self.backup.image is not None:
                    backup_seal.check(self.backup.image, self.backup.plan)
            except BaseException as error:
                image.publish(0, ended=True, failure=error)
                raise
            image.publish(image.size_bytes, ended=True)

        return finish

    def _fill_backup(self, pool: StagingPool, leaves: Mapping[str, Leaf], *, threads: int = THREADS) -> None:
        if self.backup is not None:
            self.backup.fill(pool, leaves, threads=threads)

    def describe_replicas(self, records: Sequence[CopyRecord]) -> str:
        """Return the digests by which the coordinator sees whether replicas differ, if they could be repaired."""
        if self.pieces is None or self.backup is None:
            return ""
        return describe_replicas(self.pieces.copies, records)

    def digest_copies(self, image: StagedImage) -> tuple[CopyRecord, ...]:
        """The digests of what other workers may hold too; most of it is read from staging, where nobody waits."""
        if self.pieces is None or self.plan is None or self.parts == 1:
            return ()
        places = {place.name: place for place in self.plan.places}
        found = []
        for number, copy in enumerate(self.pieces.copies):
            digest = image.digests.get(number)
            if copy.entry is not None:
                place = places[copy.entry]
                digest = digest_bytes(image.view[place.offset : place.offset + place.nbytes])
            if digest is not None:
                found.append(CopyRecord(copy.name, copy.start, copy.tensor.shape, digest))
        return tuple(found)

    def digest_state(self, image: StagedImage, chunks: Sequence[bytes]) -> bytes | None:
        """The digest of the part without its random state, if it has one."""
        names = set(find_random_states(self.structure).values())
        if not names or self.pieces is None or self.plan is None:
            return None
        for place in self.plan.places:
            if self.pieces.whole[place.name] in names:
                return digest_without(image.view, chunks, slice(place.offset, place.offset + place.nbytes))
        return None

    def without_values(self) -> Draft:
        """The same without the state, which from now on is the caller's alone: nothing here keeps it alive."""
        if self.pieces is None:
            return replace(self, opaque=None)
        return replace(self, pieces=self.pieces.without_values())

    def manifest(self, record: PartRecord, *, created_s: float, parent: int | None, deltas: int) -> Manifest:
        """What there is to say about this part now that its bytes are durable."""
        tensors: dict[str, StoredTensor] = {}
        structure: Any = {"opaque": True}
        if self.pieces is not None and self.plan is not None:
            structure = self.structure
            slices: dict[str, list[StoredSlice]] = {name: [] for name in self.pieces.tensors}
            offsets = {place.name: place.offset for place in self.plan.places}
            for entry, leaf in self.pieces.entries.items():
                stored = StoredSlice(0, offsets[entry], leaf.start, leaf.tensor.shape)
                slices[self.pieces.whole[entry]].append(stored)
            for name, (dtype, shape) in self.pieces.tensors.items():
                tensors[name] = StoredTensor(dtype, shape, tuple(slices[name]))
        return Manifest(
            job_id=self.job_id,
            step=self.step,
            epoch=self.epoch,
            created_s=created_s,
            parts=(record,),
            tensors=tensors,
            structure=structure,
            generation=self.generation,
            parent=parent,
            deltas=deltas,
            cursors=self.cursors,
            metadata=self.metadata,
        )


def make_draft(
    data: Any,
    planner: Planner,
    *,
    job_id: str,
    step: int,
    epoch: int,
    metadata: Mapping[str, Any] | None,
    cursors: dict[str, Any] | None,
    part: int,
    parts: int,
    generation: int,
    token: str = "",
    replicated: Sequence[str] = (),
    random_state: bytes | None = None,
    backup_planner: Planner | None = None,
) -> Draft:
    """Check the arguments and take the state apart; raise ValueError or UnsavableStateError.

    With a ``backup_planner``, blocks that others write are kept until the commit.
    """
    for name, value in (("step", step), ("epoch", epoch), ("part", part), ("generation", generation)):
        if type(value) is not int or not 0 <= value <= kinds.MAX_COUNT:
            # A value of another type may be the whole state, with the arguments in the wrong order.
            found = (
                f"{name}={value}" if type(value) in (int, float, bool) else f"{name} is of type {type(value).__name__}"
            )
            raise ValueError(f"{found}; use a whole number of 0 or more, below 2**63")
    if type(parts) is not int or not part < parts <= 99_999:
        raise ValueError(f"part={part} must be below parts={parts!r}, which is at most 99999")
    # Bytes of another class, and memory with gaps, are refused as they are inside of a tree.
    is_view = type(data) is memoryview and data.c_contiguous
    opaque = data if is_view or type(data) in (bytes, bytearray) else None
    if opaque is not None and parts > 1:
        raise ValueError("bytes are saved by one writer; put each worker's into a dict under a key of its own")
    flat = flatten(with_random_state(data, random_state, part=part)) if opaque is None else None
    pieces = None
    if flat is not None:
        spread = spread_replicas(flat, replicated, part=part, parts=parts)
        pieces = cut_pieces(spread, is_alone=parts == 1, keeps_backups=backup_planner is not None)
    backup = None
    if pieces is not None and backup_planner is not None:
        backup = Backup(backup_planner.plan(pieces.backups), pieces.backups, pieces.backup_of)
    kept, left_out = plain_metadata(metadata)
    return Draft(
        job_id=job_id,
        step=step,
        epoch=epoch,
        metadata=kept,
        cursors=_strict_json("cursors", cursors),
        part=part,
        parts=parts,
        generation=generation,
        token=token,
        opaque=opaque,
        structure=flat.structure if flat is not None else None,
        pieces=pieces,
        plan=planner.plan(pieces.entries) if pieces is not None else None,
        left_out=tuple(left_out),
        backup=backup,
    )


def _strict_json(name: str, value: dict[str, Any] | None) -> dict[str, Any]:
    """Return a copy as it will come back, so that what changes later is not what is saved."""
    if value is None:
        return {}
    if not isinstance(value, dict):
        raise ValueError(f"{name} must be a dict, not {type(value).__name__}")  # noqa: TRY004 - as for other arguments
    try:
        text = json.dumps(value, allow_nan=False, ensure_ascii=False)
        kinds.check_text(text)
        copied = check_object(json.loads(text))
    except (TypeError, ValueError, RecursionError, RefusedError) as error:
        raise ValueError(f"{name} must be JSON: {error}") from error
    return copied
