"""A draft: one save before it has bytes. What can be wrong with it is found here, before anything is done."""

from __future__ import annotations

import json
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from strata.checkpoint.layout import PartLayout, Planner
from strata.checkpoint.manifest import Manifest, PartRecord, StoredSlice, StoredTensor
from strata.checkpoint.tree import FlatState, flatten

if TYPE_CHECKING:
    from strata.checkpoint.staging import StagedImage, StagingPool


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
    flat: FlatState | None = None
    plan: PartLayout | None = None

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
            if self.flat is None or self.plan is None:
                pool.fill_bytes(image, self.opaque or b"")
            else:
                pool.fill_state(image, self.plan, self.flat.leaves)
        except BaseException as error:
            image.publish(0, ended=True, failure=error)
            raise

    def without_values(self) -> Draft:
        """The same without the state, which from now on is the caller's alone: nothing here keeps it alive."""
        if self.flat is None:
            return replace(self, opaque=None)
        leaves = {
            name: replace(leaf, tensor=replace(leaf.tensor, source=None)) for name, leaf in self.flat.leaves.items()
        }
        return replace(self, flat=FlatState(self.flat.structure, leaves))

    def manifest(self, record: PartRecord, *, created_s: float, parent: int | None, deltas: int) -> Manifest:
        """What there is to say about this part now that its bytes are durable."""
        tensors: dict[str, StoredTensor] = {}
        structure: Any = {"opaque": True}
        if self.flat is not None and self.plan is not None:
            structure = self.flat.structure
            offsets = {place.name: place.offset for place in self.plan.places}
            for name, leaf in self.flat.leaves.items():
                stored = StoredSlice(0, offsets[name], leaf.start, leaf.tensor.shape)
                tensors[name] = StoredTensor(leaf.tensor.dtype, leaf.shape, (stored,))
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
    metadata: dict[str, Any] | None,
    cursors: dict[str, Any] | None,
    part: int,
    parts: int,
    generation: int,
    token: str = "",
) -> Draft:
    """Check the arguments and take the state apart; raise ValueError or UnsavableStateError."""
    for name, value in (("step", step), ("epoch", epoch), ("part", part), ("generation", generation)):
        if type(value) is not int or value < 0:
            raise ValueError(f"{name}={value!r} must be a whole number of 0 or more")
    if type(parts) is not int or not part < parts <= 99_999:
        raise ValueError(f"part={part} must be below parts={parts!r}, which is at most 99999")
    opaque = data if isinstance(data, bytes | bytearray | memoryview) else None
    if opaque is not None and parts > 1:
        raise ValueError("bytes are saved by one writer; put each worker's into a dict under a key of its own")
    flat = flatten(data) if opaque is None else None
    return Draft(
        job_id=job_id,
        step=step,
        epoch=epoch,
        metadata=_json("metadata", metadata),
        cursors=_json("cursors", cursors),
        part=part,
        parts=parts,
        generation=generation,
        token=token,
        opaque=opaque,
        flat=flat,
        plan=planner.plan(flat.leaves) if flat is not None else None,
    )


def _json(name: str, value: dict[str, Any] | None) -> dict[str, Any]:
    """Return a copy as it will come back, so that what changes later is not what is saved."""
    if value is None:
        return {}
    if not isinstance(value, dict):
        raise ValueError(f"{name} must be a dict, not {type(value).__name__}")  # noqa: TRY004 - as for other arguments
    try:
        copied: dict[str, Any] = json.loads(json.dumps(value, allow_nan=False))
    except (TypeError, ValueError, RecursionError) as error:
        raise ValueError(f"{name} must be JSON: {error}; put tensors and NaN into the state itself") from error
    return copied
