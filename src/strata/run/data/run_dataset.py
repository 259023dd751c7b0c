"""A dataset as a run holds it: its work comes from the team, and what was delivered of it is reported by steps."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import PurePosixPath
from typing import Any
from urllib.parse import urlsplit

import numpy as np

from strata import ids
from strata.checkpoint.commit.protocol import LEDGER
from strata.checkpoint.format.rewind_record import BatchRange, find_skips
from strata.checkpoint.load.restore import Restored
from strata.cluster.values import RankInfo
from strata.data.dataset import Dataset
from strata.data.dataset_plan import Plan
from strata.data.loading.batches import Batch
from strata.data.loading.dealer import Dealer
from strata.data.option_checks import check_whole
from strata.data.rows.skips import SkippedRows
from strata.data.text.assembled import AssembledDataset
from strata.errors import RewindError
from strata.run.data.batch_numbers import BatchNumbers
from strata.run.data.blocks import Block, count_rows, cut_batch
from strata.run.data.dataset_sources import (
    DatasetOptions,
    Source,
    open_source,
    register_sources,
    take_assembled,
    take_open,
)
from strata.run.team.dataset_options import describe_options
from strata.run.team.protocol import Progress, Team
from strata.sharding import DatasetParams, cursor_from_json
from strata.sharding.cursor import Spans

# Between the name of a packed dataset and the rank, where a checkpoint keeps what the rank carried over.
_CARRY = "/carry/"


class RunDataset:
    """Batches of this worker's share; every sample of an epoch is delivered once, over all workers and restarts."""

    def __init__(
        self,
        name: str,
        dataset: Dataset,
        params: DatasetParams,
        team: Team,
        rank_info: RankInfo,
        *,
        block_size: int,
        skip_homes: Sequence[tuple[int, str]],
        assembled: AssembledDataset | None = None,
    ) -> None:
        """``skip_homes`` says from which row on skipped rows are of which dataset, for a mixture has several.

        ``assembled`` makes the batches of the dataset's documents, where these are packed.
        """
        self.name = name
        self._dataset = dataset
        self._assembled = assembled
        self._source: Dataset | AssembledDataset = dataset if assembled is None else assembled
        self._params = params
        self._team = team
        self._block_size = block_size
        self._unreported: list[tuple[int, Spans]] = []
        self._step = 0
        self._dealer: Dealer | None = None
        self._rank_info = rank_info
        self._skip_homes = skip_homes
        self._told: set[SkippedRows] = set()
        # The number of the last batch that was handed out or passed over, and which ones are to be passed over.
        self._number = 0
        self._skips: tuple[BatchRange, ...] = ()
        self._passed_over: list[tuple[int, int, Spans]] = []
        # A pass that a loop has begun and may have left: the coordinator deals for it once in a generation. So one that
        # failed cannot go on before the next.
        self._pass: Iterator[Batch] | None = None
        self._failure: Exception | None = None
        # The epoch that is about to end: all batches left of it are empty for this worker.
        self._ending_epoch: int | None = None
        self.passed = 0
        """How many batches were passed over since the last step."""

    @classmethod
    def open(
        cls,
        team: Team,
        rank_info: RankInfo,
        source: Source,
        *,
        name: str | None,
        block_size: int,
        options: DatasetOptions,
    ) -> RunDataset:
        """Open rows from a URL, or take those that are given, and make them known to the job."""
        check_whole("block_size", block_size, least=1)
        redirect = _Redirect()
        dealer = None if team.client is None else redirect.take_plan
        assembled = None
        if isinstance(source, AssembledDataset):
            assembled = take_assembled(source, options, dealer)
            dataset = assembled.dataset
        else:
            dataset = (
                take_open(source, options, dealer)
                if isinstance(source, Dataset)
                else open_source(source, options, dealer)
            )
        url = os.fspath(source) if isinstance(source, str | os.PathLike) else type(source).__name__
        params = DatasetParams.of(dataset.plan.layout, name or _name_of(url))
        described = describe_options(dataset, block_size=block_size)
        team.register(params, options=described | ({} if assembled is None else assembled.agreement()), url=url)
        homes = register_sources(team, dataset, params.dataset_id, url)
        opened = cls(
            params.dataset_id,
            dataset,
            params,
            team,
            rank_info,
            block_size=block_size,
            skip_homes=homes,
            assembled=assembled,
        )
        if team.client is not None:
            redirect.owner = opened
            opened.enter(rank_info, epoch=0)
        return opened

    @property
    def epoch(self) -> int:
        """The epoch that the next batch is of: after the last batch of one it is the next."""
        return self._source.epoch if self._ending_epoch is None else self._ending_epoch

    @property
    def num_rows(self) -> int:
        """How many samples an epoch has, for all workers together; of a packed dataset, how many documents."""
        return self._dataset.num_rows

    @property
    def steps_per_epoch(self) -> int | None:
        """How many batches an epoch has; None where only the loop can tell."""
        return self._numbers.per_epoch if self._has_numbers else None

    @property
    def _numbers(self) -> BatchNumbers:
        plan = self._dataset.plan
        return BatchNumbers(
            total_samples=self.num_rows, batch_size=plan.global_batch_size, drop_last=plan.options.drop_last
        )

    def describe_batches(self) -> dict[str, Any] | None:
        """Return what a manifest keeps so that its batches can be counted; None where they have no numbers."""
        return self._numbers.to_json() if self._has_numbers else None

    @property
    def _has_numbers(self) -> bool:
        # What is packed or bucketed has as many batches as its documents make.
        return self._params.is_global and self._assembled is None

    @property
    def is_even(self) -> bool:
        """Whether all workers get as many batches of an epoch."""
        return self._params.is_global

    def is_over_for_all(self, epochs: int) -> bool:
        """Whether no worker has a batch left of so many epochs, by the checkpoint that all have just restored.

        Of a packed dataset nobody knows that of the others: each may have documents that it carried over.
        """
        return self._assembled is None and self.epoch >= epochs

    def __iter__(self) -> Iterator[Batch]:
        """Yield this worker's batches; in global order some may be empty, so that all workers get as many.

        A pass that was left early goes on with its next batch, if it has one. Batches that a rewind skips are read and
        passed over, on all workers alike.
        """
        batches = self._go_on()
        while True:
            is_skipped = any(first <= self._number + 1 <= last for first, last in self._skips)
            if is_skipped:
                # What was handed out before is of the step before.
                self._unreported += self._dataset.delivered()
            batch = next(batches, None)
            if batch is None:
                return
            self._number += 1
            if not is_skipped:
                yield batch
                continue
            self.passed += 1
            # They are of the next step: a cut of the last one is without them, whoever has reported them by then.
            self._passed_over += [(self._step + 1, epoch, spans) for epoch, spans in self._dataset.delivered()]

    def blocks(self, batch: Batch) -> list[Block]:
        """Cut the batch that was handed out last into the fixed blocks of the global batch that this worker has of it.

        All blocks of a global batch, over all workers in the order of ranks, are the same for any number of workers.
        """
        options, plan = self._dataset.plan.options, self._dataset.plan
        for is_so, what in (
            (not self._params.is_global, f"order={str(self._params.data_order)!r}: its batches depend on the workers"),
            (self._assembled is not None, "packed documents: which sequences they become depends on the workers"),
            (options.filter is not None, "a filter: a block would lose samples"),
            (plan.on_error == "skip", "on_error='skip': a block would lose samples"),
        ):
            if is_so:
                raise ValueError(f"dataset {self.name!r} has no fixed blocks with {what}")
        num_rows = count_rows(batch)
        if num_rows == 0:
            return []
        ((_, start, stop),) = self._dataset.last_rows
        if num_rows != stop - start:
            raise ValueError(
                f"the batch has {num_rows} rows for {stop - start} samples of dataset {self.name!r}; blocks need a "
                "transform that returns one row for each, and the batch that was handed out last"
            )
        return cut_batch(batch, start, block_size=self._block_size)

    def _go_on(self) -> Iterator[Batch]:
        if self._failure is not None:
            raise self._failure
        current = self._pass
        batch = None if current is None else next(current, None)
        if batch is None:
            current = self._pass = self._all_batches()
            batch = next(current, None)
        while batch is not None:
            assert current is not None
            yield batch
            batch = next(current, None)

    def _all_batches(self) -> Iterator[Batch]:
        shape: Batch | None = None
        epoch = self._source.epoch
        try:
            for batch in self._source:
                # A transform may give a single value for a whole batch.
                shape = shape or {
                    name: column[:0] if getattr(column, "ndim", 1) else column for name, column in batch.items()
                }
                yield batch
        except Exception as error:
            self._failure = None if self._team.client is None else error
            raise
        empty_batches = getattr(self._dealer, "empty_batches", 0)
        for left in range(empty_batches - 1, -1, -1):
            self._ending_epoch = epoch if left else None
            yield dict(shape or self._dataset.rows.read(0, 1, self._dataset.names).slice(0, 0).to_numpy())

    def enter(self, rank_info: RankInfo, *, epoch: int) -> None:
        """Begin an epoch anew in this generation, with what the coordinator says is left of it."""
        self._dataset.delivered()
        self._unreported.clear()
        self._passed_over.clear()
        self._told.clear()
        self._rank_info = rank_info
        dealt_to = rank_info
        if self._assembled is not None and self._params.is_global:
            # Every worker assembles the documents of all, and takes its part of each batch.
            self._assembled.set_share(rank_info.rank, rank_info.world_size)
            dealt_to = rank_info._replace(rank=0, world_size=1)
        self._dealer = self._team.dealer(dealt_to, self._params, self._dataset.plan, block_size=self._block_size)
        self._source.set_epoch(epoch)

    def deal(self, epoch: int) -> Iterator[Spans]:
        """Yield what this worker reads of an epoch in the present generation."""
        assert self._dealer is not None
        yield from self._dealer.deal(epoch)

    def restore(self, rank_info: RankInfo, restored: Restored) -> None:
        """Go to where a checkpoint was taken; from there on, pass over what rewinds of the job skip."""
        cursors = restored.cursors
        self._pass = self._failure = self._ending_epoch = None
        self._skips, self._number = find_skips(restored.rewinds, self.name), 0
        self._step, self.passed = restored.step, 0
        if self._skips:
            self._number = self._count_batches(restored)
        if self._team.client is not None:
            self.enter(rank_info, epoch=self._find_epoch(cursors.get(LEDGER, [])))
            if self._assembled is not None:
                carried = [cursors[key] for key in _list_carries(self.name, cursors)]
                self._assembled.restore_carry(carried, rank=rank_info.rank, world_size=rank_info.world_size)
        elif self.name in cursors:
            self._source.load_state_dict(cursors[self.name])
        else:
            self._source.set_epoch(0)

    def _find_epoch(self, cursors: list[dict[str, Any]]) -> int:
        drops = self._params.is_global and self._dataset.plan.options.drop_last
        return find_epoch(cursors, self._params, least=self._dataset.plan.global_batch_size if drops else 1)

    def _count_batches(self, restored: Restored) -> int:
        count = self._numbers.count(restored.cursors, self.name) if self._has_numbers else None
        if count is None:
            problem = (
                f"it skips batches of dataset {self.name!r}, which have no numbers in {self._params.data_order} order"
            )
            raise RewindError(restored.job_id, problem)
        return count

    def cursors(self) -> dict[str, Any]:
        """Return what a checkpoint keeps of the position beside what the coordinator has of it.

        Without a coordinator that is all of it. With one, it is what this worker has read of a packed dataset and not
        delivered.
        """
        if self._team.client is None:
            return {self.name: self._source.state_dict()}
        return (
            {} if self._assembled is None else {f"{self.name}{_CARRY}{self._rank_info.rank}": self._assembled.carry()}
        )

    def collect(self, step: int) -> int:
        """Count what was delivered until now as seen by the model of this step; return how many samples that are."""
        self._step = step
        self.passed = 0
        samples = 0
        if self._team.client is not None:
            delivered = self._dataset.delivered()
            if self._assembled is not None and self._params.is_global and self._rank_info.rank:
                delivered = []  # all workers have read the same, and rank 0 reports it
            samples = sum(int((spans[:, 2] - spans[:, 1]).sum()) for _, spans in delivered)
            self._unreported += delivered
            for rows in self._dataset.skipped():
                # A file that was bad when it was scanned has no samples that could be missed.
                if rows.num_rows and rows not in self._told:
                    self._told.add(rows)
                    start, home = next(each for each in reversed(self._skip_homes) if each[0] <= rows.start)
                    self._team.skip(self._rank_info, home, replace(rows, start=rows.start - start))
        return samples

    def take_progress(self) -> list[Progress]:
        """Return what was collected since the last call."""
        by_epoch: dict[int, list[Spans]] = {}
        for epoch, spans in self._unreported:
            by_epoch.setdefault(epoch, []).append(spans[spans[:, 2] > spans[:, 1]])
        self._unreported = []
        passed = [
            Progress(dataset_id=self.name, epoch=epoch, step=step, spans=spans, is_passed_over=True)
            for step, epoch, spans in self._passed_over
        ]
        self._passed_over = []
        return [
            Progress(dataset_id=self.name, epoch=epoch, step=self._step, spans=np.concatenate(parts))
            for epoch, parts in sorted(by_epoch.items())
            if any(map(len, parts))
        ] + passed

    def close(self) -> None:
        """End threads and processes."""
        self._dataset.close()


