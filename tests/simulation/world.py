"""The world: virtual time, a network and a coordinator that fail as the seed wills, and the invariants."""

from __future__ import annotations

import heapq
import itertools
import json
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from random import Random
from typing import Any

import numpy as np

from strata.cluster import Cluster
from strata.cluster import commands as c
from strata.cluster.limits import Limits
from strata.errors import StrataError
from strata.sharding import DataOrder, DatasetParams, GlobalCursor, RangeSet, cursor_from_json, span_positions
from strata.sharding.cursor import Spans
from tests.simulation.store import Manifest, Store
from tests.simulation.worker import HEARTBEAT_S, Worker

FAULTS_UNTIL_S = 40.0
END_S = 900.0
TICK_S = 0.5
FSYNC_S = 0.02
MAX_WORKERS = 6
FAULTS = ("crash", "crash", "pause", "partition", "channel", "coordinator", "store", "join")


class ViolationError(AssertionError):
    """Something that must never happen did."""


@dataclass(frozen=True)
class Fault:
    """Something that goes wrong at a moment, for a while; ``choice`` says to whom, or how badly."""

    at_s: float
    kind: str
    choice: float
    lasts_s: float


def _plan_faults(rng: Random) -> list[Fault]:
    faults = []
    at_s = rng.uniform(0.2, 4.0)
    while at_s < FAULTS_UNTIL_S:
        faults.append(Fault(at_s, rng.choice(FAULTS), rng.random(), rng.uniform(0.1, 14.0)))
        at_s += rng.choice((0.3, 3.0, 10.0)) * rng.random()
    return faults


