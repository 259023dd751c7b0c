"""The simulated storage: parts and manifests, put-if-absent, and a will of its own."""

from __future__ import annotations

from dataclasses import dataclass
from random import Random


class StoreError(Exception):
    """The store did not do it."""


class TakenError(Exception):
    """The manifest cannot be written, whoever tries: the step has another one, or its reports are gone."""


@dataclass(eq=False)
class Manifest:
    """A committed checkpoint as storage holds it; one that is rotten says what it is, but cannot be restored."""

    step: int
    epoch: int
    generation: int
    parts: tuple[str, ...]
    cursors: str
    is_rotten: bool = False
    has_rotted: bool = False


@dataclass(frozen=True)
class Part:
    """What one worker wrote for one step: the samples that its model has seen since the checkpoint it restored."""

    base: Manifest | None
    samples: tuple[int, ...]


class Store:
    """Objects that stay once they are written; a write may fail while ``failure_rate`` is above 0."""

    def __init__(self, rng: Random) -> None:
        self._rng = rng
        self.failure_rate = 0.0
        self.parts: dict[str, Part] = {}
        # The step and the generation of each part with repaired blocks.
        self.repairs: dict[str, tuple[int, int]] = {}
        self.manifests: dict[int, Manifest] = {}
        self.lost: dict[int, Manifest] = {}
        # Also of the steps that were deleted: their reports were cleaned up when they were committed.
        self.written: dict[tuple[int, int], Manifest] = {}

    def write_part(self, path: str, part: Part) -> None:
        """Write a part."""
        self._may_fail()
        self.parts[path] = part

    def write_manifest(self, manifest: Manifest) -> Manifest:
        """Write a manifest if there is none of that step; return the one that is there then, if it has these parts."""
        self._may_fail()
        there = self.manifests.get(manifest.step)
        if there is None and (manifest.step, manifest.generation) not in self.written:
            there = self.manifests[manifest.step] = self.written[manifest.step, manifest.generation] = manifest
            self.lost.pop(manifest.step, None)
        if there is None or there.parts != manifest.parts:
            raise TakenError
        return there

    def rot(self, choice: float, *, is_lost: bool) -> Manifest | None:
        """Make a checkpoint unreadable or lose it, most often the newest, and seldom the only one that can be read."""
        steps = sorted(step for step, manifest in self.manifests.items() if not manifest.is_rotten)
        if not steps or (len(steps) == 1 and choice > 0.3):
            return None
        manifest = self.manifests[steps[-1] if choice < 0.7 else steps[int((choice - 0.7) / 0.3 * len(steps))]]
        manifest.is_rotten = manifest.has_rotted = True
        if is_lost:
            self.lost[manifest.step] = self.manifests.pop(manifest.step)
        return manifest

    def find(self, step: int) -> Manifest | None:
        """Return the manifest of a step, also if it is lost; then the step is free to be saved again."""
        return self.manifests.get(step, self.lost.get(step))

    def bring_back(self, manifest: Manifest) -> None:
        """Make a checkpoint readable again, from a copy."""
        manifest.is_rotten = False
        if self.lost.get(manifest.step) is manifest:
            del self.lost[manifest.step]
            self.manifests.setdefault(manifest.step, manifest)

    def model(self, manifest: Manifest | None) -> list[int]:
        """Return the samples that the model of a checkpoint has seen, in no order, with repetitions."""
        if manifest is None:
            return []
        parts = [self.parts[path] for path in manifest.parts]
        (base,) = {part.base for part in parts}
        return self.model(base) + [sample for part in parts for sample in part.samples]

    def _may_fail(self) -> None:
        if self._rng.random() < self.failure_rate:
            raise StoreError("the store is unavailable")
