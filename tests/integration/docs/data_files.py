"""The files that the blocks of docs/data.md read, a few rows of each format."""

from __future__ import annotations

import gzip
import io
import tarfile
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.feather as feather
import pyarrow.parquet as pq

from strata.demo.samples import make_dataset
from tests.testbed.data.tfrecords import tfrecords


def write_torch_data(folder: Path) -> None:
    """Write rows of which all columns can be tensors."""
    make_dataset(folder / "data", 600)


def write_arrow(folder: Path) -> None:
    (folder / "data").mkdir()
    feather.write_feather(pa.table({"id": range(5)}), folder / "data" / "train.arrow")


def write_csv(folder: Path) -> None:
    (folder / "data").mkdir()
    (folder / "data" / "a.csv").write_text("zip,city\n01234,here\n56789,there\n")


def write_files(folder: Path) -> None:
    """Write all other formats, each where its block looks for it."""
    for name in ("logs", "data", "shards", "tokens", "bucket/train", "raw"):
        (folder / name).mkdir(parents=True)
    (folder / "logs" / "a.jsonl").write_text('{"score": 1}\n{"score": 2.5}\n')
    rows = tfrecords({"id": [number]} for number in range(3))
    (folder / "data" / "train-0.tfrecord.gz").write_bytes(gzip.compress(rows))
    with tarfile.open(folder / "shards" / "0.tar", "w") as tar:
        for number in range(3):
            member = tarfile.TarInfo(f"{number:06}.cls")
            member.size = 1
            tar.addfile(member, io.BytesIO(str(number).encode()))
    np.savez(folder / "features.npz", x=np.zeros((5, 2)), y=np.zeros(5))
    np.arange(3 * 2048 + 1, dtype="<u2").tofile(folder / "tokens" / "train.bin")
    pq.write_table(pa.table({"id": range(10)}), folder / "bucket" / "train" / "part-0.parquet")
    (folder / "raw" / "a.jsonl.gz").write_bytes(gzip.compress(b'{"text": "a"}\n{"text": "b"}\n'))


def write_raw(folder: Path) -> None:
    """Write what ``strata data prepare`` rewrites; its target is not there yet."""
    (folder / "raw").mkdir()
    (folder / "bucket").mkdir()
    (folder / "raw" / "a.jsonl.gz").write_bytes(gzip.compress(b'{"text": "a"}\n{"text": "b"}\n'))
