"""The world: virtual time, processes, a network and a coordinator that fail as the seed wills."""

from __future__ import annotations

import heapq
import itertools
from collections import Counter
from collections.abc import Callable
from functools import partial
from random import Random
from typing import Any

import numpy as np

from strata.cluster import Cluster, Limits
from strata.cluster import commands as c
from strata.cluster.access import DEFAULT_TENANT, Principal, Role
from strata.cluster.access.names import full_name
from strata.cluster.values import Span
from strata.sharding import DataOrder, DatasetParams, span_positions
from tests.simulation.checks.invariants import Invariants
from tests.simulation.coordinator import TICK_S, SimulatedCoordinator
from tests.simulation.faults import FAULTS_UNTIL_S, inflict, plan_faults
from tests.simulation.machines import Machines
from tests.simulation.network import DELAYS_S
from tests.simulation.operator import Operator
from tests.simulation.process import Process
from tests.simulation.programs.counting import count
from tests.simulation.programs.locking import lock
from tests.simulation.programs.neighbours import TENANTS, Neighbours
from tests.simulation.programs.stepping import step_alone
from tests.simulation.programs.training import Training
from tests.simulation.store import Store
from tests.simulation.violation import ViolationError

END_S = 900.0
KEEP_ALIVE_S = 2.0
ADDRESS = "coordinator"


