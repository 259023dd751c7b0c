"""The machines of a world: each counts the time since its boot by itself, and has a wall clock that anyone may set."""

from __future__ import annotations

from random import Random
from typing import TYPE_CHECKING

from strata.cluster.membership import new_incarnation
from strata.cluster.values import BootTime

if TYPE_CHECKING:
    from tests.simulation.process import Process
    from tests.simulation.world import World

MACHINES = 3
HOUR_MS = 3_600_000
# One process in so many is of an earlier version, which sends the time of its wall clock.
EARLIER_VERSION = 0.2


class Machines:
    """Where the processes of workers are started, one after the other."""

    def __init__(self, world: World) -> None:
        self._world = world
        # A chance of its own: where processes run leaves all else as it is.
        self._rng = Random(f"machines {world.seed}")
        self._booted_ms = [self._rng.randrange(HOUR_MS) for _ in range(MACHINES)]
        self._last_start_ms = 0
        self._machine_of: dict[str, int] = {}

    def start(self, name: str, *, before: Process | None) -> str:
        """Return the first incarnation of a process, which is started after another one of its worker.

        It may run anywhere, and know only a wall clock, which may be hours before or behind. But a process that is not
        a member yet is replaced on its own machine: of two that were never heard nobody could tell which is newer.
        """
        # In no millisecond in which another one started, so that one of them is the newest.
        self._last_start_ms = max(int(self._world.now_s * 1_000), self._last_start_ms + 1)
        if before is not None and before.protocol.registered is None:
            machine = self._machine_of[before.name]
        elif self._rng.random() < EARLIER_VERSION:
            return f"{self._rng.randrange(2 * HOUR_MS)}-{name}.1"
        else:
            machine = self._rng.randrange(MACHINES)
        self._machine_of[name] = machine
        return new_incarnation(BootTime(f"m{machine}", self._booted_ms[machine] + self._last_start_ms), name)

    def can_fail(self, process: Process) -> bool:
        """Whether a process may be killed or replaced: one that only knows a wall clock may once it is a member."""
        return process.name in self._machine_of or process.protocol.registered is not None
