"""How rows are arranged for loading, from what the user says and what follows from the rows."""

from __future__ import annotations

from typing import Literal, TypeAlias

from strata.data.rows import DatasetRows, Rows
from strata.sharding.arrangement import Arrangement
from strata.sharding.order import DataOrder

# A DataOrder, or its name.
Order: TypeAlias = Literal["sticky", "global", "dynamic"] | DataOrder

# A shard is read at once and a few are held in memory, so it must be small; it is also what is dealt and what rows are
# shuffled within, so it must not be tiny.
_LARGEST_DEFAULT_SHARD = 4_096
_SMALLEST_DEFAULT_SHARD = 64
_DEFAULT_SHARDS = 64


def arrange(rows: Rows, *, shard_size: int | None, order: Order, shuffle: bool, seed: int) -> Arrangement:
    """Return the arrangement of these rows; the same arguments give the same in every process."""
    if order not in tuple(DataOrder):
        raise ValueError(f"order is {order!r}; use one of {', '.join(DataOrder)}")
    if rows.num_rows < 1:
        raise ValueError("the dataset has no rows; there is nothing to load")
    if shard_size is None:
        shard_size = choose_shard_size(rows.num_rows, rows.block_rows if isinstance(rows, DatasetRows) else None)
    return Arrangement(
        total_samples=rows.num_rows, shard_size=shard_size, shuffle=shuffle, seed=seed, data_order=DataOrder(order)
    )


def choose_shard_size(total_samples: int, block_rows: int | None = None) -> int:
    """Return a shard size that follows from the data alone, so that every process chooses the same.

    ``block_rows`` is how many rows must be decoded at once: a shard is then one block, or several if they are small.
    """
    even = -(-total_samples // _DEFAULT_SHARDS)
    size = max(_SMALLEST_DEFAULT_SHARD, min(_LARGEST_DEFAULT_SHARD, even))
    return size if block_rows is None else max(1, size // block_rows) * block_rows
