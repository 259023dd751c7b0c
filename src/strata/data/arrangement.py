"""What every process must agree on for an order of samples to mean the same in all of them."""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache
from typing import Any, Literal, TypeAlias

from strata.sharding.manager import DatasetParams
from strata.sharding.order import GLOBAL_WINDOW_SHARDS, DataOrder, EpochOrder

# A DataOrder, or its name.
Order: TypeAlias = Literal["sticky", "global", "dynamic"] | DataOrder

# A shard is read at once and a few are held in memory, so it must be small; it is also what is dealt and what rows are
# shuffled within, so it must not be tiny.
_LARGEST_DEFAULT_SHARD = 4_096
_SMALLEST_DEFAULT_SHARD = 64
_DEFAULT_SHARDS = 64


@dataclass(frozen=True, kw_only=True)
class Arrangement:
    """The order of every epoch of a dataset; equal arrangements give equal orders, in every process.

    ``files`` names what the numbers of samples mean, where they are rows of files.
    """

    total_samples: int
    shard_size: int
    order: DataOrder = DataOrder.STICKY
    shuffle: bool = True
    seed: int = 0
    files: str = ""

    def __post_init__(self) -> None:
        if self.total_samples < 1:
            raise ValueError("the dataset has no rows; there is nothing to load")
        self.epoch_order(0)

    @property
    def is_global(self) -> bool:
        """Whether there is one sequence for all workers, and not one for each shard."""
        return self.order is DataOrder.GLOBAL

    @property
    def num_shards(self) -> int:
        """How many shards the dataset has."""
        return self.epoch_order(0).num_shards

    def epoch_order(self, epoch: int) -> EpochOrder:
        """Return which sample stands where in an epoch."""
        window = GLOBAL_WINDOW_SHARDS if self.is_global else 1
        return _epoch_order(self.total_samples, self.shard_size, self.seed, epoch, self.shuffle, window)

    def params(self, dataset_id: str) -> DatasetParams:
        """Return the same as the coordinator is told it."""
        return DatasetParams(
            dataset_id=dataset_id,
            total_samples=self.total_samples,
            shard_size=self.shard_size,
            shuffle=self.shuffle,
            seed=self.seed,
            data_order=self.order,
        )

    def fingerprint(self) -> dict[str, Any]:
        """Return what a saved position depends on, as values that JSON can hold."""
        return {
            "total_samples": self.total_samples,
            "shard_size": self.shard_size,
            "seed": self.seed,
            "shuffle": self.shuffle,
            "files": self.files,
        }


def choose_shard_size(total_samples: int, block_rows: int | None = None) -> int:
    """Return a shard size that follows from the data alone, so that every process chooses the same.

    ``block_rows`` is how many rows must be decoded at once: a shard is then one block, or several if they are small.
    """
    even = -(-total_samples // _DEFAULT_SHARDS)
    size = max(_SMALLEST_DEFAULT_SHARD, min(_LARGEST_DEFAULT_SHARD, even))
    return size if block_rows is None else max(1, size // block_rows) * block_rows


def read_order(order: str) -> DataOrder:
    """Return the order of that name."""
    if order not in tuple(DataOrder):
        raise ValueError(f"order is {order!r}; use one of {', '.join(DataOrder)}")
    return DataOrder(order)


# An order keeps what it derived from its key, so one object per epoch saves deriving it for each shard.
@lru_cache(maxsize=64)
def _epoch_order(total: int, size: int, seed: int, epoch: int, shuffle: bool, window: int) -> EpochOrder:  # noqa: FBT001 - a cache key
    return EpochOrder(total, size, seed=seed, epoch=epoch, shuffle=shuffle, window_shards=window)
