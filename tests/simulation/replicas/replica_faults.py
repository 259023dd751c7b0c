"""What goes wrong with replicas and their etcd, and when."""

from __future__ import annotations

from random import Random
from typing import TYPE_CHECKING

from tests.simulation.faults import Fault

if TYPE_CHECKING:
    from tests.simulation.replicas.replica import Replica
    from tests.simulation.replicas.replica_world import ReplicaWorld

FAULTS_UNTIL_S = 60.0
FAULTS = (
    "kill_leader",
    "kill",
    "freeze_leader",
    "resign",
    "cut_leader_from_etcd",
    "cut_worker",
    "etcd_away",
    "etcd_elects",
    "etcd_loses",
    "etcd_slow",
    "etcd_full",
    "compact",
)
# A leader that is frozen while others lead must wake among them more often than not.
FROZEN_S = 4.0


def plan_faults(rng: Random) -> list[Fault]:
    """Return the faults of a world, in the order of time."""
    faults = []
    at_s = rng.uniform(2.0, 6.0)
    while at_s < FAULTS_UNTIL_S:
        faults.append(Fault(at_s, rng.choice(FAULTS), rng.random(), rng.uniform(0.2, 6.0)))
        at_s += rng.choice((0.3, 4.0, 10.0)) * rng.random()
    return faults


def inflict(world: ReplicaWorld, fault: Fault) -> None:
    """Let a fault happen; one that finds nobody to happen to passes."""
    leader = world.leader()
    world.note(f"fault: {fault.kind} {leader.name if leader else ''} for {fault.lasts_s:.1f} s")
    world.tally[fault.kind] += 1
    match fault.kind:
        case "kill":
            _kill(world, world.replicas[int(fault.choice * len(world.replicas))], fault.lasts_s)
        case "kill_leader" if leader is not None:
            _kill(world, leader, fault.lasts_s)
        case "resign" if leader is not None:
            leader.end()
            world.at(4.0 + fault.lasts_s, lambda: _start(leader))
        case "freeze_leader" if leader is not None:
            leader.frozen_until_s = world.now_s + FROZEN_S * fault.lasts_s / 2
        case "cut_leader_from_etcd" if leader is not None:
            leader.cut_off_until_s = world.now_s + 2 * fault.lasts_s
        case "cut_worker":
            workers = list(world.workers.values())
            link = workers[int(fault.choice * len(workers))].link
            if link is not None:
                link.is_black_hole = True
        case "compact":
            world.etcd.compact()
        case _:
            _trouble_etcd(world, fault)


def _trouble_etcd(world: ReplicaWorld, fault: Fault) -> None:
    match fault.kind:
        case "etcd_away":
            world.etcd_down_until_s = world.now_s + fault.lasts_s
            # Leases do not end while nobody can end them; afterwards they begin anew.
            world.at(fault.lasts_s, lambda: world.etcd.extend_all(world.now_s))
            world.etcd.hold_leases(world.now_s + fault.lasts_s)
        case "etcd_elects":
            world.etcd.extend_all(world.now_s)
        case "etcd_loses":
            world.loss_rate = fault.choice / 3
            world.at(fault.lasts_s, lambda: setattr(world, "loss_rate", 0.0))
        case "etcd_slow":
            world.etcd_delay_s = 0.2
            world.at(fault.lasts_s, lambda: setattr(world, "etcd_delay_s", 0.0))
        case "etcd_full":
            world.etcd_full_until_s = world.now_s + fault.lasts_s


def _kill(world: ReplicaWorld, replica: Replica, down_s: float) -> None:
    if replica.is_up:
        replica.crash()
        world.at(down_s, lambda: _start(replica))


def _start(replica: Replica) -> None:
    if not replica.is_up:
        replica.start()
