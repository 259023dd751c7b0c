"""Which samples of a global batch each worker takes: whole blocks, so that sums of blocks are the same for any team."""

from __future__ import annotations

import numpy as np

from strata.data.loading.shares import slice_batches
from strata.sharding.cursor import Spans


def cut_blocks(
    start: int, stop: int, *, batch_size: int, block_size: int, rank: int, world_size: int, drop_last: bool = False
) -> Spans:
    """Return a worker's row (0, start, stop) of every global batch of positions [start, stop), one row for each batch.

    A worker that gets none of a batch has an empty row for it: all take as many steps. Its empty rows are its last
    ones, because a batch has at most as many blocks as the one before.
    """
    left = max(stop - start, 0)
    batches = left // batch_size if drop_last else -(-left // batch_size)
    begins = start + np.arange(batches, dtype=np.int64) * batch_size
    ends = np.minimum(begins + batch_size, stop)
    return slice_batches(begins, ends, rank=rank, world_size=world_size, block_size=block_size)