class World:
    """One run of one job from a seed; the same seed gives the same run."""

    def __init__(
        self, seed: int, *, skipped: frozenset[int] = frozenset(), data_order: DataOrder | None = None
    ) -> None:
        self.seed = seed
        self.rng = Random(seed)
        # Faults have a chance of their own, so that leaving some out leaves the others as they are.
        self.faults = _plan_faults(Random(-seed - 1))
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
        self._queue: list[tuple[float, int, Callable[[], None]]] = []
        self._numbers = itertools.count()
        self._incarnations = itertools.count(1)
        self._limits = Limits(lease_s=8.0, grace_s=2.0, collect_s=20.0, manifest_s=4.0)
        self.cluster: Cluster | None = Cluster(self._limits)
        self._journal: list[tuple[c.JobCommand, float]] = []
        self._unsynced: list[tuple[c.JobCommand, float]] = []
        self._outbox: list[Callable[[], None]] = []
        self._term = 0
        self.workers: dict[str, Worker] = {}
        self._announced: set[int] = set()
        self._members_of: dict[int, tuple[tuple[str, str], ...]] = {}
        self._hands: dict[int, dict[str, RangeSet]] = {}
        self._shared: dict[int, RangeSet] = {}

    # The run.

    def run(self) -> None:
        """Run until every worker has finished; raise ViolationError if one never does."""
        for number in range(self.rng.randint(2, 4)):
            self._start_worker(f"w{number}")
        self._at(TICK_S, self._tick)
        for number, fault in enumerate(self.faults):
            if number not in self._skipped:
                self._at(fault.at_s, partial(self._inflict, fault))
        self._at(FAULTS_UNTIL_S, self._calm)
        while self._queue:
            self.now_s, _, event = heapq.heappop(self._queue)
            if self.now_s > END_S:
                states = {w.worker_id: (w.alive, w.finished, w.step) for w in self.workers.values()}
                raise ViolationError(f"someone waits for ever: {states}")
            event()
            if all(worker.finished for worker in self.workers.values()):
                self._check_end()
                return

    def _at(self, delay_s: float, event: Callable[[], None]) -> None:
        heapq.heappush(self._queue, (self.now_s + delay_s, next(self._numbers), event))

    def later(self, delay_s: float, worker: Worker, event: Callable[[], None]) -> None:
        """Let something happen to a worker, but not before it wakes from a pause."""

        def when_awake() -> None:
            if worker.paused_until_s > self.now_s:
                self._at(worker.paused_until_s - self.now_s + 0.001, when_awake)
            elif worker.alive:
                event()

        self._at(delay_s, when_awake)

    def _note(self, what: str) -> None:
        self.trace.append(f"{self.now_s:7.2f} {what}")

    # The network.

    def say(self, worker: Worker, command: c.JobCommand, on_answer: Callable[[object], None]) -> None:
        """Send a command and, if neither gets lost, its answer."""
        for delay_s in self._deliveries(worker):
            self._at(delay_s, lambda: self._process(command, lambda answer: self._reply(worker, answer, on_answer)))

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

    def _process(self, command: c.JobCommand, answer: Callable[[object], None]) -> None:
        if self.cluster is None:
            return
        effects = []
        try:
            reply, effects = self.cluster.apply(command, self.now_s)
        except StrataError as error:
            reply = error  # type: ignore[assignment]
        else:
            if command.durable:
                self._unsynced.append((command, self.now_s))
        self._check_generation()

        def release() -> None:
            answer(reply)
            for effect in effects:
                for worker_id in effect.to:
                    self._deliver(worker_id, effect)

        # Nothing leaves before everything that it may depend on is durable.
        self._outbox.append(release)
        term = self._term
        self._at(FSYNC_S, lambda: self._sync(term))

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
                self._note(f"due: {type(demand).__name__}")
                self._process(demand, lambda _: None)
        self._at(TICK_S, self._tick)

    # Faults.

    def _inflict(self, fault: Fault) -> None:
        candidates = [worker for worker in self.workers.values() if worker.alive and not worker.finished]
        worker = candidates[int(fault.choice * len(candidates))] if candidates else None
        self._note(f"fault: {fault.kind} {worker.worker_id if worker else ''} for {fault.lasts_s:.1f} s")
        self.tally[fault.kind] += 1
        match fault.kind:
            case "coordinator" if self.cluster is not None:
                self._crash_coordinator(fault.lasts_s)
            case "store":
                self.store.failure_rate = fault.choice
            case "join" if len(self.workers) < MAX_WORKERS:
                self._start_worker(f"w{len(self.workers)}")
            case "crash" if worker is not None:
                worker.alive = False
                self._at(fault.lasts_s, lambda: self._start_worker(worker.worker_id))
            case "pause" if worker is not None:
                worker.paused_until_s = self.now_s + fault.lasts_s
            case "partition" if worker is not None:
                worker.unreachable_until_s = self.now_s + fault.lasts_s
            case "channel" if worker is not None:
                lost = c.ChannelLost(worker_id=worker.worker_id, incarnation=worker.incarnation)
                self._process(lost, lambda _: None)

    def _calm(self) -> None:
        self.store.failure_rate = 0.0

    def _start_worker(self, worker_id: str) -> None:
        before = self.workers.get(worker_id)
        if before is not None and (before.alive or before.finished):
            return
        self.workers[worker_id] = Worker(self, worker_id, f"i{next(self._incarnations)}")
        self._beat(self.workers[worker_id])

    def _beat(self, worker: Worker) -> None:
        if worker.alive:
            self.later(0.0, worker, worker.beat)
            self._at(HEARTBEAT_S, lambda: self._beat(worker))

    def _crash_coordinator(self, down_s: float) -> None:
        self.cluster = None
        self._term += 1
        self._unsynced.clear()
        self._outbox.clear()
        self._at(down_s, self._restart_coordinator)

    def _restart_coordinator(self) -> None:
        self.cluster = self._replay(0, Cluster(self._limits))
        # A snapshot in the middle and the rest of the journal lead to the same bytes.
        middle = self.rng.randint(0, len(self._journal))
        half = Cluster(self._limits)
        for command, at_s in self._journal[:middle]:
            half.apply(command, at_s)
        resumed = Cluster(self._limits)
        resumed.restore(half.snapshot())
        if self._replay(middle, resumed).snapshot() != self.cluster.snapshot():
            raise ViolationError(
                "a snapshot and the journal after it do not lead to the same state as the whole journal"
            )
        self.cluster.restart(self.now_s)
        self._note("coordinator restarted")
        self._check_announced()

    def _replay(self, start: int, cluster: Cluster) -> Cluster:
        for command, at_s in self._journal[start:]:
            try:
                cluster.apply(command, at_s)
            except StrataError as error:
                raise ViolationError(f"what was accepted once is refused on replay: {command}: {error}") from error
        return cluster

    # What must hold.

    def samples_of(self, spans: list[tuple[int, int, int]]) -> list[int]:
        """Return the samples that stand in these rows of a hand."""
        positions = span_positions(self.order, np.array(spans, dtype=np.int64).reshape(-1, 3))
        return [sample for start, stop in positions for sample in self.order.samples_at(np.arange(start, stop))]

    def dealt(self, generation: int, worker_id: str, spans: Spans) -> None:
        """A worker was given a hand: nobody else may hold any of it in this generation, or all, if global."""
        positions = span_positions(self.order, spans)
        if self.dataset["data_order"] is DataOrder.GLOBAL:
            if self._shared.setdefault(generation, positions) != positions:
                raise ViolationError(f"{worker_id} has another rest of the epoch in generation {generation}")
            return
        hands = self._hands.setdefault(generation, {})
        for other, held in hands.items():
            if other != worker_id and held.intersection(positions).count:
                raise ViolationError(f"{worker_id} and {other} hold the same samples in generation {generation}")
        hands[worker_id] = hands.get(worker_id, RangeSet()).union(positions)

    def announced(self, step: int) -> None:
        """A worker was told that a checkpoint is committed: it stays for ever."""
        self.tally["commits announced"] += step not in self._announced
        self._announced.add(step)
        if step not in self.store.manifests:
            raise ViolationError(f"step {step} was announced, but its manifest is not in storage")
        self._check_announced()

    def manifest_written(self, manifest: Manifest) -> None:
        """A manifest is in storage: its model has seen exactly what its cursor says, and nothing twice."""
        model = Counter(self.store.model(manifest.step))
        ledger: Counter[int] = Counter()
        for row in json.loads(manifest.cursors):
            cursor = cursor_from_json({name: value for name, value in row.items() if name != "dataset"})
            if isinstance(cursor, GlobalCursor) != (self.dataset["data_order"] is DataOrder.GLOBAL):
                raise ViolationError(f"step {manifest.step} has the cursor {cursor}")
            for start, stop in cursor.consumed:
                ledger.update(self.order.samples_at(np.arange(start, stop)).tolist())
        if model != ledger:
            raise ViolationError(
                f"step {manifest.step}: the model has seen {sorted(model.elements())}, "
                f"but its cursor says {sorted(ledger.elements())}"
            )

    def _check_announced(self) -> None:
        if self.cluster is not None and "default" in self.cluster.jobs():
            lost = self._announced - set(self.cluster.job("default").commits.committed)
            if lost:
                raise ViolationError(f"steps {sorted(lost)} were announced and are gone from the index")

    def _check_generation(self) -> None:
        if self.cluster is None or "default" not in self.cluster.jobs():
            return
        membership = self.cluster.job("default").membership
        members = tuple((member.worker_id, member.incarnation) for member in membership.present())
        if self._unsynced:
            return
        self.tally["generations"] = membership.generation
        known = self._members_of.setdefault(membership.generation, members)
        if known != members:
            raise ViolationError(f"generation {membership.generation} has the members {known} and {members}")
        if membership.generation < max(self._members_of):
            raise ViolationError(f"the generation went back to {membership.generation}")
        ranks = [member.rank for member in membership.present()]
        if ranks != list(range(len(ranks))):
            raise ViolationError(f"the ranks are {ranks}")

    def _check_end(self) -> None:
        last = max(self.store.manifests)
        model = Counter(self.store.model(last))
        self.tally["samples"] += model.total()
        if model != Counter(range(self.order.total_samples)):
            raise ViolationError(f"the finished epoch was not seen exactly once: {sorted(model.elements())}")
        if self.cluster is not None:
            audit = self.cluster.job("default").ledger.audit("d", 0)
            if not audit.is_exactly_once:
                raise ViolationError(f"the audit of a finished epoch says: {audit}")
