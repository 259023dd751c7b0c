"""What the model has seen of each epoch, and what each worker is to read of the rest."""

from __future__ import annotations

import json
from collections.abc import Iterable
from dataclasses import replace
from typing import Any

from strata.cluster.commands import LeaseShards, RegisterDataset, ReportProgress, SkipSamples
from strata.cluster.ledger.deals import LARGE_SHARDS, Deal, LeasedDeal, Preparation, deal
from strata.cluster.ledger.epoch_ledger import Audit, EpochLedger, EpochView
from strata.cluster.validation import read_cursors
from strata.errors import (
    DatasetConflictError,
    OutOfOrderError,
    QuotaExceededError,
    SavedDatasetError,
    UnknownDatasetError,
)
from strata.sharding import Assignment, DatasetParams, RangeSet
from strata.sharding.cursor import Spans

# Who owns which shard is kept for each of them.
MAX_SHARDS_PER_DATASET = 20_000_000


class Ledger:
    """The datasets of a job, its progress in them, and what was dealt in the present generation."""

    def __init__(self) -> None:
        self.datasets: dict[str, DatasetParams] = {}
        self._epochs: dict[tuple[str, int], EpochLedger] = {}
        self._assignments: dict[str, Assignment] = {}
        # Of the present generation: who owns what, and what was dealt of it.
        self._assigned: dict[str, Assignment] = {}
        self._deals: dict[tuple[str, int], Deal] = {}
        # Worked out in a thread, and not yet part of the state: without an epoch only who owns what.
        self._prepared: dict[tuple[str, int | None], tuple[Preparation, Assignment, Deal | None]] = {}
        self._sequences: dict[str, tuple[str, int]] = {}
        self._skipped: dict[str, RangeSet] = {}

    def register(self, command: RegisterDataset) -> None:
        """Make a dataset known, or raise if it is registered with other parameters."""
        params = DatasetParams(
            dataset_id=command.dataset_id,
            total_samples=command.total_samples,
            shard_size=command.shard_size,
            shuffle=command.shuffle,
            seed=command.seed,
            data_order=command.data_order,
            window_shards=command.window_shards,
        )
        _check_size(params)
        known = self.datasets.setdefault(command.dataset_id, params)
        if known != params:
            registered, given = _describe_difference(known, params)
            raise DatasetConflictError(params.dataset_id, registered=registered, given=given)

    def is_dealt(self) -> bool:
        """Whether data of this generation was dealt."""
        return bool(self._deals)

    def lease_shards(self, command: LeaseShards, workers: tuple[str, ...]) -> Spans:
        """Return a worker's rows (shard, start, stop); what is left is dealt at the first call of a generation."""
        if command.sequence < 1:
            raise ValueError(f"sequence is {command.sequence}; use 1 or more")
        key = command.dataset_id, command.epoch
        dealt = self._deals.get(key)
        if dealt is not None:
            return dealt.take(command.worker_id, command.sequence)
        assignment, dealt = self._work_out(*key, workers)
        assert dealt is not None
        # It is kept only if there is something to give: whoever is refused leaves nothing behind.
        spans = dealt.take(command.worker_id, command.sequence)
        self._prepared.pop(key, None)
        self._epoch(*key)
        self._assigned[command.dataset_id] = self._assignments[command.dataset_id] = assignment
        self._deals[key] = dealt
        return spans

    def assign_shards(self, dataset_id: str, workers: tuple[str, ...]) -> None:
        """Assign the shards of a dataset to the present workers: as they were assigned last, and moving few."""
        if dataset_id in self._assigned:
            return
        assignment, _ = self._work_out(dataset_id, None, workers)
        self._prepared.pop((dataset_id, None), None)
        self._assigned[dataset_id] = self._assignments[dataset_id] = assignment

    def assignment(self, dataset_id: str) -> Assignment | None:
        """Return who owns which shard in this generation, or None if its shards are not assigned yet."""
        if dataset_id not in self.datasets:
            raise UnknownDatasetError(dataset_id, known=self.datasets)
        return self._assigned.get(dataset_id)

    def preparation(self, dataset_id: str, epoch: int | None, workers: tuple[str, ...]) -> Preparation | None:
        """Return what is to be worked out in a thread before a lease, or without an epoch a lookup, is answered.

        None says that it can be answered at once: the dataset is small, or it was worked out before.
        """
        if dataset_id not in self.datasets or self.datasets[dataset_id].num_shards < LARGE_SHARDS or not workers:
            return None
        if dataset_id in self._assigned if epoch is None else (dataset_id, epoch) in self._deals:
            return None
        preparation = self._prepare(dataset_id, epoch, workers)
        prepared = self._prepared.get((dataset_id, epoch))
        return None if prepared is not None and prepared[0].is_same(preparation) else preparation

    def take_over(
        self, preparation: Preparation, workers: tuple[str, ...], assignment: Assignment, dealt: Deal | None
    ) -> None:
        """Keep what a preparation came to, if it is still of use to these workers; nothing that lasts is changed."""
        dataset_id = preparation.params.dataset_id
        epoch = None if preparation.view is None else preparation.view.order.epoch
        if preparation.is_same(self._prepare(dataset_id, epoch, workers)):
            self._prepared[dataset_id, epoch] = preparation, assignment, dealt
            self._prepared[dataset_id, None] = replace(preparation, view=None), assignment, None

    def report(self, command: ReportProgress) -> None:
        """Note what a worker's model has seen; a report that was noted before changes nothing."""
        incarnation, last = self._sequences.get(command.worker_id, ("", 0))
        if incarnation != command.incarnation:
            last = 0
        if command.sequence <= last:
            return
        if command.sequence > last + 1:
            raise OutOfOrderError(command.worker_id, what="report", expected=last + 1, sent=command.sequence)
        key = command.dataset_id, command.epoch
        epoch_ledger = self._epochs.get(key) or self._new_epoch(*key)
        epoch_ledger.add(command.step, command.spans, is_passed_over=command.is_passed_over)
        # Kept only now: a report that is refused begins no epoch.
        self._epochs[key] = epoch_ledger
        self._sequences[command.worker_id] = command.incarnation, command.sequence

    def check_reported(self, worker_id: str, sequence: int) -> None:
        """Raise unless all of a worker's reports of this generation up to ``sequence`` are in."""
        _, last = self._sequences.get(worker_id, ("", 0))
        if last < sequence:
            raise OutOfOrderError(worker_id, what="part", expected=last + 1, sent=sequence + 1)

    def forget_workers(self, workers: Iterable[str]) -> None:
        """Forget the reports' numbers of workers that are long gone."""
        for worker_id in workers:
            self._sequences.pop(worker_id, None)

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
        rows = []
        for (dataset_id, _), epoch_ledger in sorted(self._epochs.items()):
            cursor = epoch_ledger.cursor(step)
            row = {"dataset": self.datasets[dataset_id].to_json(), **cursor.to_json()}
            passed_over = epoch_ledger.passed_over(cursor.consumed)
            if passed_over.count:
                row["passed_over"] = passed_over.to_runs()
            rows.append(row)
        return json.dumps(rows, separators=(",", ":"))

    def settle(self, step: int) -> None:
        """A checkpoint of ``step`` is committed."""
        for epoch_ledger in self._epochs.values():
            epoch_ledger.settle(step)

    def change_generation(self) -> None:
        """Take all leases back; they are dealt anew when they are asked for."""
        self._deals.clear()
        self._assigned.clear()
        self._sequences.clear()
        self._prepared.clear()

    def roll_back(self, cursors: str) -> None:
        """Go back to the cursors of a checkpoint; datasets and epochs that it does not name were not begun.

        Datasets that only the checkpoint knows, because the coordinator's own state was lost, become known by it.
        """
        datasets: dict[str, DatasetParams] = {}
        restored: dict[tuple[str, int], tuple[RangeSet, RangeSet]] = {}
        for params, cursor, passed_over in read_cursors(cursors):
            _check_size(params)
            known = self.datasets.get(params.dataset_id, params)
            if known != params:
                registered, saved = _describe_difference(known, params)
                raise SavedDatasetError(params.dataset_id, registered=registered, saved=saved)
            datasets[params.dataset_id] = params
            restored[params.dataset_id, cursor.epoch] = cursor.consumed, passed_over
        self.datasets.update(datasets)
        for dataset_id, epoch in restored:
            self._epoch(dataset_id, epoch)
        for key, epoch_ledger in self._epochs.items():
            epoch_ledger.roll_back(*restored.get(key, (RangeSet(), RangeSet())))

    def audit(self, dataset_id: str, epoch: int) -> Audit:
        """Say how many samples of an epoch the model has not seen and how many more than once, and name the first."""
        view, skipped = self.to_audit(dataset_id, epoch)
        return view.audit(skipped)

    def to_audit(self, dataset_id: str, epoch: int) -> tuple[EpochView, RangeSet]:
        """Return what an audit looks at, as values that nobody changes: the epoch, and what could not be read."""
        epoch_ledger = self._epochs.get((dataset_id, epoch)) or self._new_epoch(dataset_id, epoch)
        return epoch_ledger.view(), self._skipped.get(dataset_id, RangeSet())

    def copy(
        self, *, newest_epochs: int
    ) -> list[tuple[DatasetParams, tuple[EpochView, ...], Assignment | None, RangeSet]]:
        """Return each dataset with its newest epochs, who owns its shards if that is known, and what was skipped.

        All of it are values that nobody changes, for who looks at them in another thread.
        """
        epochs: dict[str, list[int]] = {}
        for dataset_id, epoch in self._epochs:
            epochs.setdefault(dataset_id, []).append(epoch)
        return [
            (
                params,
                tuple(
                    self._epochs[dataset_id, epoch].view()
                    for epoch in sorted(epochs.get(dataset_id, ()))[-newest_epochs:]
                ),
                self._assigned.get(dataset_id),
                self._skipped.get(dataset_id, RangeSet()),
            )
            for dataset_id, params in self.datasets.items()
        ]

    def record(self) -> dict[str, Any]:
        """Return what must survive a restart of the coordinator."""
        return {
            "datasets": [params.to_json() for params in self.datasets.values()],
            "epochs": [[*key, epoch_ledger.record()] for key, epoch_ledger in sorted(self._epochs.items())],
            "assignments": [assignment for _, assignment in sorted(self._assignments.items())],
            "deals": [[*key, dealt.record()] for key, dealt in sorted(self._deals.items())],
            "sequences": {worker: list(last) for worker, last in sorted(self._sequences.items())},
            "skipped": [[name, skipped.to_runs()] for name, skipped in sorted(self._skipped.items())],
        }

    def restore(self, record: dict[str, Any], workers: tuple[str, ...]) -> None:
        """Take over what :meth:`record` returned while ``workers`` are present."""
        present = tuple(sorted(workers))
        for row in record["datasets"]:
            self.datasets[row["dataset_id"]] = DatasetParams.from_json(row)
        for dataset_id, epoch, row in record["epochs"]:
            self._epoch(dataset_id, epoch).restore(row)
        for data in record["assignments"]:
            assignment = Assignment.from_bytes(bytes.fromhex(data))
            self._assignments[assignment.dataset_id] = assignment
            if assignment.workers == present:
                # Assigning again would move nothing.
                self._assigned[assignment.dataset_id] = assignment
        for dataset_id, epoch, row in record["deals"]:
            consumed, workers = RangeSet.from_runs(row["consumed"]), tuple(row["workers"])
            dealt = deal(self.datasets[dataset_id], epoch, consumed, workers, self._assignments[dataset_id])
            if isinstance(dealt, LeasedDeal):
                dealt.restore(row)
            self._deals[dataset_id, epoch] = dealt
        self._sequences = {worker: (incarnation, n) for worker, (incarnation, n) in record["sequences"].items()}
        self._skipped = {name: RangeSet.from_runs(runs) for name, runs in record["skipped"]}

    def _work_out(self, dataset_id: str, epoch: int | None, workers: tuple[str, ...]) -> tuple[Assignment, Deal | None]:
        """Return who owns what, and with an epoch what was dealt of it: from the thread that prepared it, or now."""
        preparation = self._prepare(dataset_id, epoch, workers)
        prepared = self._prepared.get((dataset_id, epoch))
        if prepared is not None and prepared[0].is_same(preparation):
            return prepared[1], prepared[2]
        return preparation.run()

    def _prepare(self, dataset_id: str, epoch: int | None, workers: tuple[str, ...]) -> Preparation:
        if dataset_id not in self.datasets:
            raise UnknownDatasetError(dataset_id, known=self.datasets)
        view = None
        if epoch is not None:
            view = (self._epochs.get((dataset_id, epoch)) or self._new_epoch(dataset_id, epoch)).view()
        previous, known = self._assignments.get(dataset_id), self._assigned.get(dataset_id)
        return Preparation(self.datasets[dataset_id], workers, previous, known, view)

    def _epoch(self, dataset_id: str, epoch: int) -> EpochLedger:
        key = dataset_id, epoch
        if key not in self._epochs:
            self._epochs[key] = self._new_epoch(dataset_id, epoch)
        return self._epochs[key]

    def _new_epoch(self, dataset_id: str, epoch: int) -> EpochLedger:
        if dataset_id not in self.datasets:
            raise UnknownDatasetError(dataset_id, known=self.datasets)
        return EpochLedger(self.datasets[dataset_id].order(epoch=epoch))


def _check_size(params: DatasetParams) -> None:
    if params.num_shards > MAX_SHARDS_PER_DATASET:
        raise QuotaExceededError("shards in one dataset", limit=MAX_SHARDS_PER_DATASET)


def _describe_difference(known: DatasetParams, given: DatasetParams) -> tuple[str, str]:
    """Return the parameters in which two records of a dataset differ, as each has them."""
    one, other = known.to_json(), given.to_json()
    differ = [name for name in {**one, **other} if one.get(name) != other.get(name)]
    told = [", ".join(f"{name}={each.get(name)}" for name in differ) for each in (one, other)]
    return told[0], told[1]
