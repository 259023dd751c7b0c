"""Compare-and-set on one key that all workers share: each adds its name to a list, and none may be lost or doubled."""

from __future__ import annotations

from typing import TYPE_CHECKING

from strata.cluster import commands as c
from strata.cluster.replies import KeyValue
from tests.simulation.process import Process, Program, Sleep

if TYPE_CHECKING:
    from tests.simulation.world import World

KEY = "count"
COUNT_EVERY_S = 12.0
AGAIN_S = 1.0


def count(world: World, process: Process) -> Program:
    """A program that counts beside the training, one call after the other."""
    yield Sleep(world.rng.uniform(0.0, COUNT_EVERY_S))
    calls = 0
    while True:
        found = yield process.ask(c.GetKey(key=KEY))
        if not isinstance(found, KeyValue):
            # A job that is not known yet has no keys.
            yield Sleep(AGAIN_S)
            continue
        calls += 1
        name = f"{process.name}/{calls}"
        value = b" ".join(filter(None, (found.value, name.encode())))
        answer = yield process.ask(c.SetKey(key=KEY, value=value, token=found.token, writer=name))
        if isinstance(answer, KeyValue):
            world.invariants.counted(name, is_set=answer.is_set)
            if answer.is_set:
                yield Sleep(COUNT_EVERY_S)
