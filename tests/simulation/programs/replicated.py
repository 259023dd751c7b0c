"""What a worker does in a world of replicas: it meets the others, saves, and adds to a key that all share."""

from __future__ import annotations

from typing import TYPE_CHECKING

from strata.cluster import commands as c
from strata.cluster.events import BarrierReleased
from strata.cluster.replies import KeyValue
from strata.errors import MembershipError, StrataError
from tests.simulation.process import Process, Program, Sleep
from tests.simulation.store import Part
from tests.simulation.violation import ViolationError

if TYPE_CHECKING:
    from tests.simulation.replicas.replica_world import ReplicaWorld

KEY = "shared"
ROUNDS = 12
SAVE_EVERY = 3
STEP_S = 3.0
BARRIER_S = 300.0


def train(world: ReplicaWorld, process: Process) -> Program:
    """Meet the others at every step, save at some, and leave."""
    while process.protocol.rank_info.world_size < world.world_size:
        yield process.heartbeat()
        yield Sleep(0.5)
    generation = process.protocol.generation
    for step in range(1, ROUNDS + 1):
        yield Sleep(world.rng.random() * STEP_S)
        payload = f"{process.worker_id}/{step}".encode()
        met = yield process.meet("step", generation=generation, timeout_s=BARRIER_S, payload=payload)
        if not isinstance(met, BarrierReleased):
            raise ViolationError(f"{process.name} did not meet the others: {met}")
        if step % SAVE_EVERY == 0:
            saved = yield process.begin_save(step, generation, Part(None, ()), insists=True)
            if isinstance(saved, StrataError):
                raise ViolationError(f"step {step} of {process.name} was not committed: {saved}")
            world.tally["commits"] += 1
    # All are here before anyone leaves: who leaves ends the generation.
    yield process.meet("end", generation=generation, timeout_s=BARRIER_S)
    yield process.leave()
    process.finished = True
    process.end()


def write(world: ReplicaWorld, process: Process) -> Program:
    """Read the key and set it, again and again; each answer is written down."""
    calls = 0
    while True:
        yield Sleep(world.rng.random() * STEP_S)
        calls += 1
        name = f"{process.name}/{calls}"
        world.checks.invoked(f"{name} get", process.name, ("get",))
        found = yield process.ask(c.GetKey(key=KEY))
        if isinstance(found, StrataError):
            if not isinstance(found, MembershipError):
                raise ViolationError(f"{process.name} was told: {found}")
            continue
        assert isinstance(found, KeyValue)
        world.checks.returned(f"{name} get", found, is_set=False)
        world.checks.invoked(f"{name} set", process.name, ("set", name, found.token))
        answer = yield process.ask(c.SetKey(key=KEY, value=name.encode(), token=found.token, writer=name))
        if isinstance(answer, KeyValue):
            world.checks.returned(f"{name} set", answer, is_set=True)
            world.tally["keys set"] += answer.is_set
