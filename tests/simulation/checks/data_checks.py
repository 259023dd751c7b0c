"""What must hold of data, keys and the end of a world."""

from __future__ import annotations

import json
from collections import Counter
from typing import TYPE_CHECKING

import numpy as np

from strata.cluster.replies import KeyValue
from strata.sharding import DataOrder, GlobalCursor, RangeSet, cursor_from_json, span_positions
from strata.sharding.cursor import Spans
from tests.simulation.programs.counting import KEY
from tests.simulation.violation import ViolationError

if TYPE_CHECKING:
    from strata.cluster import commands as c
    from strata.cluster.job import Job
    from tests.simulation.store import Manifest
    from tests.simulation.world import World


class DataChecks:
    """Each sample is seen once, by one worker, and each name is counted once."""

    def __init__(self, world: World) -> None:
        self._world = world
        self._announced: dict[int, Manifest] = {}
        self._rejected: dict[int, Manifest] = {}
        self._shard_leases: dict[int, dict[str, RangeSet]] = {}
        self._shared: dict[int, RangeSet] = {}
        self._counted: set[str] = set()
        self._not_counted: set[str] = set()
        self._set_by: dict[str, KeyValue] = {}
        self._tokens: dict[str, int] = {}
        self._highest_token = 0

    # What workers do.

    def counted(self, name: str, *, is_set: bool) -> None:
        """A worker was told whether its name is on the list that all share."""
        self._world.tally["keys set"] += is_set
        (self._counted if is_set else self._not_counted).add(name)

    def key_set(self, command: c.SetKey, reply: KeyValue) -> None:
        """A worker was answered: a key changes for whoever names its token, once, and no token is given twice."""
        if not reply.is_set:
            return
        known = self._set_by.get(command.writer)
        if known is not None:
            if reply != known:
                raise ViolationError(f"{command.writer} was told {known}, and then {reply}")
            return
        self._set_by[command.writer] = reply
        if self._tokens.get(command.key, 0) != command.token:
            raise ViolationError(f"{command.writer} has changed {command.key} from {command.token}, which it was not")
        if reply.token and reply.token <= self._highest_token:
            raise ViolationError(f"{command.writer} was given token {reply.token} after {self._highest_token}")
        self._world.tally["keys removed"] += not reply.token and bool(command.token)
        self._tokens[command.key] = reply.token
        self._highest_token = max(self._highest_token, reply.token)

    def dealt(self, generation: int, worker_id: str, spans: Spans) -> None:
        """A worker was given a shard lease: nobody else may hold any of it in this generation, or all, if global."""
        positions = span_positions(self._world.order, spans)
        if self._world.dataset["data_order"] is DataOrder.GLOBAL:
            if self._shared.setdefault(generation, positions) != positions:
                raise ViolationError(f"{worker_id} has another rest of the epoch in generation {generation}")
            return
        leases = self._shard_leases.setdefault(generation, {})
        for other, held in leases.items():
            if other != worker_id and held.intersection(positions).count:
                raise ViolationError(f"{worker_id} and {other} hold the same samples in generation {generation}")
        leases[worker_id] = leases.get(worker_id, RangeSet()).union(positions)

    def manifest_written(self, manifest: Manifest) -> None:
        """A manifest is in storage: its model has seen exactly what its cursor says, and nothing twice."""
        model = Counter(self._world.store.model(manifest))
        ledger: Counter[int] = Counter()
        for row in json.loads(manifest.cursors):
            cursor = cursor_from_json({name: value for name, value in row.items() if name != "dataset"})
            if isinstance(cursor, GlobalCursor) != (self._world.dataset["data_order"] is DataOrder.GLOBAL):
                raise ViolationError(f"step {manifest.step} has the cursor {cursor}")
            for start, stop in cursor.consumed:
                ledger.update(self._world.order.samples_at(np.arange(start, stop)).tolist())
        if model != ledger:
            raise ViolationError(
                f"step {manifest.step}: the model has seen {sorted(model.elements())}, "
                f"but its cursor says {sorted(ledger.elements())}"
            )

    # The end.

    def check_end(self) -> None:
        """Everyone has finished: each sample was seen once, and each name counted once."""
        store = self._world.store
        # What was rejected is of a history that nobody went on with. What was lost when all had finished counts.
        lost = {step: manifest for step, manifest in store.lost.items() if self._announced.get(step) is manifest}
        ends = {**lost, **store.manifests}
        last = max(step for step, manifest in ends.items() if self._rejected.get(step) is not manifest)
        model = Counter(store.model(ends[last]))
        self._world.tally["samples"] += model.total()
        if model != Counter(range(self._world.order.total_samples)):
            raise ViolationError(f"the finished epoch was not seen exactly once: {sorted(model.elements())}")
        if self._world.cluster is not None:
            self._check_audit()
            self._check_count()

    def _check_audit(self) -> None:
        audit = self._job().ledger.audit("d", 0)
        if not audit.is_exactly_once:
            raise ViolationError(f"the audit of a finished epoch says: {audit}")
        skipped = [sample for start, stop in audit.skipped for sample in range(start, stop)]
        self._world.tally["skips"] += len(skipped)
        if skipped != sorted(self._world.unreadable):
            raise ViolationError(f"{sorted(self._world.unreadable)} cannot be read, but the audit names {skipped}")

    def _check_count(self) -> None:
        names = self._job().keys.get(KEY).value.decode().split()
        if len(names) != len(set(names)):
            raise ViolationError(f"someone was counted twice: {names}")
        if lost := self._counted - set(names):
            raise ViolationError(f"{sorted(lost)} were told that they are counted, and are not")
        if wrong := self._not_counted & set(names):
            raise ViolationError(f"{sorted(wrong)} were told that they are not counted, and are")

    def _job(self) -> Job:
        assert self._world.cluster is not None
        return self._world.cluster.job(self._world.job_id)
