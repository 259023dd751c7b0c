"""A lock that all workers share: whoever sets the key has it, and removes the key to give it back.

A lock that is held for too long is broken by whoever wants it, as its holder may be dead.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from strata.cluster import commands as c
from strata.cluster.replies import KeyValue
from tests.simulation.process import Process, Program, Sleep

if TYPE_CHECKING:
    from tests.simulation.world import World

LOCK = "lock"
LOCK_EVERY_S = 16.0
HELD_S = 4.0


def lock(world: World, process: Process) -> Program:
    """A program that takes the lock and gives it back, again and again, beside the training."""
    calls = 0
    while True:
        yield Sleep(LOCK_EVERY_S * world.rng.random())
        calls += 1
        name = f"{process.name}/lock/{calls}"
        taken = yield process.ask(c.SetKey(key=LOCK, value=name.encode(), token=0, writer=name))
        if not isinstance(taken, KeyValue):
            continue
        if taken.is_set:
            yield Sleep(HELD_S * world.rng.random())
        elif world.rng.random() < 0.5:
            continue
        yield process.ask(c.SetKey(key=LOCK, value=b"", token=taken.token, writer=f"{name}/remove"))
