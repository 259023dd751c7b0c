"""Which samples of a global batch each worker takes: whole blocks, so that sums of blocks are the same for any team."""

from __future__ import annotations

import numpy as np

from strata.sharding.cursor import Spans


def cut_blocks(
    start: int, stop: int, *, batch_size: int, block_size: int, rank: int, world_size: int, drop_last: bool = False
) -> Spans:
    """Return a worker's row (0, start, stop) of every global batch of positions [start, stop), one row for each batch.

    A batch is cut into blocks of ``block_size``, the last one may be shorter, and the blocks go to the workers in
    sequence, evenly to within one. A worker that gets none of a batch has an empty row for it: all take as many steps.
    Its empty rows are its last ones, because a batch has at most as many blocks as the one before.
    """
    left = max(stop - start, 0)
    batches = left // batch_size if drop_last else -(-left // batch_size)
    begins = start + np.arange(batches, dtype=np.int64) * batch_size
    ends = np.minimum(begins + batch_size, stop)
    small, extra = np.divmod(-(-(ends - begins) // block_size), world_size)
    first = rank * small + np.minimum(rank, extra)
    last = first + small + (rank < extra)
    starts = np.minimum(begins + first * block_size, ends)
    stops = np.minimum(begins + last * block_size, ends)
    return np.stack((np.zeros_like(starts), starts, stops), axis=1)
