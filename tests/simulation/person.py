"""Someone who looks after the storage: deletes what was rejected, and brings the last checkpoint back from a copy."""

from __future__ import annotations

from typing import TYPE_CHECKING

from strata.cluster import commands as c

if TYPE_CHECKING:
    from tests.simulation.store import Manifest
    from tests.simulation.world import World

AGAIN_S = 1.0
# No message is under way for longer than 3 s. A person is slower: what was said of a step before it was rejected has
# arrived before the step is deleted.
LEAST_DELAY_S = 3.5
MOST_DELAY_S = 8.0


class Person:
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
        world = self._world
        if world.cluster is not None:
            if step not in world.cluster.job("default").commits.rejected:
                return
            if world.store.manifests.get(step) is manifest:
                world.store.manifests.pop(step, None)
            if step in world.store.manifests:
                return  # it was saved again already: nothing is to be forgotten any more
            world.note(f"step {step} is deleted")
            world.process(c.ForgetCheckpoints(steps=(step,)), lambda _: None)
        # The coordinator may be away, or crash before this is durable.
        world.at(AGAIN_S, lambda: self._delete(step, manifest))

    def _delay_s(self) -> float:
        return self._world.rng.uniform(LEAST_DELAY_S, MOST_DELAY_S)
