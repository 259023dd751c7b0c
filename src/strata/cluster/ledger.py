"""What the model has seen of each epoch, and what each worker is to read of the rest."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np

from strata.cluster.commands import RegisterDataset, ReportProgress, SkipSamples, TakeHand
from strata.cluster.deals import Deal, LeasedDeal, deal
from strata.errors import DamagedRecordError, DatasetConflictError, OutOfOrderError, UnknownDatasetError
from strata.sharding import (
    Assignment,
    DatasetParams,
    EpochOrder,
    GlobalCursor,
    RangeSet,
    StickyCursor,
    assign,
    cursor_from_json,
)
from strata.sharding.cursor import Spans, check_spans, span_ranges

Span = tuple[int, int, int]
# An audit of an epoch of which little was seen looks up so many samples at a time.
AUDIT_STRIDE = 1 << 20


@dataclass(frozen=True)
class Audit:
    """What the model has seen of an epoch: all of it once, or exactly where it has not."""

    total_samples: int
    missing: RangeSet
    repeated: RangeSet
    skipped: RangeSet
    """What of the dataset could not be read, and is left out on purpose; it is neither missing nor repeated."""

    @property
    def is_exactly_once(self) -> bool:
        """Whether every sample that could be read was seen, and none twice."""
        return self.missing.count == self.repeated.count == 0


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
        check_spans(self.order, spans)
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

    def cursor(self, step: int) -> GlobalCursor | StickyCursor:
        """Return the data position of exactly ``step``."""
        consumed = self.cut(step)
        if self.order.window_shards > 1 and consumed == RangeSet([0], [consumed.count]):
            return GlobalCursor(self.order.epoch, consumed.count)
        return StickyCursor(self.order.epoch, consumed)

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
        starts, stops = span_ranges(self.order, rows)
        starts, stops = np.append(self._base.starts, starts), np.append(self._base.stops, stops)
        return RangeSet(starts, stops), RangeSet.covered_twice(starts, stops)


class Ledger:
    """The datasets of a job, its progress in them, and what was dealt in the present generation."""

    def __init__(self) -> None:
        self.datasets: dict[str, DatasetParams] = {}
        self._epochs: dict[tuple[str, int], EpochLedger] = {}
        self._assignments: dict[str, Assignment] = {}
        # Of the present generation: who owns what, which follows from the above, and what was dealt of it.
        self._assigned: dict[str, Assignment] = {}
        self._deals: dict[tuple[str, int], Deal] = {}
        self._sequences: dict[str, tuple[str, int]] = {}
        self._skipped: dict[str, RangeSet] = {}

    def register(self, command: RegisterDataset) -> DatasetParams | None:
        """Make a dataset known; return the one that is registered, if its parameters differ."""
        params = DatasetParams(
            dataset_id=command.dataset_id,
            total_samples=command.total_samples,
            shard_size=command.shard_size,
            shuffle=command.shuffle,
            seed=command.seed,
            data_order=command.data_order,
        )
        known = self.datasets.setdefault(command.dataset_id, params)
        return known if known != params else None

    def is_dealt(self) -> bool:
        """Whether data of this generation was dealt."""
        return bool(self._deals)

    def take_hand(self, command: TakeHand, workers: tuple[str, ...]) -> Spans:
        """Return a worker's rows (shard, start, stop); what is left is dealt at the first call of a generation."""
        if command.ticket < 1:
            raise ValueError(f"ticket is {command.ticket}; use 1 or more")
        dataset_id, epoch = key = command.dataset_id, command.epoch
        if key not in self._deals:
            consumed = self._epoch(dataset_id, epoch).consumed
            self._assignments[dataset_id] = assignment = self.assignment(dataset_id, workers)
            self._deals[key] = deal(self.datasets[dataset_id], epoch, consumed, workers, assignment)
        return self._deals[key].take(command.worker_id, command.ticket)

    def assignment(self, dataset_id: str, workers: tuple[str, ...]) -> Assignment:
        """Return who owns which shard while these workers are present; asking changes nothing that lasts."""
        if dataset_id not in self._assigned:
            if dataset_id not in self.datasets:
                raise UnknownDatasetError(dataset_id, known=self.datasets)
            num_shards = self.datasets[dataset_id].num_shards
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
            raise OutOfOrderError(command.worker_id, what="report", expected=last + 1, sent=command.sequence)
        self._epoch(command.dataset_id, command.epoch).add(command.step, command.spans)
        self._sequences[command.worker_id] = command.incarnation, command.sequence
        return True

    def skip(self, command: SkipSamples) -> bool:
        """Note samples that could not be read; return False if that was noted before. A rollback leaves it noted."""
        if command.dataset_id not in self.datasets:
            raise UnknownDatasetError(command.dataset_id, known=self.datasets)
        total = self.datasets[command.dataset_id].total_samples
        if not 0 <= command.start < command.stop <= total:
            raise ValueError(f"samples {command.start} to {command.stop} of a dataset that has {total}")
        known = self._skipped.get(command.dataset_id, RangeSet())
        self._skipped[command.dataset_id] = known.union(RangeSet([command.start], [command.stop]))
        return self._skipped[command.dataset_id] != known

    def cut(self, step: int) -> str:
        """Return the cursors of exactly ``step``, as the JSON that goes into the manifest.

        A cursor comes with its dataset's parameters: a position means nothing without them.
        """
        return json.dumps(
            [
                {"dataset": self.datasets[dataset_id].to_json(), **epoch_ledger.cursor(step).to_json()}
                for (dataset_id, _), epoch_ledger in sorted(self._epochs.items())
            ],
            separators=(",", ":"),
        )

    def settle(self, step: int) -> None:
        """A checkpoint of ``step`` is committed."""
        for epoch_ledger in self._epochs.values():
            epoch_ledger.settle(step)

    def change_generation(self) -> None:
        """Take all hands back; they are dealt anew when they are asked for."""
        self._deals.clear()
        self._assigned.clear()

    def roll_back(self, cursors: str) -> None:
        """Go back to the cursors of a checkpoint; datasets and epochs that it does not name were not begun.

        Datasets that only the checkpoint knows, because the coordinator's own state was lost, become known by it.
        """
        datasets: dict[str, DatasetParams] = {}
        restored: dict[tuple[str, int], RangeSet] = {}
        for params, cursor in _read_cursors(cursors):
            known = self.datasets.get(params.dataset_id, params)
            if known != params:
                raise DatasetConflictError(params.dataset_id, registered=repr(known), given=repr(params))
            datasets[params.dataset_id] = params
            restored[params.dataset_id, cursor.epoch] = cursor.consumed
        self.datasets.update(datasets)
        for dataset_id, epoch in restored:
            self._epoch(dataset_id, epoch)
        for key, epoch_ledger in self._epochs.items():
            epoch_ledger.roll_back(restored.get(key, RangeSet()))

    def audit(self, dataset_id: str, epoch: int) -> Audit:
        """Say exactly which samples of an epoch the model has not seen, and which it has seen more than once."""
        epoch_ledger = self._epochs.get((dataset_id, epoch)) or self._new_epoch(dataset_id, epoch)
        order, consumed = epoch_ledger.order, epoch_ledger.consumed
        missing = consumed.complement(order.total_samples)
        skipped = self._skipped.get(dataset_id, RangeSet())
        return Audit(order.total_samples, _samples(order, missing), _samples(order, epoch_ledger.repeated), skipped)

    def record(self) -> dict[str, Any]:
        """Return what must survive a restart of the coordinator."""
        return {
            "datasets": [params.to_json() for params in self.datasets.values()],
            "epochs": [[*key, epoch_ledger.record()] for key, epoch_ledger in sorted(self._epochs.items())],
            "assignments": [a.to_bytes().hex() for _, a in sorted(self._assignments.items())],
            "deals": [[*key, dealt.record()] for key, dealt in sorted(self._deals.items())],
            "sequences": {worker: list(last) for worker, last in sorted(self._sequences.items())},
            "skipped": [[name, skipped.to_runs()] for name, skipped in sorted(self._skipped.items())],
        }

    def restore(self, record: dict[str, Any]) -> None:
        """Take over what :meth:`record` returned."""
        for row in record["datasets"]:
            self.datasets[row["dataset_id"]] = DatasetParams.from_json(row)
        for dataset_id, epoch, row in record["epochs"]:
            self._epoch(dataset_id, epoch).restore(row)
        for data in record["assignments"]:
            assignment = Assignment.from_bytes(bytes.fromhex(data))
            self._assignments[assignment.dataset_id] = assignment
        for dataset_id, epoch, row in record["deals"]:
            consumed, workers = RangeSet.from_runs(row["consumed"]), tuple(row["workers"])
            dealt = deal(self.datasets[dataset_id], epoch, consumed, workers, self._assignments[dataset_id])
            if isinstance(dealt, LeasedDeal):
                dealt.restore(row)
            self._deals[dataset_id, epoch] = dealt
        self._sequences = {worker: (incarnation, n) for worker, (incarnation, n) in record["sequences"].items()}
        self._skipped = {name: RangeSet.from_runs(runs) for name, runs in record["skipped"]}

    def _epoch(self, dataset_id: str, epoch: int) -> EpochLedger:
        key = dataset_id, epoch
        if key not in self._epochs:
            self._epochs[key] = self._new_epoch(dataset_id, epoch)
        return self._epochs[key]

    def _new_epoch(self, dataset_id: str, epoch: int) -> EpochLedger:
        if dataset_id not in self.datasets:
            raise UnknownDatasetError(dataset_id, known=self.datasets)
        return EpochLedger(self.datasets[dataset_id].order(epoch=epoch))


def _read_cursors(cursors: str) -> Iterator[tuple[DatasetParams, GlobalCursor | StickyCursor]]:
    """Return what :meth:`Ledger.cut` wrote, or raise DamagedRecordError."""
    for row in json.loads(cursors):
        match row:
            case {"dataset": params, **cursor}:
                yield DatasetParams.from_json(params), cursor_from_json(cursor)
            case _:
                raise DamagedRecordError("cursor", f"{str(row)[:80]!r} does not name its dataset")


def _samples(order: EpochOrder, positions: RangeSet) -> RangeSet:
    """Return the samples at these positions."""
    if not order.shuffle:
        return positions
    found = RangeSet()
    for start, stop in positions:
        for begin in range(start, stop, AUDIT_STRIDE):
            samples = order.samples_at(np.arange(begin, min(begin + AUDIT_STRIDE, stop)))
            found = found.union(RangeSet(samples, samples + 1))
    return found
