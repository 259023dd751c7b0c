"""What the model has seen of each epoch, and what each worker is to read of the rest."""

from __future__ import annotations

import json
from dataclasses import dataclass
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
)
from strata.sharding.cursor import Spans
from strata.sharding.permutation import Ints

Span = tuple[int, int, int]


@dataclass(frozen=True)
class Audit:
    """What the model has seen of an epoch: all of it once, or exactly where it has not."""

    total_samples: int
    missing: Ints
    repeated: Ints

    @property
    def is_exactly_once(self) -> bool:
        """Whether every sample was seen, and none twice."""
        return len(self.missing) == len(self.repeated) == 0


class EpochLedger:
    """The consumed positions of one epoch: what a checkpoint holds, and what came after it, step by step.

    Reports are only kept when they come, and put together when someone asks: reports come by the thousand in a second,
    and questions with a checkpoint or a change of workers.
    """

    def __init__(self, order: EpochOrder) -> None:
        self.order = order
        self._base = RangeSet()
        self._repeated = RangeSet()
        self._later: list[tuple[int, tuple[Span, ...]]] = []

    @property
    def consumed(self) -> RangeSet:
        """What the model has seen until now."""
        return self._total(self._later)[0]

    @property
    def repeated(self) -> RangeSet:
        """What the model has seen more than once since it was last rolled back."""
        return self._repeated.union(self._total(self._later)[1])

    def add(self, step: int, spans: tuple[Span, ...]) -> None:
        """Note that the model has seen these samples in ``step``; seeing one again is noted too, not hidden."""
        for shard, start, stop in spans:
            if not 0 <= shard < self.order.num_shards:
                raise ValueError(f"shard {shard} of a dataset that has 0 to {self.order.num_shards - 1}")
            length = min(self.order.shard_size, self.order.total_samples - shard * self.order.shard_size)
            if not 0 <= start <= stop <= length:
                raise ValueError(f"samples {start} to {stop} of shard {shard}, which has {length}")
        self._later.append((step, spans))

    def cut(self, step: int) -> RangeSet:
        """Return what the model of exactly ``step`` has seen."""
        return self._total([(at_step, spans) for at_step, spans in self._later if at_step <= step])[0]

    def settle(self, step: int) -> None:
        """Fold what a committed checkpoint of ``step`` holds into one set; cuts before it are not asked for again."""
        before = [(at_step, spans) for at_step, spans in self._later if at_step <= step]
        self._base, repeated = self._total(before)
        self._repeated = self._repeated.union(repeated)
        self._later = [(at_step, spans) for at_step, spans in self._later if at_step > step]

    def roll_back(self, consumed: RangeSet) -> None:
        """Forget everything but what a restored checkpoint has seen."""
        self._base, self._repeated, self._later = consumed, RangeSet(), []

    def record(self) -> dict[str, Any]:
        """Return what must survive a restart of the coordinator."""
        return {"base": self._base.to_runs(), "repeated": self._repeated.to_runs(), "later": self._later}

    def restore(self, record: dict[str, Any]) -> None:
        """Take over what :meth:`record` returned."""
        self._base, self._repeated = RangeSet.from_runs(record["base"]), RangeSet.from_runs(record["repeated"])
        self._later = [(step, tuple((a, b, c) for a, b, c in spans)) for step, spans in record["later"]]

    def _total(self, reports: list[tuple[int, tuple[Span, ...]]]) -> tuple[RangeSet, RangeSet]:
        """Return what the base and the reports hold together, and what more than one of them holds."""
        rows = np.array([span for _, spans in reports for span in spans], dtype=np.int64).reshape(-1, 3)
        begins = self.order.begins_of(self.order.ranks_of(rows[:, 0]))
        starts = np.append(self._base.starts, begins + rows[:, 1])
        stops = np.append(self._base.stops, begins + rows[:, 2])
        return RangeSet(starts, stops), RangeSet.covered_twice(starts, stops)


class Ledger:
    """The datasets of a job, its progress in them, and the hands of the present generation."""

    def __init__(self) -> None:
        self.datasets: dict[str, DatasetParams] = {}
        self._epochs: dict[tuple[str, int], EpochLedger] = {}
        self._assignments: dict[str, Assignment] = {}
        # Of the present generation: who owns what, which follows from the above, and what was dealt of it.
        self._assigned: dict[str, Assignment] = {}
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
            self._assignments[dataset_id] = assignment = self.assignment(dataset_id, workers)
            cursor = StickyCursor(epoch, epoch_ledger.consumed)
            self._hands[key] = cursor.deal(epoch_ledger.order, dataset_id, workers, assignment)
        return self._hands[key][worker_id]

    def assignment(self, dataset_id: str, workers: tuple[str, ...]) -> Assignment:
        """Return who owns which shard while these workers are present; asking changes nothing that lasts."""
        if dataset_id not in self._assigned:
            if dataset_id not in self.datasets:
                raise UnknownDatasetError(dataset_id, known=self.datasets)
            num_shards = self.datasets[dataset_id].order(epoch=0).num_shards
            self._assigned[dataset_id] = assign(dataset_id, num_shards, workers, self._assignments.get(dataset_id))
        return self._assigned[dataset_id]

    def report(self, command: ReportProgress) -> bool:
        """Note what a worker's model has seen; return False for a report that was noted before."""
        incarnation, last = self._sequences.get(command.worker_id, ("", 0))
        if incarnation != command.incarnation:
            last = 0
        if command.sequence <= last:
            return False
        if command.sequence > last + 1:
            raise OutOfOrderError(command.worker_id, expected=last + 1, sent=command.sequence)
        self._epoch(command.dataset_id, command.epoch).add(command.step, command.spans)
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
        self._assigned.clear()

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

    def audit(self, dataset_id: str, epoch: int) -> Audit:
        """Say exactly which samples of an epoch the model has not seen, and which it has seen more than once."""
        epoch_ledger = self._epoch(dataset_id, epoch)
        order, consumed = epoch_ledger.order, epoch_ledger.consumed
        missing = consumed.complement(order.total_samples)
        return Audit(order.total_samples, _samples(order, missing), _samples(order, epoch_ledger.repeated))

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


def _samples(order: EpochOrder, positions: RangeSet) -> Ints:
    """Return the samples at these positions, ascending."""
    runs = [np.arange(start, stop) for start, stop in positions]
    return np.sort(order.samples_at(np.concatenate(runs))) if runs else np.empty(0, dtype=np.int64)
