"""Compare-and-set on one key that all workers share: each adds its name to a list, and none may be lost or doubled."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

from strata.cluster import commands as c
from strata.cluster.replies import KeyValue

if TYPE_CHECKING:
    from tests.simulation.worker import Worker
    from tests.simulation.world import World

KEY = "count"
COUNT_EVERY_S = 12.0
AGAIN_S = 1.0


class Counting:
    """One process of a worker that counts beside its training, one call after the other."""

    def __init__(self, world: World, worker: Worker) -> None:
        self._world = world
        self._worker = worker
        self._process = worker.incarnation
        self._calls = 0
        world.later(world.rng.uniform(0.0, COUNT_EVERY_S), worker, self._read)

    def _read(self) -> None:
        self._calls += 1
        self._ask(c.GetKey(key=KEY), self._calls, self._add)

    def _add(self, found: KeyValue) -> None:
        self._calls += 1
        name = f"{self._process}/{self._calls}"
        value = b" ".join(filter(None, (found.value, name.encode())))
        command = c.SetKey(key=KEY, value=value, token=found.token, writer=name)

        def finish(answer: KeyValue) -> None:
            self._world.invariants.counted(name, is_set=answer.is_set)
            self._world.later(COUNT_EVERY_S if answer.is_set else 0.0, self._worker, self._read)

        self._ask(command, self._calls, finish)

    def _ask(self, command: c.JobCommand, call: int, go_on: Callable[[KeyValue], None]) -> None:
        """Say it until it is answered, and go on once."""
        if call != self._calls or not self._worker.alive or self._worker.finished:
            return

        def hear(answer: object) -> None:
            # A job that is not known yet has no keys: it is asked again.
            if call == self._calls and isinstance(answer, KeyValue):
                self._calls += 1
                go_on(answer)

        self._world.say(self._worker, command, hear)
        self._world.later(AGAIN_S, self._worker, lambda: self._ask(command, call, go_on))
