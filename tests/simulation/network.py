"""Connections of a world: frames in order on each, late, twice or never, as the seed wills."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from strata.cluster import commands as c
    from strata.cluster.events import Effect
    from tests.simulation.coordinator import SimulatedCoordinator
    from tests.simulation.process import Process
    from tests.simulation.world import World

DELAYS_S = (0.01, 0.02, 0.1, 0.5, 3.0)
# So often a frame to a worker comes twice, and so often one overtakes the others.
TWICE = 0.03
OUT_OF_ORDER = 0.05


class Link:
    """One connection between a process and the coordinator; what is sent on it may arrive after it was left."""

    def __init__(self, world: World, process: Process, coordinator: SimulatedCoordinator) -> None:
        self._world = world
        self.process = process
        self.coordinator = coordinator
        self.principal = world.principal
        self.is_open = True
        self.is_black_hole = False
        # Frames of one direction arrive in the order in which they were sent.
        self._upward_s = 0.0
        self._downward_s = 0.0

    def send_up(self, command: c.JobCommand, arrive: Callable[[], None]) -> None:
        """Carry a frame to the coordinator."""
        if self.is_black_hole:
            return
        self._upward_s = max(self._upward_s, self._arrival_s())
        self._world.at(self._upward_s - self._world.now_s, lambda: self.coordinator.arrive(command, arrive))

    def send_down(self, arrive: Callable[[], None]) -> None:
        """Carry a frame to the process, if it still has this connection then."""
        if not self.is_open or self.is_black_hole:
            return
        at_s = self._arrival_s()
        if self._world.rng.random() >= OUT_OF_ORDER:
            at_s = self._downward_s = max(self._downward_s, at_s)
        for _ in range(2 if self._world.rng.random() < TWICE else 1):
            self._world.later(at_s - self._world.now_s, self.process, lambda: self._take(arrive))

    def deliver(self, effect: Effect) -> None:
        """Carry an effect to the process."""
        self.send_down(lambda: self.process.receive_effect(effect))

    def close(self) -> None:
        """Both sides learn that the connection is gone, each after a while; the network keeps what is under way."""
        if self.is_open:
            self.is_open = False
            self._world.later(self._delay_s(), self.process, lambda: self.process.link_lost(self))
            self._world.at(self._delay_s(), lambda: self.coordinator.link_lost(self))

    def leave(self) -> None:
        """The process closes it; the coordinator learns of that unless nothing gets through."""
        self.is_open = False
        if not self.is_black_hole:
            self._world.at(self._arrival_s() - self._world.now_s, lambda: self.coordinator.link_lost(self))

    def _take(self, arrive: Callable[[], None]) -> None:
        if self.process.link is self and not self.is_black_hole:
            arrive()

    def _arrival_s(self) -> float:
        """When what is sent now arrives: TCP keeps it while nothing gets through, and sends it again afterwards."""
        return max(self._world.now_s, self.process.unreachable_until_s) + self._delay_s()

    def _delay_s(self) -> float:
        return self._world.rng.choice(self._world.delays_s) * self._world.rng.random()
