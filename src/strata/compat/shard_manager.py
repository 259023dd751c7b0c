"""The first API's ShardManager: datasets and workers are registered or removed, and a worker asks for its shards."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from strata.errors import DatasetConflictError, InvalidIdError, UnknownDatasetError, UnknownWorkerError
from strata.sharding.assignment import MAX_WEIGHT, Assignment, assign
from strata.sharding.shard_layout import DatasetParams, ShardAssignment


class _Dataset:
    """A registered dataset with what is derived from it; of epoch orders, only the one last asked for is kept."""

    def __init__(self, params: DatasetParams) -> None:
        self.params = params
        self.num_shards = params.num_shards
        self.epoch = 0
        self.assignment: Assignment | None = None
        self.membership = 0
        self._ranks_epoch = -1
        self._ranks: npt.NDArray[np.int64] = np.empty(0, dtype=np.int64)

    def shards_in_order(self, worker_id: str, assignment: Assignment, epoch: int) -> npt.NDArray[np.int64]:
        shards = assignment.shards_of(worker_id)
        order = self.params.order(epoch=epoch)
        if not self.params.shuffle:
            return shards
        if epoch != self._ranks_epoch:
            self._ranks, self._ranks_epoch = order.ranks_of(np.arange(self.num_shards)), epoch
        return shards[np.argsort(self._ranks[shards])]


class ShardManager:
    """Hands out the shards of any number of datasets to any number of workers.

    At every moment each shard has exactly one owner, workers differ by at most one shard, and a change of workers
    moves as few shards as possible. Changes take effect together, when shards are next asked for: ten workers that
    register one after the other cost one rebalancing. Not thread-safe, and it does no I/O.
    """

    def __init__(self) -> None:
        self._datasets: dict[str, _Dataset] = {}
        self._workers: dict[str, int] = {}
        # Grows with every change of workers; an assignment made at an earlier number is out of date.
        self._membership = 1

    @property
    def datasets(self) -> list[str]:
        """The registered datasets, in the order of their registration."""
        return list(self._datasets)

    @property
    def active_workers(self) -> list[str]:
        """The registered workers, sorted."""
        return sorted(self._workers)

    def register_dataset_params(
        self,
        dataset_id: str,
        total_samples: int,
        shard_size: int,
        shuffle: bool = False,  # noqa: FBT001, FBT002 - the first API's signature
        seed: int = 0,
    ) -> None:
        """Register a dataset by its size; the same call again changes nothing."""
        self.register_dataset(
            DatasetParams(
                dataset_id=dataset_id, total_samples=total_samples, shard_size=shard_size, shuffle=shuffle, seed=seed
            )
        )

    def register_dataset(self, params: DatasetParams) -> None:
        """Register a dataset; the same one again changes nothing, another one of the same name is refused."""
        if params.dataset_id not in self._datasets:
            self._datasets[params.dataset_id] = _Dataset(params)
            return
        known = self._datasets[params.dataset_id].params
        if known != params:
            raise DatasetConflictError(params.dataset_id, registered=_described(known), given=_described(params))

    def register_worker(self, worker_id: str, *, weight: int = 1) -> None:
        """Let a worker take its share; with a weight (its number of GPUs, say), a share in proportion."""
        if not 1 <= weight <= MAX_WEIGHT:
            raise ValueError(f"worker {worker_id!r} has weight {weight}; use 1 to {MAX_WEIGHT}")
        if self._workers.get(worker_id) != weight:
            self._workers[InvalidIdError.check("worker id", worker_id)] = weight
            self._membership += 1

    def remove_worker(self, worker_id: str) -> None:
        """Give the worker's shards to the others."""
        if worker_id not in self._workers:
            raise UnknownWorkerError(worker_id, known=self._workers)
        del self._workers[worker_id]
        self._membership += 1

    def get_shard_for_worker(self, dataset_id: str, worker_id: str, epoch: int) -> list[ShardAssignment]:
        """Return the worker's shards in the order in which this epoch reads them."""
        assignment = self.assignment(dataset_id)
        dataset = self._datasets[dataset_id]
        shards = dataset.shards_in_order(worker_id, assignment, epoch)
        total, size, paths = dataset.num_shards, dataset.params.shard_size, dataset.params.file_paths
        end = dataset.params.total_samples
        return [
            ShardAssignment(
                dataset_id, shard, total, shard * size, min(shard * size + size, end), paths[shard : shard + 1], epoch
            )
            for shard in shards.tolist()
        ]

    def assignment(self, dataset_id: str) -> Assignment:
        """Return who owns which shard of the dataset now."""
        dataset = self._dataset(dataset_id)
        if dataset.assignment is None or dataset.membership != self._membership:
            dataset.assignment = assign(
                dataset_id, dataset.num_shards, self._workers, dataset.assignment, weights=self._workers
            )
            dataset.membership = self._membership
        return dataset.assignment

    def rebalance_shards(self, dataset_id: str) -> int:
        """Let changes of workers take effect now; return how many shards have another owner than before."""
        before = self._dataset(dataset_id).assignment
        after = self.assignment(dataset_id)
        return after.num_shards if before is None else len(after.moved_from(before))

    def current_epoch(self, dataset_id: str) -> int:
        """Return the epoch that the dataset is in."""
        return self._dataset(dataset_id).epoch

    def advance_epoch(self, dataset_id: str) -> int:
        """Go to the dataset's next epoch and return it."""
        self._dataset(dataset_id).epoch += 1
        return self._datasets[dataset_id].epoch

    def _dataset(self, dataset_id: str) -> _Dataset:
        if dataset_id not in self._datasets:
            raise UnknownDatasetError(dataset_id, known=self._datasets)
        return self._datasets[dataset_id]


def _described(params: DatasetParams) -> str:
    return (
        f"{params.total_samples} samples in shards of {params.shard_size}, shuffle {'on' if params.shuffle else 'off'}"
        f", seed {params.seed}, {len(params.file_paths)} file paths"
    )
