"""Grain, torchdata's nodes and Ray Data in benchmarks/data.py, each on Parquet, tar, tokens and JPEG.

Each reads as its documentation shows, shuffled: by its own reader where it has one, else sample by sample from a source
that gives any sample. They get two threads where Strata has two. Grain starts its worker processes anew for each epoch,
and nodes do so here as well: that is part of the figures with workers. Contestants are functions of (folder, batch
size, workers), as in data_peers.
"""

from __future__ import annotations

import functools
import io
import itertools
import tarfile
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.peers.data_peers import SAMPLE_BYTES, Batches, Contestant

TOKENS = SAMPLE_BYTES // 2
# As WebDataset's: where a library shuffles through a buffer, it holds so many samples.
BUFFER = 1_000
THREADS = 2


class Members:
    """The members of tars by number, as bytes, or decoded to pictures; files are opened in the process that reads."""

    def __init__(self, folder: Path, *, decode: bool) -> None:
        self.decode = decode
        self.places: list[tuple[str, int, int]] = []
        for path in sorted(folder.glob("*.tar")):
            with tarfile.open(path) as tar:
                self.places += [(str(path), entry.offset_data, entry.size) for entry in tar]

    def __len__(self) -> int:
        return len(self.places)

    def __getitem__(self, number: int) -> dict[str, Any]:
        path, offset, size = self.places[number]
        with open(path, "rb") as file:  # noqa: PTH123 - Path costs as much as the read
            file.seek(offset)
            data = file.read(size)
        if not self.decode:
            return {"x": np.frombuffer(data, np.uint8)}
        from PIL import Image

        return {"x": np.asarray(Image.open(io.BytesIO(data)).convert("RGB"))}


