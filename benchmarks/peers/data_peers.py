"""The contestants of benchmarks/data.py: Strata and its peers, each going through the same samples in batches.

A sample is a number and 8 KB of noise, or in CSV and JSON lines as many letters. Each contestant is a function of
(folder, batch size, workers) that returns something to iterate; each iteration is one epoch, and each batch has to give
``len`` by :func:`batch_length`.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

SAMPLE_BYTES = 8_192
FILES = 8
BLOCK_ROWS = 1_000

Batches = Iterable[Any]
Contestant = Callable[[Path, int, int], Batches]


def noise(number: int, first: int, count: int) -> np.ndarray[Any, np.dtype[np.uint8]]:
    """Return the samples of one file."""
    return np.random.default_rng((number, first)).integers(0, 256, (count, SAMPLE_BYTES), dtype=np.uint8)


def files_of(samples: int) -> list[tuple[int, int, int]]:
    """Return (file, first sample, count) for each file."""
    size = -(-samples // FILES)
    return [(number, number * size, min(size, samples - number * size)) for number in range(FILES)]


def write_parquet(folder: Path, samples: int) -> None:
    """Write files with row groups of bytes of one length."""
    import pyarrow.parquet as pq

    for number, table in _tables(samples):
        path = folder / f"{number}.parquet"
        pq.write_table(table, path, row_group_size=BLOCK_ROWS, compression="none", use_dictionary=False)


def write_arrow(folder: Path, samples: int) -> None:
    """Write the same as Arrow files, in batches of as many rows."""
    import pyarrow.feather as feather

    for number, table in _tables(samples):
        feather.write_feather(table, folder / f"{number}.arrow", compression="uncompressed", chunksize=BLOCK_ROWS)


def _tables(samples: int) -> Iterator[tuple[int, Any]]:
    import pyarrow as pa

    for number, first, count in files_of(samples):
        data = pa.FixedSizeBinaryArray.from_buffers(
            pa.binary(SAMPLE_BYTES), count, [None, pa.py_buffer(noise(number, first, count))]
        )
        yield number, pa.table({"id": np.arange(first, first + count), "x": data})


def write_csv(folder: Path, samples: int) -> None:
    """Write lines of a number and letters."""
    for number, first, count in files_of(samples):
        with (folder / f"{number}.csv").open("w") as file:
            file.write("id,x\n")
            for at, text in enumerate(_texts(number, first, count), start=first):
                file.write(f"{at},{text}\n")


def write_jsonl(folder: Path, samples: int) -> None:
    """Write objects with a number and letters."""
    for number, first, count in files_of(samples):
        with (folder / f"{number}.jsonl").open("w") as file:
            for at, text in enumerate(_texts(number, first, count), start=first):
                file.write(f'{{"id": {at}, "x": "{text}"}}\n')


def _texts(number: int, first: int, count: int) -> Iterator[str]:
    for row in noise(number, first, count):
        yield (row % 26 + 97).tobytes().decode()


def write_npy(folder: Path, samples: int) -> None:
    """Write arrays of samples."""
    for number, first, count in files_of(samples):
        np.save(folder / f"{number}.npy", noise(number, first, count))


def write_tar(folder: Path, samples: int) -> None:
    """Write archives with a file for each sample, as WebDataset wants them."""
    import io
    import tarfile

    for number, first, count in files_of(samples):
        with tarfile.open(folder / f"{number:06d}.tar", "w") as tar:
            for at, row in enumerate(noise(number, first, count), start=first):
                entry = tarfile.TarInfo(f"{at:08d}.bin")
                entry.size = SAMPLE_BYTES
                tar.addfile(entry, io.BytesIO(row.tobytes()))


def write_litdata(folder: Path, samples: int) -> None:
    """Write LitData's own chunks."""
    import litdata

    size = -(-samples // FILES)
    litdata.optimize(
        fn=_LitdataFile(size, samples),
        inputs=list(range(FILES)),
        output_dir=str(folder),
        chunk_bytes="32MB",
        num_workers=1,
    )


class _LitdataFile:
    def __init__(self, size: int, samples: int) -> None:
        self.size, self.samples = size, samples

    def __call__(self, number: int) -> Iterator[dict[str, Any]]:
        first = number * self.size
        for at, row in enumerate(noise(number, first, min(self.size, self.samples - first)), start=first):
            yield {"id": at, "x": row}


WRITERS: dict[str, Callable[[Path, int], None]] = {
    "parquet": write_parquet,
    "arrow": write_arrow,
    "csv": write_csv,
    "jsonl": write_jsonl,
    "npy": write_npy,
    "tar": write_tar,
    "litdata": write_litdata,
}


def strata(folder: Path, batch_size: int, workers: int, *, order: str = "sticky") -> Batches:
    """Strata, in one process, or in the workers of a torch DataLoader."""
    from strata.data import open_dataset

    dataset = open_dataset(str(folder), batch_size=batch_size, order=order, to="torch" if workers else "numpy")
    if not workers:
        return dataset
    from strata.integrations.torch_data import TorchDataset

    return _torch_loader(TorchDataset(dataset), None, workers)


def pyarrow_in_order(folder: Path, batch_size: int, workers: int) -> Batches:
    """Parquet as fast as pyarrow gives it, neither shuffled nor resumable: the limit."""
    import pyarrow.parquet as pq

    class InOrder:
        def __iter__(self) -> Iterator[Any]:
            for path in sorted(folder.glob("*.parquet")):
                for batch in pq.ParquetFile(path).iter_batches(batch_size):
                    x = batch.column("x")
                    rows = np.frombuffer(x.buffers()[1], dtype=np.uint8)[x.offset * SAMPLE_BYTES :]
                    yield {"id": batch.column("id").to_numpy(), "x": rows.reshape(-1, SAMPLE_BYTES)[: len(x)]}

    return InOrder()


def _reader_of(kind: str) -> Callable[[Path], Any]:
    from pyarrow import csv, feather, json, parquet

    return {
        "parquet": parquet.read_table,
        "arrow": feather.read_table,
        "csv": csv.read_csv,
        "jsonl": json.read_json,
    }[kind]


def torch_pyarrow(folder: Path, batch_size: int, workers: int, *, kind: str = "parquet") -> Batches:
    """A plain torch DataLoader: files in a random order, rows shuffled within each file."""
    import torch
    from torch.utils.data import IterableDataset, get_worker_info

    read = _reader_of(kind)

    class ByFile(IterableDataset[Any]):
        def __iter__(self) -> Iterator[Any]:
            info = get_worker_info()
            rng = np.random.default_rng()
            files = rng.permutation(sorted(folder.glob(f"*.{kind}"))).tolist()
            for path in files[info.id :: info.num_workers] if info else files:
                table = read(path)
                shuffled = table.take(rng.permutation(len(table))).combine_chunks()
                ids, x = shuffled["id"].to_numpy(), shuffled["x"].chunk(0)
                for at in range(0, len(table), batch_size):
                    part = slice(at, at + batch_size)
                    yield {"id": torch.from_numpy(ids[part].copy()), "x": _values(x[part])}

    def _values(x: Any) -> Any:
        if kind in ("csv", "jsonl"):
            return x.to_pylist()
        rows = np.frombuffer(x.buffers()[1], dtype=np.uint8).reshape(-1, SAMPLE_BYTES)
        return torch.from_numpy(rows[x.offset : x.offset + len(x)].copy())

    return _torch_loader(ByFile(), None, workers)


def torch_npy(folder: Path, batch_size: int, workers: int) -> Batches:
    """A plain torch DataLoader over mapped files, shuffled over all samples."""
    import torch
    from torch.utils.data import BatchSampler, Dataset, RandomSampler

    class Mapped(Dataset[Any]):
        def __init__(self) -> None:
            self.parts = [np.load(path, mmap_mode="r") for path in sorted(folder.glob("*.npy"))]
            self.size = len(self.parts[0])

        def __len__(self) -> int:
            return sum(map(len, self.parts))

        def __getitem__(self, wanted: list[int]) -> Any:
            return {"x": torch.from_numpy(np.stack([self.parts[at // self.size][at % self.size] for at in wanted]))}

    data = Mapped()
    return _torch_loader(data, BatchSampler(RandomSampler(data), batch_size, drop_last=False), workers)


def webdataset(folder: Path, batch_size: int, workers: int) -> Batches:
    """WebDataset with its usual shuffle: archives, then a buffer of 1,000 samples."""
    import webdataset as wds

    urls = [str(path) for path in sorted(folder.glob("*.tar"))]
    data = wds.WebDataset(urls, shardshuffle=FILES, empty_check=False).shuffle(1_000).to_tuple("bin")
    return _torch_loader(data.batched(batch_size, partial=True), None, workers)


def litdata(folder: Path, batch_size: int, workers: int) -> Batches:
    """LitData with its own loader, shuffled and resumable."""
    from litdata import StreamingDataLoader, StreamingDataset

    data = StreamingDataset(str(folder), shuffle=True, drop_last=False)
    return StreamingDataLoader(data, batch_size=batch_size, num_workers=workers)


def _torch_loader(data: Any, sampler: Any, workers: int) -> Batches:
    from torch.utils.data import DataLoader

    options = {"batch_size": None, "num_workers": workers, "persistent_workers": workers > 0}
    return DataLoader(data, sampler=sampler, **options)


# By format: the contestants, Strata's first.
CONTESTANTS: dict[str, dict[str, Contestant]] = {
    "parquet": {
        "strata": strata,
        "strata global": partial(strata, order="global"),
        "torch + pyarrow": torch_pyarrow,
        "pyarrow in order": pyarrow_in_order,
    },
    "arrow": {"strata": strata, "torch + pyarrow": partial(torch_pyarrow, kind="arrow")},
    "csv": {"strata": strata, "torch + pyarrow": partial(torch_pyarrow, kind="csv")},
    "jsonl": {"strata": strata, "torch + pyarrow": partial(torch_pyarrow, kind="jsonl")},
    "npy": {"strata": strata, "strata global": partial(strata, order="global"), "torch + mmap": torch_npy},
    "tar": {"strata": strata, "webdataset": webdataset},
    "litdata": {"litdata": litdata},
}


# What each imports, which is done before the clock starts.
MODULES = {
    "strata": ("strata.data.dataset", "strata.config", "pyarrow.parquet"),
    "strata global": ("strata.data.dataset", "strata.config", "pyarrow.parquet"),
    "torch + pyarrow": ("torch.utils.data", "pyarrow.parquet", "pyarrow.feather", "pyarrow.csv", "pyarrow.json"),
    "torch + mmap": ("torch.utils.data",),
    "pyarrow in order": ("pyarrow.parquet",),
    "webdataset": ("torch.utils.data", "webdataset"),
    "litdata": ("torch.utils.data", "litdata"),
}


def batch_length(batch: Any) -> int:
    """Return how many samples a batch has, whatever its shape."""
    if isinstance(batch, dict):
        return len(batch["x"] if "x" in batch else next(iter(batch.values())))
    return len(batch) if hasattr(batch, "shape") else len(batch[0])


def drop_cache(folder: Path) -> None:
    """Let the kernel forget the files, so that the next one who reads them waits for the disk."""
    for path in folder.rglob("*"):
        if path.is_file():
            with path.open("rb") as file:
                os.fsync(file.fileno())
                os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)
