"""Backups: copies in memory of blocks that another worker writes, until their checkpoint is committed or given up."""

from __future__ import annotations

import threading
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

from strata.checkpoint.format.layout import PartLayout, plan_part
from strata.checkpoint.format.tensors import Tensor
from strata.checkpoint.format.tree import Leaf
from strata.checkpoint.save.staging import StagedImage, allocate

if TYPE_CHECKING:
    from strata.checkpoint.format.manifest import StoredSlice
    from strata.checkpoint.save.staging import StagingPool

# The tensor that a block is of, where it begins, and its shape.
Key = tuple[str, tuple[int, ...], tuple[int, ...]]


class Backup:
    """The copies of one save, laid out as a part file. The memory is the pool's until :meth:`release`."""

    def __init__(self, plan: PartLayout, leaves: Mapping[str, Leaf], whole: Mapping[str, str]) -> None:
        self._plan = plan
        self._outlines = {
            (whole[entry], leaf.start, leaf.tensor.shape): Leaf(_outline(leaf.tensor), leaf.shape, leaf.start)
            for entry, leaf in leaves.items()
        }
        self._entries = {(whole[entry], leaf.start, leaf.tensor.shape): entry for entry, leaf in leaves.items()}
        self._image: StagedImage | None = None
        # A save that ends gives the memory back, also while another thread reads it for a repair.
        self._reading = threading.Lock()

    def lend(self, pool: StagingPool) -> None:
        """Get memory for the copies."""
        self._image = pool.lend(self._plan.size_bytes)

    def fill(self, pool: StagingPool, leaves: Mapping[str, Leaf], *, threads: int) -> None:
        """Copy these blocks, which must not change meanwhile."""
        if self._image is not None:
            pool.copy_tensors(self._image, self._plan, leaves, in_order=False, threads=threads)

    @property
    def plan(self) -> PartLayout:
        """Where each copy lies."""
        return self._plan

    @property
    def image(self) -> StagedImage | None:
        """The copies; None before they have memory, and after it was released."""
        return self._image

    def release(self) -> None:
        """Give the memory back; once is enough, and more is harmless."""
        with self._reading:
            image, self._image = self._image, None
        if image is not None:
            image.release()

    def select(self, wanted: Sequence[tuple[str, StoredSlice]]) -> Repair | None:
        """Return a part file with those of the wanted blocks that are here; None if there are none."""
        keys = [(name, stored.start, stored.shape) for name, stored in wanted]
        keys = [key for key in dict.fromkeys(keys) if key in self._outlines]
        if not keys:
            return None
        plan = plan_part({self._entries[key]: self._outlines[key] for key in keys})
        image = StagedImage(memoryview(allocate(plan.size_bytes))[: plan.size_bytes])
        image.view[: len(plan.head)] = plan.head
        places = {place.name: place for place in self._plan.places}
        with self._reading:
            if self._image is None:
                return None
            for place in plan.places:
                copied = self._image.view[places[place.name].offset :][: place.nbytes]
                image.view[place.offset : place.offset + place.nbytes] = copied
        image.publish(plan.size_bytes, ended=True)
        offsets = {place.name: place.offset for place in plan.places}
        return Repair(image, {key: offsets[self._entries[key]] for key in keys})


class Repair:
    """A part file with blocks from a backup, and from which byte of it each lies."""

    def __init__(self, image: StagedImage, offsets: Mapping[Key, int]) -> None:
        self.image = image
        self.offsets = offsets


def _outline(tensor: Tensor) -> Tensor:
    return Tensor(tensor.kind, tensor.dtype, tensor.shape, None)