class Sequences:
    """The sequences of token files by number, from mapped files."""

    def __init__(self, folder: Path) -> None:
        self.paths = [str(path) for path in sorted(folder.glob("*.bin"))]
        self.counts = [Path(path).stat().st_size // SAMPLE_BYTES for path in self.paths]

    def __len__(self) -> int:
        return sum(self.counts)

    def __getitem__(self, number: int) -> dict[str, Any]:
        return {"x": _mapped(self.paths[number // self.counts[0]])[number % self.counts[0]]}


@functools.cache
def _mapped(path: str) -> Any:
    return np.memmap(path, np.uint16, "r").reshape(-1, TOKENS)


SOURCES: dict[str, Callable[[Path], Any]] = {
    "tar": partial(Members, decode=False),
    "jpeg": partial(Members, decode=True),
    "tokens": Sequences,
}


class Epochs:
    """Something to iterate several times: each iteration gets its number."""

    def __init__(self, begin: Callable[[int], Iterator[Any]]) -> None:
        self._begin = begin
        self._numbers = itertools.count()

    def __iter__(self) -> Iterator[Any]:
        return self._begin(next(self._numbers))


def grain_indexed(folder: Path, batch_size: int, workers: int, *, kind: str) -> Batches:
    """Grain over a source with random access, shuffled over all samples."""
    import grain

    source = SOURCES[kind](folder)

    def begin(epoch: int) -> Iterator[Any]:
        data = grain.MapDataset.source(source).shuffle(seed=epoch).batch(batch_size)
        reading = grain.ReadOptions(num_threads=THREADS, prefetch_buffer_size=8)
        return iter(_in_grain_workers(data.to_iter_dataset(reading), workers))

    return Epochs(begin)


def grain_parquet(folder: Path, batch_size: int, workers: int) -> Batches:
    """Grain's reader of Parquet: files in a random order, interleaved, through a window."""
    import grain
    from grain import experimental

    paths = [str(path) for path in sorted(folder.glob("*.parquet"))]

    def begin(epoch: int) -> Iterator[Any]:
        shuffled = np.random.default_rng(epoch).permutation(paths).tolist()
        rows = experimental.ParquetIterDataset(shuffled)
        mixed = experimental.WindowShuffleIterDataset(rows.map(_as_array), window_size=BUFFER, seed=epoch)
        return iter(_in_grain_workers(mixed.batch(batch_size), workers))

    assert grain.__version__
    return Epochs(begin)


def _as_array(row: dict[str, Any]) -> dict[str, Any]:
    return {"id": row["id"], "x": np.frombuffer(row["x"], np.uint8)}


def _in_grain_workers(data: Any, workers: int) -> Any:
    import grain

    return data.mp_prefetch(grain.MultiprocessingOptions(num_workers=workers)) if workers else data


def nodes_indexed(folder: Path, batch_size: int, workers: int, *, kind: str) -> Batches:
    """torchdata's nodes over a source with random access, read on threads, or in worker processes."""
    from torchdata import nodes

    source = SOURCES[kind](folder)

    def begin(epoch: int) -> Iterator[Any]:
        numbers = np.random.default_rng(epoch).permutation(len(source)).tolist()
        places = nodes.Batcher(nodes.IterableWrapper(numbers), batch_size, drop_last=False)
        return iter(nodes.Loader(_mapped_by_nodes(places, partial(_gather, source), workers)))

    return Epochs(begin)


def _gather(source: Any, numbers: list[int]) -> dict[str, Any]:
    return {"x": np.stack([source[number]["x"] for number in numbers])}


def nodes_parquet(folder: Path, batch_size: int, workers: int) -> Batches:
    """torchdata's nodes over row groups in a random order, each shuffled and cut into batches."""
    import pyarrow.parquet as pq
    from torchdata import nodes

    groups = [
        (str(path), number)
        for path in sorted(folder.glob("*.parquet"))
        for number in range(pq.ParquetFile(path).num_row_groups)
    ]

    def begin(epoch: int) -> Iterator[Any]:
        order = np.random.default_rng(epoch).permutation(len(groups)).tolist()
        places = nodes.IterableWrapper([groups[number] for number in order])
        cut = _mapped_by_nodes(places, partial(_cut_group, batch_size), workers)
        return iter(nodes.Loader(nodes.Unbatcher(cut)))

    return Epochs(begin)


def _cut_group(batch_size: int, place: tuple[str, int]) -> list[dict[str, Any]]:
    import pyarrow.parquet as pq

    path, number = place
    table = pq.ParquetFile(path).read_row_group(number).combine_chunks()
    x = table.column("x").chunk(0)
    rows = np.frombuffer(x.buffers()[1], np.uint8).reshape(-1, SAMPLE_BYTES)[x.offset :]
    order = np.random.default_rng().permutation(len(x))
    ids = table.column("id").to_numpy()
    parts = [order[at : at + batch_size] for at in range(0, len(order), batch_size)]
    return [{"id": ids[part], "x": rows[part]} for part in parts]


def _mapped_by_nodes(source: Any, function: Callable[[Any], Any], workers: int) -> Any:
    from torchdata import nodes

    method = "process" if workers else "thread"
    return nodes.ParallelMapper(source, function, num_workers=workers or THREADS, method=method)


def prepare_grain() -> None:
    """Let Grain start worker processes, which it refuses to a program that is none of absl's."""
    from absl import flags

    flags.FLAGS.mark_as_parsed()


def start_ray() -> None:
    """Start Ray on this machine, which is no part of what is measured."""
    import ray

    ray.init(
        num_cpus=2, include_dashboard=False, log_to_driver=False, logging_level="error", object_store_memory=1 << 30
    )
    context = ray.data.DataContext.get_current()
    context.enable_progress_bars = False


def ray_data(folder: Path, batch_size: int, workers: int, *, kind: str) -> Batches:
    """Ray Data: its reader, files in a random order, and a buffer; it always works in processes of its own."""
    import ray

    read = {
        "parquet": lambda: ray.data.read_parquet(str(folder), shuffle="files"),
        "tar": lambda: ray.data.read_webdataset(_paths(folder, "tar"), shuffle="files", decoder=None),
        "jpeg": lambda: ray.data.read_webdataset(_paths(folder, "tar"), shuffle="files", decoder=None),
        "tokens": lambda: ray.data.read_binary_files(_paths(folder, "bin"), shuffle="files"),
    }[kind]
    work = {"jpeg": _decode_column, "tokens": _cut_sequences}.get(kind)

    def begin(_: int) -> Iterator[Any]:
        data = read()
        if work is not None:
            data = data.map_batches(work, batch_size=1 if kind == "tokens" else 64)
        buffered = data.iter_batches(batch_size=batch_size, local_shuffle_buffer_size=BUFFER)
        return ({"x": batch["bin" if kind == "tar" else "x"]} for batch in buffered)

    return Epochs(begin)


def _paths(folder: Path, ending: str) -> list[str]:
    return [str(path) for path in sorted(folder.glob(f"*.{ending}"))]


def _decode_column(batch: dict[str, Any]) -> dict[str, Any]:
    from PIL import Image

    return {"x": np.stack([np.asarray(Image.open(io.BytesIO(data)).convert("RGB")) for data in batch["jpg"]])}


def _cut_sequences(batch: dict[str, Any]) -> dict[str, Any]:
    return {"x": np.concatenate([np.frombuffer(data, np.uint16).reshape(-1, TOKENS) for data in batch["bytes"]])}


def _contestants(kind: str) -> dict[str, Contestant]:
    is_indexed = kind in SOURCES
    return {
        "grain": partial(grain_indexed, kind=kind) if is_indexed else grain_parquet,
        "torchdata nodes": partial(nodes_indexed, kind=kind) if is_indexed else nodes_parquet,
        "ray data": partial(ray_data, kind=kind),
    }


LIBRARY_CONTESTANTS: dict[str, dict[str, Contestant]] = {
    kind: _contestants(kind) for kind in ("parquet", "tar", "tokens", "jpeg")
}
LIBRARY_MODULES = {
    "grain": ("grain", "grain.experimental", "PIL.Image"),
    "torchdata nodes": ("torchdata.nodes", "pyarrow.parquet", "PIL.Image"),
    "ray data": ("ray.data", "pyarrow.parquet"),
}
# What is done before the clock starts, beside imports.
LIBRARY_STARTS: dict[str, Callable[[], None]] = {"grain": prepare_grain, "ray data": start_ray}
