"""Write the dataset of the examples: 2,000 rows of 64 inputs and a label, in Parquet files under FOLDER/data."""

from __future__ import annotations

import sys
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

ROWS, INPUTS, CLASSES = 2_000, 64, 10


def main() -> None:
    folder = Path(sys.argv[1]) / "data"
    folder.mkdir(parents=True, exist_ok=True)
    chance = np.random.default_rng(0)
    x = chance.normal(size=(ROWS, INPUTS)).astype(np.float32)
    y = np.argmax(x @ chance.normal(size=(INPUTS, CLASSES)).astype(np.float32), axis=1)
    for number, rows in enumerate(np.array_split(np.arange(ROWS), 4)):
        inputs = pa.FixedSizeListArray.from_arrays(pa.array(x[rows].reshape(-1)), INPUTS)
        pq.write_table(pa.table({"x": inputs, "y": y[rows]}), folder / f"part-{number}.parquet")


if __name__ == "__main__":
    main()
