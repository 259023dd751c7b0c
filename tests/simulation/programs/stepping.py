"""A script that meets nobody and saves nothing: only at each step it looks whether it may go on."""

from __future__ import annotations

from typing import TYPE_CHECKING

from strata.errors import DuplicateWorkerError
from tests.simulation.process import Process, Program, Sleep

if TYPE_CHECKING:
    from tests.simulation.world import World

STEP_S = 2.0


def step_alone(world: World, process: Process) -> Program:
    """A program that does steps beside the training, until another process is this worker."""
    while True:
        yield Sleep(STEP_S * world.rng.random())
        if isinstance(process.protocol.check(process.protocol.generation), DuplicateWorkerError):
            world.tally["replaced workers stopped"] += 1
            process.end()
            return
        process.trains()
