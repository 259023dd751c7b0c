"""What every process must agree on for shards and an order of samples to mean the same in all of them."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from functools import lru_cache
from typing import Any, NamedTuple

from strata.errors import DamagedRecordError, InvalidIdError
from strata.sharding.order import GLOBAL_WINDOW_SHARDS, DataOrder, EpochOrder


class ShardAssignment(NamedTuple):
    """One shard as a worker gets it: samples [start_index, end_index) of the dataset."""

    dataset_id: str
    shard_id: int
    total_shards: int
    start_index: int
    end_index: int
    file_paths: tuple[str, ...]
    epoch: int


@dataclass(frozen=True, kw_only=True)
class ShardLayout:
    """The order of every epoch of a dataset; equal layouts give equal orders, in every process."""

    total_samples: int
    shard_size: int
    shuffle: bool = False
    seed: int = 0
    data_order: DataOrder = DataOrder.STICKY
    window_shards: int = GLOBAL_WINDOW_SHARDS
    """Within how many shards samples are shuffled, where there is one sequence for all workers."""

    def __post_init__(self) -> None:
        if self.window_shards < 2:
            raise ValueError(f"window_shards is {self.window_shards}; use 2 or more")
        self.order(epoch=0)

    @property
    def is_global(self) -> bool:
        """Whether there is one sequence for all workers, and not one for each shard."""
        return self.data_order is DataOrder.GLOBAL

    @property
    def num_shards(self) -> int:
        """How many shards the dataset has."""
        return self.order(epoch=0).num_shards

    def order(self, *, epoch: int) -> EpochOrder:
        """Return the order of an epoch; in all but the global one, each shard is read by one worker."""
        window = self.window_shards if self.is_global else 1
        return _epoch_order(self.total_samples, self.shard_size, self.seed, epoch, self.shuffle, window)

    def describe_window(self) -> dict[str, int]:
        """Return the window as a value that JSON can hold, if it matters and is not that of every dataset before it."""
        is_set = self.is_global and self.window_shards != GLOBAL_WINDOW_SHARDS
        return {"window_shards": self.window_shards} if is_set else {}


@dataclass(frozen=True, kw_only=True)
class DatasetParams(ShardLayout):
    """A layout under the name by which a job knows it.

    ``file_paths`` is empty, or has one path for each shard.
    """

    dataset_id: str
    file_paths: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        InvalidIdError.check("dataset id", self.dataset_id)
        super().__post_init__()
        if len(self.file_paths) not in (0, self.num_shards):
            raise ValueError(
                f"dataset {self.dataset_id!r} has {self.num_shards} shards and {len(self.file_paths)} file paths; "
                "give one for each shard, or none"
            )

    @classmethod
    def of(cls, layout: ShardLayout, dataset_id: str) -> DatasetParams:
        """Return the layout under a name."""
        return cls(dataset_id=dataset_id, **asdict(layout))

    def to_json(self) -> dict[str, Any]:
        """Return all but the file paths, as values that JSON can hold."""
        return {
            "dataset_id": self.dataset_id,
            "total_samples": self.total_samples,
            "shard_size": self.shard_size,
            "shuffle": self.shuffle,
            "seed": self.seed,
            "data_order": self.data_order,
            **self.describe_window(),
        }

    @classmethod
    def from_json(cls, record: object) -> DatasetParams:
        """Return the parameters that :meth:`to_json` wrote, or raise DamagedRecordError."""
        try:
            fields = dict(record)  # type: ignore[call-overload]  # a record of another type is refused below
            return cls(**{**fields, "data_order": DataOrder(fields["data_order"])})
        except (TypeError, KeyError, ValueError) as error:
            raise DamagedRecordError("dataset", f"{str(record)[:80]!r} has not its parameters: {error}") from error


# An order keeps what it derived from its key, so one object per epoch saves deriving it for each shard.
@lru_cache(maxsize=64, typed=True)
def _epoch_order(total: int, size: int, seed: int, epoch: int, shuffle: bool, window: int) -> EpochOrder:  # noqa: FBT001 - a cache key
    return EpochOrder(total, size, seed=seed, epoch=epoch, shuffle=shuffle, window_shards=window)
