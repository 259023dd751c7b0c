"""The process of a replica: it has a clock, runs blocking code, and can be frozen, killed and cut off from etcd."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from tests.simulation.replicas.virtual_threads import VirtualThread

if TYPE_CHECKING:
    from tests.simulation.replicas.replica_world import ReplicaWorld


class ReplicaProcess:
    """One process after the other, at one address; what one waited for does not go on in the next."""

    def __init__(self, world: ReplicaWorld) -> None:
        self._world = world
        self.life = 0
        self.is_up = False
        self.frozen_until_s = 0.0
        self.cut_off_until_s = 0.0
        self._threads: list[VirtualThread] = []

    def crash(self) -> None:
        """Kill it: nothing that it waits for goes on."""
        self.is_up = False
        self.life += 1
        threads, self._threads = self._threads, []
        for thread in threads:
            thread.end()

    def monotonic_s(self) -> float:
        """The clock of this replica."""
        return self._world.now_s

    def wall_s(self) -> float:
        """The same: a wall clock decides nothing."""
        return self._world.now_s

    @property
    def is_cut_off(self) -> bool:
        """Whether nothing gets through between it and etcd."""
        return self.cut_off_until_s > self._world.now_s

    def later(self, delay_s: float, do: Callable[[], None]) -> None:
        """Let something happen in this process, if it still runs then; a frozen one does it when it goes on."""
        life = self.life

        def when_awake() -> None:
            if self.life != life:
                return
            if self.frozen_until_s > self._world.now_s:
                self._world.at(self.frozen_until_s - self._world.now_s + 0.001, when_awake)
            else:
                do()

        self._world.at(delay_s, when_awake)

    def spawn(self, run: Callable[[], Any]) -> VirtualThread:
        """Run blocking code of this process."""

        def done(result: Any) -> None:
            if thread in self._threads:
                self._threads.remove(thread)
            if isinstance(result, BaseException):
                raise result

        thread = VirtualThread(run, done, self.later)
        self._threads.append(thread)
        self.later(0.0, thread.start)
        return thread
