"""The dataset of the demonstration: a few thousand rows in Parquet files, made on the spot."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from strata.run.demo.model import CLASSES, INPUTS

FILES = 4


def make_dataset(folder: Path, num_rows: int) -> None:
    """Write rows with an id, 64 inputs and a label that follows from them."""
    folder.mkdir(parents=True)
    chance = np.random.default_rng(2)
    x = chance.normal(size=(num_rows, INPUTS)).astype(np.float32)
    labels = np.argmax(x @ chance.normal(size=(INPUTS, CLASSES)).astype(np.float32), axis=1)
    for number, ids in enumerate(np.array_split(np.arange(num_rows), FILES)):
        columns = {
            "id": pa.array(ids),
            "x": pa.FixedSizeListArray.from_arrays(pa.array(x[ids].reshape(-1)), INPUTS),
            "y": pa.array(labels[ids]),
        }
        pq.write_table(pa.table(columns), folder / f"part-{number}.parquet")
