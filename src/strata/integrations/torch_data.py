"""Strata's datasets in torch's loaders: a plain ``DataLoader``, or torchdata's ``StatefulDataLoader``."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import replace
from typing import Any

from torch.utils.data import DataLoader, IterableDataset, get_worker_info

from strata.data.dataset import Dataset
from strata.data.loading.batches import Batch
from strata.data.loading.merging import latest_state, merge_states
from strata.data.loading.position import State
from strata.data.option_checks import check_whole
from strata.data.text.assembled import AssembledDataset
from strata.errors import DamagedRecordError


class TorchDataset(IterableDataset[Batch]):
    """The batches of a dataset, for a torch loader with ``batch_size=None`` and any ``num_workers``.

    Worker processes split their rank's work, so that each sample still comes once. In ``sticky`` and ``dynamic`` order
    each has shards of its own; in ``global`` order they take turns by whole batches, so that the order stays.

    torch gives each iteration new copies of this object to its workers, unless they are persistent: call
    :meth:`set_epoch` before each epoch then, as with a ``DistributedSampler``.
    """

    def __init__(self, dataset: Dataset, *, num_workers: int = 0) -> None:
        """``dataset`` is best opened with ``to="torch"``, and must not have been iterated if there are workers.

        ``num_workers`` is that of the loader. Only ``len()`` needs it, in ``sticky`` and ``dynamic`` order.
        """
        if isinstance(dataset, AssembledDataset):
            raise TypeError(
                "a packed or bucketed dataset needs no torch loader: iterate it as it is, made with to='torch'"
            )
        if not isinstance(dataset, Dataset):
            raise TypeError(f"dataset is {type(dataset).__name__}; give what strata.data.open_dataset returned")
        check_whole("num_workers", num_workers, least=0)
        self._dataset = dataset
        self._num_workers = num_workers
        self._part: Dataset | None = None
        # An iteration that was begun, before which epoch it ends, and whether this process has given all of its part.
        self._is_begun = False
        self._until: int | None = None
        self._has_ended = False
        # The next iteration is the rest of one that was begun elsewhere.
        self._resumes = False
        # Where the iteration under way began, for a worker whose loop was left and is begun again.
        self._began: State | None = None

    def __iter__(self) -> Iterator[Batch]:
        part = self._mine()
        if self._resumes:
            batches = part.resume(until_epoch=self._until)
        else:
            if self._began is not None and not self._has_ended:
                # The loop was left early. What torch had fetched ahead is lost with it, so the pass begins again.
                part.load_state_dict(self._began)
            batches = iter(part)
            epochs = part.plan.options.epochs
            self._until = None if epochs is None else part.epoch + epochs
            self._began = None if part is self._dataset else part.state_dict()
        # At once and not with the first batch: torchdata asks for the state of a worker that has delivered none yet.
        self._is_begun, self._resumes, self._has_ended = True, False, False
        return self._deliver(batches)

    def __len__(self) -> int:
        """Return how many batches an iteration from the beginning of an epoch has, where that is known."""
        plan = self._dataset.plan
        plans = [plan]
        if self._num_workers and not plan.layout.is_global:
            shares = [replace(plan.share, worker=at, num_workers=self._num_workers) for at in range(self._num_workers)]
            plans = [replace(plan, share=share) for share in shares]
        counts = [each.count_batches() for each in plans]
        if plan.options.epochs is None or None in counts:
            raise TypeError("this dataset has no length: it has no end, or a filter decides how many batches there are")
        return plan.options.epochs * sum(count for count in counts if count is not None)

    def set_epoch(self, epoch: int) -> None:
        """Let the next iteration be of this epoch; a position that was loaded from the middle of it stays."""
        if not (self._dataset.epoch == epoch and self._dataset.is_loaded):
            self._dataset.set_epoch(epoch)

    def state_dict(self) -> dict[str, Any]:
        """Return the position of this process's part; a StatefulDataLoader gathers those of its workers."""
        # As text, because torchdata compares states field by field and knows no field that goes away.
        return {
            "strata": json.dumps(self._mine().state_dict()),
            "begun": self._is_begun,
            "until": -1 if self._until is None else self._until,
            "ended": self._has_ended,
        }

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Go to where the state was taken: by the same part, or, if it was merged, by all.

        As torchdata wants it, the next iteration is the rest of the one in which the state was taken, and has nothing
        if that was at its last batch.
        """
        match state:
            case {"strata": str(text), "begun": bool(begun), "until": int(until), "ended": bool(ended)}:
                pass
            case _:
                raise DamagedRecordError("data position", "it has not the fields of a TorchDataset's state")
        part = self._mine()
        part.load_state_dict(json.loads(text))
        self._until = None if until < 0 else until
        # A loader without workers that was at the end of its iteration begins a new one by itself. One with workers
        # lets each of them end its iteration first.
        self._resumes = begun and not (ended and part is self._dataset)
        self._is_begun, self._has_ended = begun, ended
        self._began = None

    def _deliver(self, batches: Iterator[Batch]) -> Iterator[Batch]:
        yield from batches
        self._has_ended = True

    def _mine(self) -> Dataset:
        """The part of the work that is done in this process."""
        info = get_worker_info()
        if info is None:
            return self._dataset
        if self._num_workers and info.num_workers != self._num_workers:
            raise ValueError(
                f"the loader has num_workers={info.num_workers}, and TorchDataset was told {self._num_workers}; give "
                "both the same, or leave it out here"
            )
        if self._part is None:
            share = replace(self._dataset.plan.share, worker=info.id, num_workers=info.num_workers)
            self._part = self._dataset.with_share(share)
        return self._part


class TorchLoader(DataLoader[Batch]):
    """A plain ``DataLoader`` of a dataset, with a length where it is known, that trainers can tell the epoch."""

    def __init__(self, dataset: Dataset, *, num_workers: int = 0, **options: Any) -> None:
        """``options`` are those of ``DataLoader``; batches are made by the dataset."""
        super().__init__(
            TorchDataset(dataset, num_workers=num_workers), batch_size=None, num_workers=num_workers, **options
        )

    def set_epoch(self, epoch: int) -> None:
        """Let the next iteration be of this epoch; a position that was loaded from the middle of it stays."""
        self.dataset.set_epoch(epoch)


def merge_loader_states(states: Iterable[Mapping[str, Any]]) -> State:
    """Return the position of the job from what ``StatefulDataLoader.state_dict()`` returned on each rank.

    It can be loaded into a :class:`~strata.data.dataset.Dataset` by any number of ranks, for any ``num_workers``.
    """
    return merge_states(latest_state(_parts(state)) for state in states)


def _parts(state: Mapping[str, Any]) -> list[State]:
    if "_snapshot" not in state:
        return [json.loads(state["dataset_state"]["strata"])]
    if state["_steps_since_snapshot"]:
        raise ValueError(
            f"the loader's state is {state['_steps_since_snapshot']} steps old; use snapshot_every_n_steps=1, so that "
            "it says what was delivered"
        )
    workers = state["_snapshot"]["_worker_snapshots"].values()
    return [json.loads(worker["dataset_state"]["strata"]) for worker in workers]
