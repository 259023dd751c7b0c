"""What the model has seen of each epoch, and what each worker is to read of the rest."""

from __future__ import annotations

import json
from typing import Any

import numpy as np

from strata.cluster.commands import RegisterDataset, ReportProgress
from strata.errors import DamagedRecordError, OutOfOrderError, UnknownDatasetError
from strata.sharding import (
    Assignment,
    DatasetParams,
    EpochOrder,
    RangeSet,
    StickyCursor,
    assign,
    cursor_from_json,
    span_positions,
)
from strata.sharding.cursor import Spans


class EpochLedger:
    """The consumed positions of one epoch: what a checkpoint holds, and what came after it, step by step."""

    def __init__(self, order: EpochOrder) -> None:
        self.order = order
        self._base = RangeSet()
        self._later: list[tuple[int, RangeSet]] = []
        self.consumed = RangeSet()
        self.repeated = RangeSet()

    def add(self, step: int, positions: RangeSet) -> None:
        """Note that the model has seen these positions in ``step``; seeing one again is noted too, not hidden."""
        self.repeated = self.repeated.union(self.consumed.intersection(positions))
        self.consumed = self.consumed.union(positions)
        self._later.append((step, positions))

    def cut(self, step: int) -> RangeSet:
        """Return what the model of exactly ``step`` has seen."""
        cut = self._base
        for at_step, positions in self._later:
            if at_step <= step:
                cut = cut.union(positions)
        return cut

    def settle(self, step: int) -> None:
        """Fold what a committed checkpoint of ``step`` holds into one set; cuts before it are not asked for again."""
        self._base = self.cut(step)
        self._later = [(at_step, positions) for at_step, positions in self._later if at_step > step]

    def roll_back(self, consumed: RangeSet) -> None:
        """Forget everything but what a restored checkpoint has seen."""
        self._base = self.consumed = consumed
        self._later = []
        self.repeated = RangeSet()

    def record(self) -> dict[str, Any]:
        """Return what must survive a restart of the coordinator."""
        return {
            "base": self._base.to_runs(),
            "later": [[step, positions.to_runs()] for step, positions in self._later],
            "repeated": self.repeated.to_runs(),
        }

    def restore(self, record: dict[str, Any]) -> None:
        """Take over what :meth:`record` returned."""
        self._base = self.consumed = RangeSet.from_runs(record["base"])
        for step, runs in record["later"]:
            self.add(step, RangeSet.from_runs(runs))
        self.repeated = RangeSet.from_runs(record["repeated"])


