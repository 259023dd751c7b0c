"""How rows are arranged for loading, from what the user says and what follows from the rows."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal, TypeAlias

from strata.data.option_checks import check_choice, check_flag, check_whole
from strata.data.rows.row_sequence import DatasetRows, Rows
from strata.sharding.order import GLOBAL_WINDOW_SHARDS, DataOrder
from strata.sharding.shard_layout import ShardLayout
from strata.sharding.shuffle_quality import ShuffleQuality, measure_shuffle

# A DataOrder, or its name.
Order: TypeAlias = Literal["sticky", "global", "dynamic"] | DataOrder

# A shard is read at once and a few are held in memory, so it must be small; it is also what is dealt and what rows are
# shuffled within, so it must not be tiny.
_LARGEST_DEFAULT_SHARD = 4_096
_SMALLEST_DEFAULT_SHARD = 64
_DEFAULT_SHARDS = 64
# The windows whose shuffle is shown, the default among them.
RATED_WINDOWS = (4, GLOBAL_WINDOW_SHARDS, 64)


def arrange(
    rows: Rows, *, shard_size: int | None, order: Order, shuffle: bool, seed: int, window_shards: int | None = None
) -> ShardLayout:
    """Return the layout of these rows; the same arguments give the same in every process."""
    check_layout(shard_size=shard_size, order=order, shuffle=shuffle, seed=seed, window_shards=window_shards)
    if rows.num_rows < 1:
        raise ValueError("the dataset has no rows; there is nothing to load")
    if shard_size is None:
        shard_size = choose_shard_size(rows.num_rows, rows.block_rows if isinstance(rows, DatasetRows) else None)
    return ShardLayout(
        total_samples=rows.num_rows,
        shard_size=int(shard_size),
        shuffle=shuffle,
        seed=int(seed),
        data_order=DataOrder(order),
        window_shards=GLOBAL_WINDOW_SHARDS if window_shards is None else int(window_shards),
    )


def check_layout(
    *, shard_size: int | None, order: Order, shuffle: bool, seed: int, window_shards: int | None = None
) -> None:
    """Raise an error that names the option which no dataset can have."""
    check_choice("order", order, DataOrder)
    check_flag("shuffle", shuffle)
    check_whole("seed", seed, least=0)
    check_whole("shard_size", shard_size, least=1, or_none=True)
    check_whole("window_shards", window_shards, least=2, or_none=True)
    if window_shards is not None and order != DataOrder.GLOBAL:
        raise ValueError(
            f"window_shards is for order='global', not for '{order}', in which samples are shuffled within a shard; "
            "use a larger shard_size"
        )


@dataclass(frozen=True, slots=True)
class RatedShuffle:
    """How random batches are in an order with such a window, and how many rows the window has: what is held at once."""

    order: str
    window_shards: int
    window_rows: int
    quality: ShuffleQuality


def rate_shuffle(
    rows: Rows, *, batch_size: int, shard_size: int | None = None, windows: Sequence[int] = RATED_WINDOWS
) -> list[RatedShuffle]:
    """Return how random the first epoch is in each order and window; shards are those that follow from the rows."""
    found = []
    for order, window in [(DataOrder.STICKY, None), *((DataOrder.GLOBAL, window) for window in windows)]:
        layout = arrange(rows, shard_size=shard_size, order=order, shuffle=True, seed=0, window_shards=window)
        quality = measure_shuffle(layout.order(epoch=0).samples_at, layout.total_samples, batch_size=batch_size)
        held = min(window or 1, layout.num_shards)
        window_rows = min(held * layout.shard_size, layout.total_samples)
        found.append(RatedShuffle(str(order), window or 1, window_rows, quality))
    return found


def choose_shard_size(total_samples: int, block_rows: int | None = None) -> int:
    """Return a shard size that follows from the data alone, so that every process chooses the same.

    ``block_rows`` is how many rows must be decoded at once: a shard is then one block, or several if they are small.
    """
    even = -(-total_samples // _DEFAULT_SHARDS)
    size = max(_SMALLEST_DEFAULT_SHARD, min(_LARGEST_DEFAULT_SHARD, even))
    return size if block_rows is None else max(1, size // block_rows) * block_rows
