"""ObjectRef: one object of an object store, and how to move its bytes."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from obstore.store import ObjectStore


@dataclass(frozen=True, slots=True)
class ObjectRef:
    """Where an object is (``key`` in the bucket), what errors call it (``path``), and its part size."""

    store: ObjectStore
    key: str
    path: str
    backend: str
    part_bytes: int
    concurrency: int

    @property
    def range_bytes(self) -> int:
        """How much one request of a parallel read asks for; reads gain from fewer and longer requests."""
        return 2 * self.part_bytes
