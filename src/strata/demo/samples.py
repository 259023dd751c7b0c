"""The dataset of the demonstration: a few thousand rows in Parquet files, made on the spot."""

from __future__ import annotations

import shutil
import uuid
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from strata.demo.model import CLASSES, INPUTS

FILES = 4


def make_dataset(folder: Path, num_rows: int) -> None:
    """Write rows with an id, 64 inputs and a label that follows from them.

    The folder appears whole and once, also when several workers make it at the same time.
    """
    if folder.exists():
        return
    chance = np.random.default_rng(2)
    x = chance.normal(size=(num_rows, INPUTS)).astype(np.float32)
    labels = np.argmax(x @ chance.normal(size=(INPUTS, CLASSES)).astype(np.float32), axis=1)
    unfinished = folder.with_name(f".{folder.name}-{uuid.uuid4().hex}")
    unfinished.mkdir(parents=True)
    for number, ids in enumerate(np.array_split(np.arange(num_rows), FILES)):
        columns = {
            "id": pa.array(ids),
            "x": pa.FixedSizeListArray.from_arrays(pa.array(x[ids].reshape(-1)), INPUTS),
            "y": pa.array(labels[ids]),
        }
        pq.write_table(pa.table(columns), unfinished / f"part-{number}.parquet")
    try:
        unfinished.rename(folder)
    except OSError:
        # A folder that is not empty is never replaced: another worker was first.
        if not folder.exists():
            raise
        shutil.rmtree(unfinished)
