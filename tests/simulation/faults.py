"""What goes wrong in a world, when, and for whom."""

from __future__ import annotations

from dataclasses import dataclass
from random import Random
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from tests.simulation.process import Process
    from tests.simulation.world import World

FAULTS_UNTIL_S = 40.0
MAX_WORKERS = 6
# A checkpoint is worth damaging when there is another one; that is waited for.
ROT_TRIES = 12
ROT_AGAIN_S = 4.0
# By how long the worker is away that goes with it: a quarter of the checkpoints are lost, the others damaged.
LOST_BELOW_S = 3.5
FAULTS = (
    "crash",
    "pause",
    "held",
    "partition",
    "half_open",
    "channel",
    "zombie",
    "coordinator",
    "freeze",
    "journal",
    "store",
    "rot",
    "join",
)


@dataclass(frozen=True)
class Fault:
    """Something that goes wrong at a moment, for a while; ``choice`` says to whom, or how badly."""

    at_s: float
    kind: str
    choice: float
    lasts_s: float


def plan_faults(rng: Random) -> list[Fault]:
    """Return the faults of a world, in the order of time."""
    faults = []
    at_s = rng.uniform(0.2, 4.0)
    while at_s < FAULTS_UNTIL_S:
        faults.append(Fault(at_s, rng.choice(FAULTS), rng.random(), rng.uniform(0.1, 14.0)))
        at_s += rng.choice((0.3, 3.0, 10.0)) * rng.random()
    return faults


def inflict(world: World, fault: Fault) -> None:
    """Let a fault happen; one that finds nobody to happen to passes."""
    candidates = [worker for worker in world.workers.values() if worker.alive and not worker.finished]
    worker = candidates[int(fault.choice * len(candidates))] if candidates else None
    world.note(f"fault: {fault.kind} {worker.worker_id if worker else ''} for {fault.lasts_s:.1f} s")
    world.tally[fault.kind] += 1
    if fault.kind in ("coordinator", "freeze", "journal", "store", "rot", "join"):
        _strike_world(world, fault)
    elif worker is not None:
        _strike_worker(world, worker, fault)


def _strike_world(world: World, fault: Fault) -> None:
    match fault.kind:
        case "coordinator" if world.coordinator.is_up:
            world.coordinator.crash(fault.lasts_s)
        case "freeze" if world.coordinator.is_up:
            # Longer than the lease, more often than not; what workers send meanwhile waits in its sockets.
            until_s = world.now_s + 2 * fault.lasts_s
            world.coordinator.frozen_until_s = max(world.coordinator.frozen_until_s, until_s)
        case "journal" if world.coordinator.is_up:
            world.coordinator.refuse_writes(fault.lasts_s / 2)
        case "store":
            world.store.failure_rate = fault.choice
        case "rot":
            _rot(world, fault, tries=ROT_TRIES)
        case "join" if len(world.workers) < MAX_WORKERS:
            world.start_worker(f"w{len(world.workers)}")


def _strike_worker(world: World, worker: Process, fault: Fault) -> None:
    match fault.kind:
        case "crash" if world.machines.can_fail(worker):
            world.crash_worker(worker, fault.lasts_s)
        case "pause":
            worker.paused_until_s = world.now_s + fault.lasts_s
        case "held":
            # Longer than its lease: only the keep-alive process keeps it in the job.
            worker.held_until_s = world.now_s + world.limits.lease_s + fault.lasts_s
            world.keep_alive(worker)
        case "partition":
            worker.unreachable_until_s = world.now_s + fault.lasts_s
        case "half_open" if worker.link is not None:
            # Nothing gets through on this connection any more, and neither side is told; new ones work.
            worker.link.is_black_hole = True
        case "channel" if worker.link is not None:
            worker.link.close()
        case "zombie" if world.machines.can_fail(worker):
            world.replace_worker(worker, 2 * fault.lasts_s)


def _rot(world: World, fault: Fault, *, tries: int) -> None:
    """Damage a checkpoint, together with a worker: when it comes back, all have to restore."""
    manifest = world.store.rot(fault.choice, is_lost=fault.lasts_s < LOST_BELOW_S)
    if manifest is None:
        if tries and not all(worker.finished for worker in world.workers.values()):
            world.at(ROT_AGAIN_S, lambda: _rot(world, fault, tries=tries - 1))
        return
    world.note(f"step {manifest.step} {'is lost' if manifest.step in world.store.lost else 'rots'}")
    candidates = [worker for worker in world.workers.values() if worker.alive and not worker.finished]
    if candidates and world.machines.can_fail(candidates[0]):
        world.crash_worker(candidates[0], fault.lasts_s)
