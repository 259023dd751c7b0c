"""The fixed blocks of a global batch: the same samples, in the same memory layout, for any number of workers."""

from __future__ import annotations

import sys
from dataclasses import dataclass
from typing import Any

import numpy as np

from strata.data.loading.batches import Batch

# So that kernels take the same path for a block, and round alike, wherever it lies in a worker's batch. torch's own.
_ALIGN_BYTES = 64


@dataclass(frozen=True, slots=True)
class Block:
    """Some samples of a global batch. ``number`` is the same for any number of workers, and grows within an epoch."""

    number: int
    batch: Batch


def count_rows(batch: Batch) -> int:
    """Return how many samples a batch has; ValueError if its columns do not agree."""
    counts = {len(column) for column in batch.values() if getattr(column, "ndim", 1)}
    if len(counts) > 1:
        raise ValueError(f"the columns of the batch have {sorted(counts)} rows; blocks need one of each for a sample")
    return counts.pop() if counts else 0


def cut_batch(batch: Batch, start: int, *, block_size: int) -> list[Block]:
    """Cut a worker's batch, whose first sample is at position ``start`` of the epoch, into the blocks that it is."""
    num_rows = count_rows(batch)
    return [
        Block(
            (start + first) // block_size,
            {name: _take_rows(column, first, min(first + block_size, num_rows)) for name, column in batch.items()},
        )
        for first in range(0, num_rows, block_size)
    ]


def _take_rows(column: Any, start: int, stop: int) -> Any:
    if not getattr(column, "ndim", 1):
        return column  # one value for the whole batch
    torch = sys.modules.get("torch")
    if torch is not None and isinstance(column, torch.Tensor):
        return column[start:stop].clone()
    if isinstance(column, np.ndarray) and not column.dtype.hasobject:
        return _copy_aligned(column[start:stop])
    return column[start:stop]


def _copy_aligned(rows: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
    memory = np.empty(rows.nbytes + _ALIGN_BYTES, np.uint8)
    begin = -memory.ctypes.data % _ALIGN_BYTES
    copy: np.ndarray[Any, Any] = memory[begin : begin + rows.nbytes].view(rows.dtype).reshape(rows.shape)
    np.copyto(copy, rows)
    return copy
