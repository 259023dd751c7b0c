"""What a worker does with manifests when it is asked to: writes one and confirms it, or says that nobody can."""

from __future__ import annotations

from typing import TYPE_CHECKING

from strata.cluster import commands as c
from tests.simulation.store import Manifest, Store, StoreError, TakenError

AGAIN_S = 1.0

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
        _insist(world, worker, give_up)
        return
    world.invariants.manifest_written(written)
    path = _path(written.step)
    what = {"step": written.step, "epoch": written.epoch, "generation": written.generation}
    confirm = c.ConfirmCommit(**who, **what, manifest=path, cursors=written.cursors)
    _insist(world, worker, confirm)


def _insist(world: World, worker: Worker, command: c.JobCommand) -> None:
    """Say something until it is answered, or the worker dies."""
    answers: list[object] = []

    def say_again() -> None:
        if not answers:
            world.say(worker, command, answers.append)
            world.later(AGAIN_S, worker, say_again)

    say_again()


def list_storage(store: Store) -> c.AdoptCheckpoints:
    """Return what storage holds now, for a coordinator that may not know it."""
    manifests = sorted(store.manifests.items())
    return c.AdoptCheckpoints(checkpoints=tuple((step, m.epoch, _path(step), m.cursors) for step, m in manifests))


def _path(step: int) -> str:
    return f"step_{step}/metadata.json"
