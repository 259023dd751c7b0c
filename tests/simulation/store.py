"""The simulated storage: parts and manifests, put-if-absent, and a will of its own."""

from __future__ import annotations

from dataclasses import dataclass
from random import Random


class StoreError(Exception):
    """The store did not do it."""


@dataclass(frozen=True)
class Part:
    """What one worker wrote for one step: the samples that its model has seen since the checkpoint it restored."""

    base_step: int | None
    samples: tuple[int, ...]


@dataclass(frozen=True)
class Manifest:
    """A committed checkpoint as storage holds it."""

    step: int
    epoch: int
    parts: tuple[str, ...]
    cursors: str


class Store:
    """Objects that stay once they are written; a write may fail while ``failure_rate`` is above 0."""

    def __init__(self, rng: Random) -> None:
        self._rng = rng
        self.failure_rate = 0.0
        self.parts: dict[str, Part] = {}
        self.manifests: dict[int, Manifest] = {}

    def write_part(self, path: str, part: Part) -> None:
        """Write a part."""
        self._may_fail()
        self.parts[path] = part

    def write_manifest(self, manifest: Manifest) -> Manifest:
        """Write a manifest if there is none of that step; return the one that is there then."""
        self._may_fail()
        return self.manifests.setdefault(manifest.step, manifest)

    def model(self, step: int | None) -> list[int]:
        """Return the samples that the model of a checkpoint has seen, in no order, with repetitions."""
        if step is None:
            return []
        parts = [self.parts[path] for path in self.manifests[step].parts]
        (base_step,) = {part.base_step for part in parts}
        return self.model(base_step) + [sample for part in parts for sample in part.samples]

    def _may_fail(self) -> None:
        if self._rng.random() < self.failure_rate:
            raise StoreError("the store is unavailable")
