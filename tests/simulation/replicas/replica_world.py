"""A world of three coordinators on one etcd, and workers at which nothing fails but the coordinators."""

from __future__ import annotations

import heapq
import itertools
from collections import Counter
from collections.abc import Callable
from functools import partial
from random import Random

from strata.client.worker import actions as a
from strata.cluster import Limits
from strata.cluster.access import DEFAULT_TENANT, Principal, Role
from tests.simulation.process import Process
from tests.simulation.programs.replicated import train, write
from tests.simulation.replicas.checks import ReplicaChecks
from tests.simulation.replicas.etcd_model import EtcdModel
from tests.simulation.replicas.replica import Replica
from tests.simulation.replicas.replica_faults import FAULTS_UNTIL_S, inflict, plan_faults
from tests.simulation.replicas.simulated_etcd import simulated
from tests.simulation.store import Store
from tests.simulation.violation import ViolationError

END_S = 900.0
REPLICAS = 3


class ReplicatedProcess(Process):
    """A worker's process: before it connects, it asks a coordinator who leads, as the driver does."""

    def _connect(self, to: a.Connect) -> None:
        self._leave_link()
        world = self.world
        replica = world.find_coordinator(to.address)
        now_s = world.now_s
        if replica is None or not replica.is_up:
            world.later(0.01, self, lambda: self.do(self.protocol.lost(world.now_s)))
        elif max(replica.frozen_until_s, self.unreachable_until_s) > now_s:
            world.later(to.timeout_s, self, lambda: self.do(self.protocol.lost(world.now_s)))
        elif not (replica.leadership.is_leader or replica.leadership.is_in_doubt):
            leader = replica.leadership.leader
            world.tally["redirects"] += 1
            world.later(0.01, self, lambda: self.do(self.protocol.redirected(leader.grpc, leader.term, world.now_s)))
        else:
            super()._connect(to)


class ReplicaWorld:
    """One run from a seed; the same seed gives the same run."""

    def __init__(self, seed: int, *, skipped: frozenset[int] = frozenset()) -> None:
        self.seed = seed
        self.rng = Random(seed)
        self.faults = plan_faults(Random(-seed - 1))
        self._skipped = skipped
        self.tally: Counter[str] = Counter()
        self.now_s = 0.0
        self.trace: list[str] = []
        self._queue: list[tuple[float, int, Callable[[], None]]] = []
        self._numbers = itertools.count()
        # Short enough that no worker is late by the network alone: then whoever is failed was failed by a takeover.
        self.delays_s = (0.01, 0.02, 0.1, 0.4)
        self.limits = Limits(lease_s=8.0, grace_s=2.0, collect_s=200.0, manifest_s=4.0, repair_s=5.0)
        self.principal = Principal("trainer", DEFAULT_TENANT, Role.WORKER)
        self.store = Store(self.rng)
        self.store.failure_rate = 0.0
        self.etcd = EtcdModel()
        # In many worlds a batch is too large for one transaction, and a journal for one page.
        sizes = Random(f"sizes {seed}")
        self.piece_bytes, self.page_keys = sizes.choice((1 << 20, 32, 16)), sizes.choice((128, 2))
        self.etcd_down_until_s = self.etcd_full_until_s = 0.0
        self.etcd_delay_s = self.loss_rate = 0.0
        self.checks = self.invariants = ReplicaChecks(self)
        self.replicas = [Replica(self, f"r{number}") for number in range(REPLICAS)]
        self.addresses = tuple(replica.address for replica in self.replicas)
        self.starting = self.replicas[0]
        self.world_size = self.rng.randint(2, 4)
        self.workers: dict[str, Process] = {}

    def run(self) -> None:
        """Run until every worker has finished; raise ViolationError if one never does."""
        with simulated(self):
            try:
                self._run()
            finally:
                for replica in self.replicas:
                    replica.crash()

    def _run(self) -> None:
        for replica in self.replicas:
            self.at(self.rng.random(), replica.start)
        for number in range(self.world_size):
            process = ReplicatedProcess(self, f"w{number}", f"p{number}", f"p{number}.1")
            self.workers[process.worker_id] = process
            self.at(self.rng.random() * 3.0, partial(process.start, train(self, process), write(self, process)))
        for number, fault in enumerate(self.faults):
            if number not in self._skipped:
                self.at(fault.at_s, partial(inflict, self, fault))
        self.at(FAULTS_UNTIL_S, self._calm)
        while self._queue:
            self.now_s, _, event = heapq.heappop(self._queue)
            if self.now_s > END_S:
                states = {worker.name: worker.protocol.state.name for worker in self.workers.values()}
                raise ViolationError(
                    f"someone waits for ever: {states}, {[r.leadership.leader for r in self.replicas]}"
                )
            event()
            if all(worker.finished for worker in self.workers.values()):
                self.checks.look(self.etcd)
                self.checks.check_end()
                return

    def at(self, delay_s: float, event: Callable[[], None]) -> None:
        """Let something happen after a while."""
        heapq.heappush(self._queue, (self.now_s + delay_s, next(self._numbers), event))

    def later(self, delay_s: float, process: Process, event: Callable[[], None]) -> None:
        """Let something happen to a worker's process, if it runs then."""
        self.at(delay_s, lambda: event() if process.alive else None)

    def note(self, what: str) -> None:
        """Write down what happens, for whoever reads of a failure."""
        self.trace.append(f"{self.now_s:7.2f} {what}")

    def find_coordinator(self, address: str) -> Replica | None:
        """Return the replica of an address."""
        return next((replica for replica in self.replicas if replica.address == address), None)

    def find_replica(self, address: str) -> Replica:
        """Return the replica that etcd's clients of this name belong to."""
        found = self.find_coordinator(address)
        assert found is not None
        return found

    def leader(self) -> Replica | None:
        """Return the replica that thinks that it leads, the newest if there are two."""
        leading = [replica for replica in self.replicas if replica.is_up and replica.leads]
        return max(leading, key=lambda replica: replica.leadership.leader.term, default=None)

    def close_links(self, replica: Replica) -> None:
        """A process is gone: its connections close, or nobody is told."""
        for worker in self.workers.values():
            if worker.link is not None and worker.link.coordinator is replica:
                if self.rng.random() < 0.7:
                    worker.link.close()
                else:
                    worker.link.is_black_hole = True

    def start_worker_later(self, worker_id: str, delay_s: float) -> None:
        """No worker ends before its time, so none is started again."""
        raise ViolationError(f"{worker_id} ended before its time")

    def _calm(self) -> None:
        self.loss_rate = self.etcd_delay_s = 0.0
