"""DatasetRegistry: datasets, and who reads which part of them, as scripts written for ``dtruntime`` use it.

Without a coordinator's URL it works alone in its process.
"""

from __future__ import annotations

from strata.client.unary import ask_for_shards, register_dataset
from strata.compat.shard_manager import ShardManager
from strata.sharding import DatasetParams, ShardAssignment


class DatasetRegistry:
    """Datasets and who reads which part of them."""

    def __init__(self, coordinator_url: str | None = None, *, job_id: str = "default") -> None:
        self._url = coordinator_url
        self._job_id = job_id
        self._local = ShardManager()

    def register(
        self,
        dataset_id: str,
        path: str,
        format: str = "parquet",  # noqa: A002 - the first API's name
        total_samples: int = 0,
        shard_size: int = 10_000,
        shuffle: bool = False,  # noqa: FBT001, FBT002 - the first API's signature
        seed: int = 0,
    ) -> None:
        """Make a dataset known; the same one again changes nothing.

        Without ``total_samples``, the rows of the files at ``path`` are counted, read as ``format``. With it, nothing
        is read here: the script reads its samples itself, by the indices that :meth:`get_shard` gives.
        """
        total_samples = total_samples or _count_rows(path, format)
        params = DatasetParams(
            dataset_id=dataset_id, total_samples=total_samples, shard_size=shard_size, shuffle=shuffle, seed=seed
        )
        if self._url is None:
            self._local.register_dataset(params)
        else:
            register_dataset(self._url, self._job_id, params)

    def get_shard(self, dataset_id: str, worker_rank: int, epoch: int = 0) -> list[ShardAssignment]:
        """Return the shards of the worker with this rank, in the order in which it reads them."""
        if self._url is not None:
            return ask_for_shards(self._url, self._job_id, dataset_id, rank=worker_rank, epoch=epoch)
        worker_id = f"rank-{worker_rank}"
        self._local.register_worker(worker_id)
        return self._local.get_shard_for_worker(dataset_id, worker_id, epoch)


def _count_rows(path: str, format: str) -> int:  # noqa: A002 - the first API's name
    # Imported here: reading files needs pyarrow, and a script that says how many samples it has does not.
    from strata.data.rows.row_sequence import open_rows

    return open_rows(path, format=format).num_rows
