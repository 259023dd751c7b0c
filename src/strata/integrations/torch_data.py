"""Strata's datasets in torch's loaders: a plain ``DataLoader``, or torchdata's ``StatefulDataLoader``."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

from torch.utils.data import IterableDataset, get_worker_info

from strata.data.batches import Batch
from strata.data.dataset import Dataset
from strata.data.dealer import Share
from strata.data.position import State, latest_state, merge_states


class TorchDataset(IterableDataset[Batch]):
    """The batches of a dataset, for a torch loader with ``batch_size=None`` and any ``num_workers``.

    Worker processes split their rank's work, so that each sample still comes once. In ``sticky`` and ``dynamic`` order
    each has shards of its own; in ``global`` order they take turns by whole batches, so that the order stays.

    torch gives each iteration new copies of this object to its workers, unless they are persistent: call
    :meth:`set_epoch` before each epoch then, as with a ``DistributedSampler``.
    """

    def __init__(self, dataset: Dataset) -> None:
        """``dataset`` is best opened with ``to="torch"``, and must not have been iterated if there are workers."""
        self._dataset = dataset
        self._part: Dataset | None = None
        # In a worker: its part of this iteration is done, while others may still have some of theirs.
        self._has_ended = False
        self._begins_ended = False

    def __iter__(self) -> Iterator[Batch]:
        part = self._mine()
        self._has_ended, self._begins_ended = self._begins_ended, False
        if not self._has_ended:
            yield from part
            self._has_ended = part is not self._dataset

    def set_epoch(self, epoch: int) -> None:
        """Go to the beginning of an epoch."""
        self._dataset.set_epoch(epoch)

    def state_dict(self) -> dict[str, Any]:
        """Return the position of this process's part; a StatefulDataLoader gathers those of its workers."""
        # As text, because torchdata compares states field by field and knows no field that goes away.
        return {"strata": json.dumps(self._mine().state_dict()), "ended": self._has_ended or self._begins_ended}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Go to where the state was taken: by the same part, or, if it was merged, by all."""
        self._mine().load_state_dict(json.loads(state["strata"]))
        self._begins_ended = state["ended"]

    def _mine(self) -> Dataset:
        """The part of the work that is done in this process."""
        info = get_worker_info()
        if info is None:
            return self._dataset
        if self._part is None:
            ranks = self._dataset.plan.share
            share = Share(rank=ranks.rank, world_size=ranks.world_size, worker=info.id, num_workers=info.num_workers)
            self._part = self._dataset.with_share(share)
        return self._part


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