class _Redirect:
    """A dealer that asks its dataset's present one: each generation has another."""

    def __init__(self) -> None:
        self.owner: RunDataset | None = None

    def take_plan(self, plan: Plan) -> Dealer:
        return self

    def deal(self, epoch: int) -> Iterator[Spans]:
        assert self.owner is not None
        return self.owner.deal(epoch)


def _list_carries(name: str, cursors: Mapping[str, Any]) -> list[str]:
    """Return the keys under which the workers of a checkpoint kept what they carried over, by rank."""
    own = [key for key in cursors if key.startswith(f"{name}{_CARRY}")]
    return sorted(own, key=lambda key: int(key.rpartition(_CARRY)[2]))


def find_epoch(cursors: list[dict[str, Any]], params: DatasetParams, *, least: int = 1) -> int:
    """Return the epoch that a job goes on with: the first that is begun and not over, or the one after all that are.

    An epoch is over when fewer samples than ``least`` are left of it.
    """
    found = [
        cursor_from_json({key: value for key, value in row.items() if key != "dataset"})
        for row in cursors
        if row["dataset"]["dataset_id"] == params.dataset_id
    ]
    left = [cursor.epoch for cursor in found if params.total_samples - cursor.consumed.count >= least]
    return min(left) if left else max((cursor.epoch + 1 for cursor in found), default=0)


def _name_of(url: str) -> str:
    return ids.make_name(PurePosixPath(urlsplit(url).path).name, default="data")
