"""A dataset as a run holds it: its work comes from the team, and what was delivered of it is reported by steps."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from pathlib import PurePosixPath
from typing import Any
from urllib.parse import urlsplit

import numpy as np

from strata import ids
from strata.checkpoint.coordination import LEDGER
from strata.cluster.seat import Seat
from strata.data.batches import Batch
from strata.data.dataset import Dataset, Plan, open_dataset
from strata.data.dealer import Dealer
from strata.data.skips import SkippedRows
from strata.run.team import Progress, Team
from strata.sharding import DatasetParams, cursor_from_json
from strata.sharding.cursor import Spans


class RunDataset:
    """Batches of this worker's share; every sample of an epoch is delivered once, over all workers and restarts."""

    def __init__(
        self,
        name: str,
        dataset: Dataset,
        params: DatasetParams,
        team: Team,
        seat: Seat,
        *,
        block_size: int,
    ) -> None:
        self.name = name
        self._dataset = dataset
        self._params = params
        self._team = team
        self._block_size = block_size
        self._unreported: list[tuple[int, Spans]] = []
        self._step = 0
        self._dealer: Dealer | None = None
        self._seat = seat
        self._told: set[SkippedRows] = set()

    @classmethod
    def open(
        cls, team: Team, seat: Seat, source: Any, *, name: str | None, block_size: int, options: dict[str, Any]
    ) -> RunDataset:
        """Open rows from a URL, or take those that are given, and make them known to the job."""
        if options.get("order") == "global" and options.get("global_batch_size") is None:
            raise ValueError(
                "order='global' needs global_batch_size: it must stay the same whatever the number of workers is"
            )
        if block_size < 1:
            raise ValueError(f"block_size is {block_size}; use 1 or more")
        redirect = _Redirect()
        if options.get("order") == "global":
            options.setdefault("batch_size", options["global_batch_size"])
        dataset = open_dataset(source, **options, dealer=None if team.client is None else redirect.take_plan)
        url = os.fspath(source) if isinstance(source, str | os.PathLike) else type(source).__name__
        params = DatasetParams.of(dataset.plan.arrangement, name or _name_of(url))
        fingerprint = str(getattr(dataset.rows, "fingerprint", dataset.num_rows))
        team.register(params, fingerprint=fingerprint, url=url)
        opened = cls(params.dataset_id, dataset, params, team, seat, block_size=block_size)
        if team.client is not None:
            redirect.owner = opened
            opened.enter(seat, epoch=0)
        return opened

    @property
    def epoch(self) -> int:
        """The epoch that the next batch is of."""
        return self._dataset.epoch

    @property
    def num_rows(self) -> int:
        """How many samples an epoch has, for all workers together."""
        return self._dataset.num_rows

    @property
    def is_even(self) -> bool:
        """Whether all workers get as many batches of an epoch."""
        return self._params.is_global

    def __iter__(self) -> Iterator[Batch]:
        """Yield this worker's batches; in global order some may be empty, so that all workers get as many."""
        shape: Batch | None = None
        for batch in self._dataset:
            shape = shape or {name: column[:0] for name, column in batch.items()}
            yield batch
        for _ in range(getattr(self._dealer, "empty_batches", 0)):
            yield dict(shape or self._dataset.rows.read(0, 1, self._dataset.names).slice(0, 0).to_numpy())

    def enter(self, seat: Seat, *, epoch: int) -> None:
        """Begin an epoch anew in this generation, with what the coordinator says is left of it."""
        self._dataset.delivered()
        self._unreported.clear()
        self._told.clear()
        self._seat = seat
        self._dealer = self._team.dealer(seat, self._params, self._dataset.plan, block_size=self._block_size)
        self._dataset.set_epoch(epoch)

    def deal(self, epoch: int) -> Iterator[Spans]:
        """Yield what this worker reads of an epoch in the present generation."""
        assert self._dealer is not None
        yield from self._dealer.deal(epoch)

    def restore(self, seat: Seat, cursors: Mapping[str, Any]) -> None:
        """Go to where a checkpoint was taken."""
        if self._team.client is not None:
            self.enter(seat, epoch=find_epoch(cursors.get(LEDGER, []), self._params))
        elif self.name in cursors:
            self._dataset.load_state_dict(cursors[self.name])
        else:
            self._dataset.set_epoch(0)

    def state_dict(self) -> dict[str, Any]:
        """Return the position of a run without a coordinator; with one, the coordinator has it."""
        return self._dataset.state_dict()

    def collect(self, step: int) -> int:
        """Count what was delivered until now as seen by the model of this step; return how many samples that are."""
        self._step = step
        samples = 0
        if self._team.client is not None:
            delivered = self._dataset.delivered()
            samples = sum(int((spans[:, 2] - spans[:, 1]).sum()) for _, spans in delivered)
            self._unreported += delivered
            for rows in self._dataset.skipped():
                if rows not in self._told:
                    self._told.add(rows)
                    self._team.skip(self._seat, self.name, rows)
        return samples

    def take_progress(self) -> list[Progress]:
        """Return what was collected since the last call."""
        by_epoch: dict[int, list[Spans]] = {}
        for epoch, spans in self._unreported:
            by_epoch.setdefault(epoch, []).append(spans[spans[:, 2] > spans[:, 1]])
        self._unreported = []
        return [
            Progress(dataset_id=self.name, epoch=epoch, step=self._step, spans=np.concatenate(parts))
            for epoch, parts in sorted(by_epoch.items())
            if any(map(len, parts))
        ]

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


def find_epoch(cursors: list[dict[str, Any]], params: DatasetParams) -> int:
    """Return the epoch that a job goes on with: the first that is begun and not over, or the one after all that are."""
    found = [
        cursor_from_json({key: value for key, value in row.items() if key != "dataset"})
        for row in cursors
        if row["dataset"]["dataset_id"] == params.dataset_id
    ]
    left = [cursor.epoch for cursor in found if cursor.consumed.count < params.total_samples]
    return min(left) if left else max((cursor.epoch + 1 for cursor in found), default=0)


def _name_of(url: str) -> str:
    return ids.make_name(PurePosixPath(urlsplit(url).path).name, default="data")
