"""Someone who looks after the storage: deletes what was rejected, and brings the last checkpoint back from a copy."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from tests.simulation.store import Manifest
    from tests.simulation.world import World

LEAST_DELAY_S = 0.5
MOST_DELAY_S = 8.0


class Operator:
    """Does by hand what no program may: a checkpoint that was rejected is somebody's to delete."""

    def __init__(self, world: World) -> None:
        self._world = world

    def bring_back(self, manifest: Manifest) -> None:
        """Mend the only checkpoint, some time later."""

        def mend() -> None:
            self._world.note(f"step {manifest.step} is brought back")
            self._world.store.bring_back(manifest)

        self._world.at(self._delay_s(), mend)

    def hear_of_rejection(self, step: int) -> None:
        """Delete a rejected checkpoint some time later, so that its step can be saved again."""
        manifest = self._world.store.manifests.get(step)
        self._world.at(self._delay_s(), lambda: self._delete(step, manifest))

    def _delete(self, step: int, manifest: Manifest | None) -> None:
        if manifest is not None and self._world.store.manifests.get(step) is manifest:
            self._world.note(f"step {step} is deleted")
            del self._world.store.manifests[step]

    def _delay_s(self) -> float:
        return self._world.rng.uniform(LEAST_DELAY_S, MOST_DELAY_S)