class Ledger:
    """The datasets of a job, its progress in them, and the hands of the present generation."""

    def __init__(self) -> None:
        self.datasets: dict[str, DatasetParams] = {}
        self._epochs: dict[tuple[str, int], EpochLedger] = {}
        self._assignments: dict[str, Assignment] = {}
        self._hands: dict[tuple[str, int], dict[str, Spans]] = {}
        self._sequences: dict[str, tuple[str, int]] = {}

    def register(self, command: RegisterDataset) -> DatasetParams | None:
        """Make a dataset known; return the one that is registered, if its parameters differ."""
        params = DatasetParams(
            dataset_id=command.dataset_id,
            total_samples=command.total_samples,
            shard_size=command.shard_size,
            shuffle=command.shuffle,
            seed=command.seed,
        )
        known = self.datasets.setdefault(command.dataset_id, params)
        return known if known != params else None

    def has_hands(self) -> bool:
        """Whether data of this generation was dealt."""
        return bool(self._hands)

    def take_hand(self, dataset_id: str, epoch: int, worker_id: str, workers: tuple[str, ...]) -> Spans:
        """Return a worker's rows (shard, start, stop); what is left is dealt at the first call of a generation."""
        key = dataset_id, epoch
        if key not in self._hands:
            epoch_ledger = self._epoch(dataset_id, epoch)
            previous = self._assignments.get(dataset_id)
            assignment = assign(dataset_id, epoch_ledger.order.num_shards, workers, previous)
            self._assignments[dataset_id] = assignment
            cursor = StickyCursor(epoch, epoch_ledger.consumed)
            self._hands[key] = cursor.deal(epoch_ledger.order, dataset_id, workers, assignment)
        return self._hands[key][worker_id]

    def report(self, command: ReportProgress) -> bool:
        """Note what a worker's model has seen; return False for a report that was noted before."""
        incarnation, last = self._sequences.get(command.worker_id, ("", 0))
        if incarnation != command.incarnation:
            last = 0
        if command.sequence <= last:
            return False
        if command.sequence > last + 1:
            raise OutOfOrderError(command.worker_id, expected=last + 1, sent=command.sequence)
        epoch_ledger = self._epoch(command.dataset_id, command.epoch)
        spans = np.array(command.spans, dtype=np.int64).reshape(-1, 3)
        epoch_ledger.add(command.step, span_positions(epoch_ledger.order, spans))
        self._sequences[command.worker_id] = command.incarnation, command.sequence
        return True

    def cut(self, step: int) -> str:
        """Return the cursors of exactly ``step``, as the JSON that goes into the manifest."""
        return json.dumps(
            [
                {"dataset_id": dataset_id, **StickyCursor(epoch, epoch_ledger.cut(step)).to_json()}
                for (dataset_id, epoch), epoch_ledger in sorted(self._epochs.items())
            ],
            separators=(",", ":"),
        )

    def settle(self, step: int) -> None:
        """A checkpoint of ``step`` is committed."""
        for epoch_ledger in self._epochs.values():
            epoch_ledger.settle(step)

    def change_generation(self) -> None:
        """Take all hands back; they are dealt anew when they are asked for."""
        self._hands.clear()

    def roll_back(self, cursors: str) -> None:
        """Go back to the cursors of a checkpoint; datasets and epochs that it does not name were not begun."""
        restored: dict[tuple[str, int], RangeSet] = {}
        for row in json.loads(cursors):
            cursor = cursor_from_json({name: value for name, value in row.items() if name != "dataset_id"})
            if not isinstance(cursor, StickyCursor):
                raise DamagedRecordError("cursor", f"dataset {row['dataset_id']!r} has no sticky cursor")
            restored[row["dataset_id"], cursor.epoch] = cursor.consumed
        for dataset_id, epoch in restored:
            self._epoch(dataset_id, epoch)
        for key, epoch_ledger in self._epochs.items():
            epoch_ledger.roll_back(restored.get(key, RangeSet()))

    def audit(self, dataset_id: str, epoch: int) -> tuple[RangeSet, RangeSet]:
        """Return the positions of an epoch that the model has not seen, and those that it has seen more than once."""
        epoch_ledger = self._epoch(dataset_id, epoch)
        return epoch_ledger.consumed.complement(epoch_ledger.order.total_samples), epoch_ledger.repeated

    def record(self) -> dict[str, Any]:
        """Return what must survive a restart of the coordinator."""
        return {
            "datasets": [
                [p.dataset_id, p.total_samples, p.shard_size, p.shuffle, p.seed] for p in self.datasets.values()
            ],
            "epochs": [[*key, epoch_ledger.record()] for key, epoch_ledger in sorted(self._epochs.items())],
            "assignments": [a.to_bytes().hex() for _, a in sorted(self._assignments.items())],
            "hands": [
                [*key, {worker: spans.tolist() for worker, spans in sorted(hands.items())}]
                for key, hands in sorted(self._hands.items())
            ],
            "sequences": {worker: list(last) for worker, last in sorted(self._sequences.items())},
        }

    def restore(self, record: dict[str, Any]) -> None:
        """Take over what :meth:`record` returned."""
        for dataset_id, total_samples, shard_size, shuffle, seed in record["datasets"]:
            self.datasets[dataset_id] = DatasetParams(
                dataset_id=dataset_id, total_samples=total_samples, shard_size=shard_size, shuffle=shuffle, seed=seed
            )
        for dataset_id, epoch, row in record["epochs"]:
            self._epoch(dataset_id, epoch).restore(row)
        for data in record["assignments"]:
            assignment = Assignment.from_bytes(bytes.fromhex(data))
            self._assignments[assignment.dataset_id] = assignment
        for dataset_id, epoch, hands in record["hands"]:
            self._hands[dataset_id, epoch] = {
                worker: np.array(rows, dtype=np.int64).reshape(-1, 3) for worker, rows in hands.items()
            }
        self._sequences = {worker: (incarnation, n) for worker, (incarnation, n) in record["sequences"].items()}

    def _epoch(self, dataset_id: str, epoch: int) -> EpochLedger:
        if dataset_id not in self.datasets:
            raise UnknownDatasetError(dataset_id, known=self.datasets)
        key = dataset_id, epoch
        if key not in self._epochs:
            self._epochs[key] = EpochLedger(self.datasets[dataset_id].order(epoch=epoch))
        return self._epochs[key]