class World:
    """One run of one job from a seed; the same seed gives the same run."""

    def __init__(
        self, seed: int, *, skipped: frozenset[int] = frozenset(), data_order: DataOrder | None = None
    ) -> None:
        self.seed = seed
        self.rng = Random(seed)
        # Faults have a chance of their own, so that leaving some out leaves the others as they are.
        self.faults = plan_faults(Random(-seed - 1))
        self._skipped = skipped
        self.tally: Counter[str] = Counter()
        self.now_s = 0.0
        self.trace: list[str] = []
        self.store = Store(self.rng)
        self.batch = self.rng.randint(1, 3)
        self.dataset: dict[str, Any] = {
            "dataset_id": "d",
            "total_samples": self.rng.randint(8, 36),
            "shard_size": self.rng.randint(1, 6),
            "shuffle": self.rng.random() < 0.7,
            "seed": seed,
            "data_order": data_order or list(DataOrder)[seed % len(DataOrder)],
        }
        self.order = DatasetParams(**self.dataset).order(epoch=0)
        self._samples: list[int] = self.order.samples_at(np.arange(self.order.total_samples)).tolist()
        self.unreadable = self._choose_unreadable()
        # Whose job it is that is trained; others have jobs and workers of the same names.
        self.principal = Principal("trainer", (DEFAULT_TENANT, *TENANTS)[seed % 3], Role.WORKER)
        self.job_id = full_name(self.principal.tenant, "default")
        self._queue: list[tuple[float, int, Callable[[], None]]] = []
        self._numbers = itertools.count()
        self._names = itertools.count(1)
        self._last_of: dict[str, Process] = {}
        self.machines = Machines(self)
        self.addresses: tuple[str, ...] = (ADDRESS,)
        self.delays_s = DELAYS_S
        self.limits = Limits(lease_s=8.0, grace_s=2.0, collect_s=40.0, manifest_s=4.0, repair_s=5.0)
        self.workers: dict[str, Process] = {}
        self.zombies: list[Process] = []
        self.operator = Operator(self)
        self.neighbours = Neighbours(self)
        self.invariants = Invariants(self)
        self.coordinator = SimulatedCoordinator(self)

    @property
    def cluster(self) -> Cluster | None:
        """The coordinator's state machine, if it runs."""
        return self.coordinator.cluster

    def find_coordinator(self, address: str) -> SimulatedCoordinator | None:
        """Return the coordinator of an address."""
        return self.coordinator if address == ADDRESS else None

    # The run.

    def run(self) -> None:
        """Run until every worker has finished; raise ViolationError if one never does."""
        for number in range(self.rng.randint(2, 4)):
            self.start_worker(f"w{number}")
        self.at(TICK_S, self.coordinator.tick)
        self.neighbours.start()
        for number, fault in enumerate(self.faults):
            if number not in self._skipped:
                self.at(fault.at_s, partial(inflict, self, fault))
        self.at(FAULTS_UNTIL_S, self._calm)
        awaited: Process | None = None
        while self._queue:
            self.now_s, _, event = heapq.heappop(self._queue)
            if self.now_s > END_S:
                states = {w.worker_id: (w.alive, w.finished, w.protocol.state.name) for w in self.workers.values()}
                raise ViolationError(f"someone waits for ever: {states}")
            event()
            # Events are many and workers few: as long as the one that is waited for has not finished, it is not over.
            if awaited is None or awaited.finished or self.workers[awaited.worker_id] is not awaited:
                awaited = next((process for process in self.workers.values() if not process.finished), None)
                if awaited is None:
                    self.invariants.check_end()
                    return

    def at(self, delay_s: float, event: Callable[[], None]) -> None:
        """Let something happen after a while."""
        heapq.heappush(self._queue, (self.now_s + delay_s, next(self._numbers), event))

    def later(self, delay_s: float, process: Process, event: Callable[[], None]) -> None:
        """Let something happen to a process, but not before it wakes from a pause, or gets its interpreter back."""

        def when_awake() -> None:
            awake_s = max(process.paused_until_s, process.held_until_s)
            if awake_s > self.now_s:
                self.at(awake_s - self.now_s + 0.001, when_awake)
            elif process.alive:
                event()

        self.at(delay_s, when_awake)

    def note(self, what: str) -> None:
        """Write down what happens, for whoever reads of a failure."""
        self.trace.append(f"{self.now_s:7.2f} {what}")

    # Processes.

    def processes(self) -> list[Process]:
        """Return every process that runs, also those that were replaced."""
        return [process for process in (*self.workers.values(), *self.zombies) if process.alive]

    def start_worker(self, worker_id: str) -> None:
        """Start a worker's process, unless one runs or has finished."""
        before = self.workers.get(worker_id)
        if before is None or not (before.alive or before.finished):
            name = f"p{next(self._names)}"
            incarnation = self.machines.start(name, before=self._last_of.get(worker_id))
            process = self.workers[worker_id] = self._last_of[worker_id] = Process(self, worker_id, name, incarnation)
            beside = (program(self, process) for program in (count, lock, step_alone))
            process.start(Training(self, process).run(), *beside)

    def start_worker_later(self, worker_id: str, delay_s: float) -> None:
        """Start a worker's process after a while."""
        self.at(delay_s, lambda: self.start_worker(worker_id))

    def crash_worker(self, process: Process, down_s: float) -> None:
        """Kill a worker's process, and start another one after a while."""
        self.invariants.died(process)
        process.end()
        self.start_worker_later(process.worker_id, down_s)

    def replace_worker(self, process: Process, cut_off_s: float) -> None:
        """Cut a process off and start another one in its place; later the old one comes back."""
        process.unreachable_until_s = self.now_s + cut_off_s
        self.zombies.append(process)
        del self.workers[process.worker_id]
        self.start_worker(process.worker_id)

    def keep_alive(self, process: Process) -> None:
        """Let the keep-alive process speak for a process that is held; for a stopped one it does not."""

        def speak() -> None:
            if not process.alive or process.held_until_s < self.now_s:
                return
            if process.link is not None and process.protocol.registered and process.paused_until_s < self.now_s:
                keep_alive = c.KeepAlive(worker_id=process.worker_id, incarnation=process.incarnation)
                hear = partial(self.coordinator.hear, self.principal, keep_alive, lambda _: None)
                process.link.send_up(keep_alive, hear)
            self.at(KEEP_ALIVE_S, speak)

        self.at(KEEP_ALIVE_S, speak)

    def _calm(self) -> None:
        self.store.failure_rate = 0.0

    # The data.

    def samples_of(self, spans: list[Span]) -> list[int]:
        """Return the samples that stand in these spans."""
        positions = span_positions(self.order, np.array(spans, dtype=np.int64).reshape(-1, 3))
        return [sample for start, stop in positions for sample in self._samples[start:stop]]

    def _choose_unreadable(self) -> frozenset[int]:
        """Return the samples that no worker can read: in most worlds none."""
        number = self.rng.choice((0, 0, 0, 1, 3))
        return frozenset(self.rng.sample(range(self.order.total_samples), number))
