"""What a worker does with manifests when it is asked to: writes one and confirms it, or says that nobody can."""

from __future__ import annotations

from typing import TYPE_CHECKING

from strata.cluster import commands as c
from tests.simulation.store import Manifest, Store, StoreError, TakenError

if TYPE_CHECKING:
    from strata.cluster.events import ManifestWanted
    from tests.simulation.worker import Worker
    from tests.simulation.world import World


def write_manifest(world: World, worker: Worker, wanted: ManifestWanted) -> None:
    """Write a manifest, outside of the worker's training; what goes wrong is left to the next one that is asked."""
    parts = tuple(part for part, _, _ in wanted.parts)
    manifest = Manifest(wanted.step, wanted.epoch, wanted.generation, parts, wanted.cursors)
    who = {"worker_id": worker.worker_id, "incarnation": worker.incarnation}
    try:
        written = world.store.write_manifest(manifest)
    except StoreError:
        return
    except TakenError:
        world.tally["given up"] += 1
        reason = "the step has another manifest"
        give_up = c.GiveUpCheckpoint(**who, step=wanted.step, generation=wanted.generation, reason=reason)
        world.say(worker, give_up, lambda _: None)
        return
    world.invariants.manifest_written(written)
    path = _path(written.step)
    confirm = c.ConfirmCommit(**who, step=written.step, epoch=written.epoch, manifest=path, cursors=written.cursors)
    world.say(worker, confirm, lambda _: None)


def list_storage(store: Store) -> c.AdoptCheckpoints:
    """Return what storage holds now, for a coordinator that may not know it."""
    manifests = sorted(store.manifests.items())
    return c.AdoptCheckpoints(checkpoints=tuple((step, m.epoch, _path(step), m.cursors) for step, m in manifests))


def _path(step: int) -> str:
    return f"step_{step}/metadata.json"
