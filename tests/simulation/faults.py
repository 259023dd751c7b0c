"""What goes wrong in a world, when, and for whom."""

from __future__ import annotations

from dataclasses import dataclass
from random import Random
from typing import TYPE_CHECKING

from strata.cluster import commands as c

if TYPE_CHECKING:
    from tests.simulation.world import World

FAULTS_UNTIL_S = 40.0
MAX_WORKERS = 6
# A checkpoint is worth damaging when there is another one; that is waited for.
ROT_TRIES = 12
ROT_AGAIN_S = 4.0
# By how long the worker is away that goes with it: a quarter of the checkpoints are lost, the others damaged.
LOST_BELOW_S = 3.5
PLAIN_FAULTS = ("crash", "crash", "pause", "partition", "channel", "coordinator", "store", "join")
FAULTS = (*PLAIN_FAULTS, "rot", "held")


@dataclass(frozen=True)
class Fault:
    """Something that goes wrong at a moment, for a while; ``choice`` says to whom, or how badly."""

    at_s: float
    kind: str
    choice: float
    lasts_s: float


def plan_faults(rng: Random, kinds: tuple[str, ...]) -> list[Fault]:
    """Return the faults of a world, in the order of time."""
    faults = []
    at_s = rng.uniform(0.2, 4.0)
    while at_s < FAULTS_UNTIL_S:
        faults.append(Fault(at_s, rng.choice(kinds), rng.random(), rng.uniform(0.1, 14.0)))
        at_s += rng.choice((0.3, 3.0, 10.0)) * rng.random()
    return faults


def inflict(world: World, fault: Fault) -> None:
    """Let a fault happen; one that finds nobody to happen to passes."""
    candidates = [worker for worker in world.workers.values() if worker.alive and not worker.finished]
    worker = candidates[int(fault.choice * len(candidates))] if candidates else None
    world.note(f"fault: {fault.kind} {worker.worker_id if worker else ''} for {fault.lasts_s:.1f} s")
    world.tally[fault.kind] += 1
    match fault.kind:
        case "coordinator" if world.cluster is not None:
            world.crash_coordinator(fault.lasts_s)
        case "store":
            world.store.failure_rate = fault.choice
        case "rot":
            _rot(world, fault, tries=ROT_TRIES)
        case "join" if len(world.workers) < MAX_WORKERS:
            world.start_worker(f"w{len(world.workers)}")
        case "crash" if worker is not None:
            world.crash_worker(worker, fault.lasts_s)
        case "pause" if worker is not None:
            worker.paused_until_s = world.now_s + fault.lasts_s
        case "held" if worker is not None:
            # Longer than its lease: only the process beside it keeps it in the job.
            worker.held_until_s = world.now_s + world.limits.lease_s + fault.lasts_s
            world.vouch(worker)
        case "partition" if worker is not None:
            worker.unreachable_until_s = world.now_s + fault.lasts_s
        case "channel" if worker is not None:
            lost = c.ChannelLost(worker_id=worker.worker_id, incarnation=worker.incarnation)
            world.process(lost, lambda _: None)


def _rot(world: World, fault: Fault, *, tries: int) -> None:
    """Damage a checkpoint, together with a worker: when it comes back, all have to restore."""
    manifest = world.store.rot(fault.choice, is_lost=fault.lasts_s < LOST_BELOW_S)
    if manifest is None:
        if tries and not all(worker.finished for worker in world.workers.values()):
            world.at(ROT_AGAIN_S, lambda: _rot(world, fault, tries=tries - 1))
        return
    world.note(f"step {manifest.step} {'is lost' if manifest.step in world.store.lost else 'rots'}")
    candidates = [worker for worker in world.workers.values() if worker.alive and not worker.finished]
    if candidates:
        world.crash_worker(candidates[0], fault.lasts_s)
