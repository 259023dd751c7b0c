"""The world: virtual time, a network and a coordinator that fail as the seed wills."""

from __future__ import annotations

import heapq
import itertools
from collections import Counter
from collections.abc import Callable
from functools import partial
from random import Random
from typing import Any

import numpy as np

from strata.cluster import Cluster
from strata.cluster import commands as c
from strata.cluster.events import Effect
from strata.cluster.limits import Limits
from strata.errors import StrataError
from strata.sharding import DataOrder, DatasetParams, span_positions
from tests.simulation.counting import Counting
from tests.simulation.faults import FAULTS, FAULTS_UNTIL_S, PLAIN_FAULTS, inflict, plan_faults
from tests.simulation.invariants import Invariants, ViolationError
from tests.simulation.person import Person
from tests.simulation.store import Store
from tests.simulation.worker import HEARTBEAT_S, Worker

END_S = 900.0
TICK_S = 0.5
FSYNC_S = 0.02


class World:
    """One run of one job from a seed; the same seed gives the same run.

    A plain world has the faults that were known first, and workers that only train: seeds that once failed in it keep
    their meaning.
    """

    def __init__(
        self,
        seed: int,
        *,
        skipped: frozenset[int] = frozenset(),
        data_order: DataOrder | None = None,
        is_plain: bool = False,
    ) -> None:
        self.seed = seed
        self.rng = Random(seed)
        # Faults have a chance of their own, so that leaving some out leaves the others as they are.
        self.faults = plan_faults(Random(-seed - 1), PLAIN_FAULTS if is_plain else FAULTS)
        self.is_plain = is_plain
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
        self.unreadable = frozenset[int]() if is_plain else self._choose_unreadable()
        self._queue: list[tuple[float, int, Callable[[], None]]] = []
        self._numbers = itertools.count()
        self._incarnations = itertools.count(1)
        self.limits = Limits(lease_s=8.0, grace_s=2.0, collect_s=20.0, manifest_s=4.0)
        self.cluster: Cluster | None = Cluster(self.limits)
        self._journal: list[tuple[c.JobCommand, float]] = []
        self._unsynced: list[tuple[c.JobCommand, float]] = []
        self._outbox: list[Callable[[], None]] = []
        self._term = 0
        self.workers: dict[str, Worker] = {}
        self.person = Person(self)
        self.invariants = Invariants(self)

    # The run.

    def run(self) -> None:
        """Run until every worker has finished; raise ViolationError if one never does."""
        for number in range(self.rng.randint(2, 4)):
            self.start_worker(f"w{number}")
        self.at(TICK_S, self._tick)
        for number, fault in enumerate(self.faults):
            if number not in self._skipped:
                self.at(fault.at_s, partial(inflict, self, fault))
        self.at(FAULTS_UNTIL_S, self._calm)
        awaited: Worker | None = None
        while self._queue:
            self.now_s, _, event = heapq.heappop(self._queue)
            if self.now_s > END_S:
                states = {w.worker_id: (w.alive, w.finished, w.step) for w in self.workers.values()}
                raise ViolationError(f"someone waits for ever: {states}")
            event()
            # Events are many and workers few: as long as the one that is waited for has not finished, it is not over.
            if awaited is None or awaited.finished or self.workers[awaited.worker_id] is not awaited:
                awaited = next((worker for worker in self.workers.values() if not worker.finished), None)
                if awaited is None:
                    self.invariants.check_end()
                    return

    def at(self, delay_s: float, event: Callable[[], None]) -> None:
        """Let something happen after a while."""
        heapq.heappush(self._queue, (self.now_s + delay_s, next(self._numbers), event))

    def later(self, delay_s: float, worker: Worker, event: Callable[[], None]) -> None:
        """Let something happen to a worker, but not before it wakes from a pause, or gets its interpreter back."""

        def when_awake() -> None:
            awake_s = max(worker.paused_until_s, worker.held_until_s)
            if awake_s > self.now_s:
                self.at(awake_s - self.now_s + 0.001, when_awake)
            elif worker.alive:
                event()

        self.at(delay_s, when_awake)

    def note(self, what: str) -> None:
        """Write down what happens, for whoever reads of a failure."""
        self.trace.append(f"{self.now_s:7.2f} {what}")

    # The network.

    def say(self, worker: Worker, command: c.JobCommand, on_answer: Callable[[object], None]) -> None:
        """Send a command and, if neither gets lost, its answer."""
        for delay_s in self._deliveries(worker):
            self.at(delay_s, lambda: self.process(command, lambda answer: self._reply(worker, answer, on_answer)))

    def _reply(self, worker: Worker, answer: object, on_answer: Callable[[object], None]) -> None:
        for delay_s in self._deliveries(worker):
            self.later(delay_s, worker, lambda: on_answer(answer))

    def _deliveries(self, worker: Worker) -> list[float]:
        if worker.unreachable_until_s > self.now_s:
            return []
        draw = self.rng.random()
        count = 0 if draw < 0.04 else 2 if draw < 0.10 else 1
        return [self.rng.choice((0.01, 0.02, 0.1, 0.5, 3.0)) * self.rng.random() for _ in range(count)]

    # The coordinator.

    def process(self, command: c.JobCommand, answer: Callable[[object], None]) -> None:
        """Let the coordinator carry out a command, if it runs; the answer leaves when all before it is durable."""
        if self.cluster is None:
            return
        effects: list[Effect] = []
        try:
            reply, effects = self.cluster.apply(command, self.now_s)
        except StrataError as error:
            reply = error  # type: ignore[assignment]
        else:
            if command.durable:
                self._unsynced.append((command, self.now_s))
        self.invariants.applied(command, reply, effects, all_durable=not self._unsynced)

        def release() -> None:
            self.invariants.released(command, reply, effects)
            answer(reply)
            for effect in effects:
                for worker_id in effect.to:
                    self._deliver(worker_id, effect)

        # Nothing leaves before everything that it may depend on is durable.
        self._outbox.append(release)
        term = self._term
        self.at(FSYNC_S, lambda: self._sync(term))

    def _sync(self, term: int) -> None:
        if self.cluster is None or term != self._term:
            return
        self._journal += self._unsynced
        self._unsynced.clear()
        outbox, self._outbox = self._outbox, []
        for release in outbox:
            release()

    def _deliver(self, worker_id: str, effect: Any) -> None:
        worker = self.workers.get(worker_id)
        if worker is not None:
            for delay_s in self._deliveries(worker):
                self.later(delay_s, worker, lambda: worker.receive_effect(effect))

    def _tick(self) -> None:
        if self.cluster is not None:
            for demand in self.cluster.due(self.now_s):
                self.note(f"due: {type(demand).__name__}")
                self.process(demand, lambda _: None)
        self.at(TICK_S, self._tick)

    # What happens to it.

    def _calm(self) -> None:
        self.store.failure_rate = 0.0

    def start_worker(self, worker_id: str) -> None:
        """Start a worker's process, unless it runs or has finished."""
        before = self.workers.get(worker_id)
        if before is not None and (before.alive or before.finished):
            return
        self.workers[worker_id] = Worker(self, worker_id, f"i{next(self._incarnations)}")
        self._beat(self.workers[worker_id])
        if not self.is_plain:
            Counting(self, self.workers[worker_id])

    def crash_worker(self, worker: Worker, down_s: float) -> None:
        """End a worker's process, and start another one after a while."""
        worker.alive = False
        self.at(down_s, lambda: self.start_worker(worker.worker_id))

    def _beat(self, worker: Worker) -> None:
        if worker.alive:
            self.later(0.0, worker, worker.beat)
            self.at(HEARTBEAT_S, lambda: self._beat(worker))

    def vouch(self, worker: Worker) -> None:
        """Let the process beside a worker speak for it, as long as that is held; a stopped one is not spoken for."""

        def speak() -> None:
            if not worker.alive or worker.held_until_s < self.now_s:
                return
            if worker.generation and worker.paused_until_s < self.now_s:
                vouch = c.Vouch(worker_id=worker.worker_id, incarnation=worker.incarnation)
                self.say(worker, vouch, lambda _: None)
            self.at(HEARTBEAT_S, speak)

        self.at(HEARTBEAT_S, speak)

    def crash_coordinator(self, down_s: float) -> None:
        """Let the coordinator lose everything that is not in its journal, and come back after a while."""
        self.cluster = None
        self._term += 1
        self._unsynced.clear()
        self._outbox.clear()
        self.at(down_s, self._restart_coordinator)

    def _restart_coordinator(self) -> None:
        self.cluster = self._replay(0, Cluster(self.limits))
        # A snapshot in the middle and the rest of the journal lead to the same bytes.
        middle = self.rng.randint(0, len(self._journal))
        half = Cluster(self.limits)
        for command, at_s in self._journal[:middle]:
            half.apply(command, at_s)
        resumed = Cluster(self.limits)
        resumed.restore(half.snapshot())
        if self._replay(middle, resumed).snapshot() != self.cluster.snapshot():
            raise ViolationError(
                "a snapshot and the journal after it do not lead to the same state as the whole journal"
            )
        self.cluster.restart(self.now_s)
        self.note("coordinator restarted")
        self.invariants.restarted()

    def _replay(self, start: int, cluster: Cluster) -> Cluster:
        for command, at_s in self._journal[start:]:
            try:
                cluster.apply(command, at_s)
            except StrataError as error:
                raise ViolationError(f"what was accepted once is refused on replay: {command}: {error}") from error
        return cluster

    # The data.

    def samples_of(self, spans: list[tuple[int, int, int]]) -> list[int]:
        """Return the samples that stand in these rows of a hand."""
        positions = span_positions(self.order, np.array(spans, dtype=np.int64).reshape(-1, 3))
        return [sample for start, stop in positions for sample in self.order.samples_at(np.arange(start, stop))]

    def _choose_unreadable(self) -> frozenset[int]:
        """Return the samples that no worker can read: in most worlds none."""
        count = self.rng.choice((0, 0, 0, 1, 3))
        return frozenset(self.rng.sample(range(self.order.total_samples), count))
