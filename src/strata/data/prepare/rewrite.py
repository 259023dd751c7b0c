"""Writing a dataset anew as Parquet files of equal size, in order or shuffled; it is there when it is whole."""

from __future__ import annotations

import shutil
import tempfile
from contextlib import closing, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from strata.data.files.cache import open_cache
from strata.data.files.source import UNFINISHED, LocalSource, StorageSource
from strata.data.files.storage_loop import wait_for
from strata.data.formats import tensors
from strata.data.prepare.engines import check_engine, run_tasks, start_engine
from strata.data.prepare.external_shuffle import deal_rows, gather_rows
from strata.data.prepare.unfinished import new_folder, remove, sync, working_folder, write_directory
from strata.data.rows.scan import choose_files, scan_files, store_index
from strata.errors import DataError, DatasetExistsError
from strata.storage import open_storage

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from strata.data.files.cache import Cache
    from strata.data.files.source import Source
    from strata.data.rows.row_sequence import DatasetRows

# What a row group holds if nothing else is said: enough to decode fast, and little to decode in vain.
GROUP_BYTES = 4 << 20
FILE_BYTES = 256 << 20
# Rows are read in pieces of about this size.
READ_BYTES = 64 << 20
SAMPLE_ROWS = 1000
CODECS = ("zstd", "lz4", "snappy", "gzip", "none")


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """How files are written. What is None is chosen by the size of the rows."""

    rows_per_file: int | None = None
    rows_per_group: int | None = None
    shuffle: bool = False
    seed: int = 0
    compression: str = "zstd"
    checksums: bool = False
    # Arrays of one shape as bytes, which read many times faster, or as lists, which every tool knows as such.
    arrays_as_bytes: bool = True

    def __post_init__(self) -> None:
        for name in ("rows_per_file", "rows_per_group"):
            value = getattr(self, name)
            if value is not None and value < 1:
                raise ValueError(f"{name}={value} must be 1 or more")
        if self.compression not in CODECS:
            raise ValueError(f"compression={self.compression!r} is not known; use one of {', '.join(CODECS)}")


@dataclass(frozen=True, slots=True)
class Prepared:
    """What was written."""

    url: str
    files: int
    rows: int
    rows_per_group: int
    size_bytes: int


def prepare(
    rows: DatasetRows,
    target: str,
    plan: Plan,
    *,
    cache: Cache | str | None = None,
    on_rows: Callable[[int], None] = lambda count: None,
    processes: int = 1,
    engine: str = "local",
) -> Prepared:
    """Write all rows to ``target``, a new directory or prefix, with an index beside them.

    Files differ by at most one row. A directory appears when it is whole. Objects appear one by one, but beside a mark
    that keeps everyone from reading them until all are there. Whoever is killed leaves nothing that looks finished,
    and the next try begins by clearing it away. Files are the same to the byte for any number of ``processes`` and any
    ``engine``; on a cluster, the directory of the target, or that of temporary files, is shared by its machines.
    """
    check_engine(engine)
    rows = rows.keeping_nulls()
    if rows.num_rows == 0:
        raise DataError(
            "the dataset has no rows, so there is nothing to prepare; look at it with 'strata data inspect'"
        )
    row_bytes = max(1, rows.read(0, min(SAMPLE_ROWS, rows.num_rows)).size_bytes // min(SAMPLE_ROWS, rows.num_rows))
    rows_per_file = plan.rows_per_file or max(1, FILE_BYTES // row_bytes)
    edges = _even_edges(rows.num_rows, -(-rows.num_rows // rows_per_file))
    group = plan.rows_per_group or max(1, min(GROUP_BYTES // row_bytes, int(np.diff(edges).max())))
    piece = max(1, READ_BYTES // row_bytes)
    schema = tensors.encoded_schema(rows.schema, as_bytes=plan.arrays_as_bytes)
    is_local = "://" not in target or target.startswith("file://")
    start_engine(engine)
    with _local_target(target) if is_local else _remote_target(target) as place:
        with working_folder(place.folder) as working:
            names = [f"part-{number:05}-of-{len(edges) - 1:05}.parquet" for number in range(len(edges) - 1)]
            if plan.shuffle:
                deal_rows(rows, schema, edges, plan.seed, working, piece)
            tasks = [
                (rows, edges[number : number + 2], schema, plan, group, piece, str(working), name, str(number))
                for number, name in enumerate(names)
            ]
            with closing(run_tasks(engine, write_part, tasks, processes=processes)) as parts:
                for path, dealt, count in parts:
                    place.publish(Path(path))
                    # Not before the file is done: a cluster repeats a task whose process died.
                    (working / dealt).unlink(missing_ok=not plan.shuffle)
                    on_rows(count)
        opened = open_cache(cache)
        kind, files = choose_files(place.source, "parquet")
        index = scan_files(place.source, kind, {}, files, opened)
        assert index.num_rows == rows.num_rows
        store_index(place.source, index, opened)
    return Prepared(target, len(index.files), index.num_rows, group, index.size_bytes)


def _even_edges(count: int, parts: int) -> list[int]:
    return [count * number // parts for number in range(parts + 1)]


def write_part(
    rows: DatasetRows,
    edges: list[int],
    schema: pa.Schema,
    plan: Plan,
    rows_per_group: int,
    piece: int,
    working: str,
    name: str,
    dealt: str,
) -> tuple[str, str, int]:
    """Write one file, of rows in order or of those that were dealt to it.

    Return the path, which no other attempt has, the name of the dealt rows, and how many rows the file has.
    """
    start, stop = edges
    if plan.shuffle:
        pieces = gather_rows(Path(working, dealt), schema, piece)
    else:
        pieces = (rows.read(low, min(stop, low + piece)) for low in range(start, stop, piece))
    path = new_folder(Path(working)) / name
    rest = schema.empty_table()
    with pq.ParquetWriter(path, schema, **_settings(schema, plan)) as writer:
        for columns in pieces:
            rest = pa.concat_tables([rest, tensors.encode(columns, schema)])
            rest = _write_groups(writer, rest, rows_per_group)
        if rest.num_rows:
            writer.write_table(rest, row_group_size=rows_per_group)
    return str(path), dealt, stop - start


def _write_groups(writer: pq.ParquetWriter, table: pa.Table, rows_per_group: int) -> pa.Table:
    """Write whole row groups, and return the rows that are left over."""
    whole = table.num_rows - table.num_rows % rows_per_group
    if whole:
        writer.write_table(table.slice(0, whole), row_group_size=rows_per_group)
    return table.slice(whole)


def _settings(schema: pa.Schema, plan: Plan) -> dict[str, Any]:
    # Words repeat, and numbers and bytes mostly do not: a dictionary of those is built in vain.
    repeating = [field.name for field in schema if pa.types.is_string(field.type)]
    return {
        "compression": plan.compression,
        "use_dictionary": repeating or False,
        "write_page_checksum": plan.checksums,
    }


@dataclass(frozen=True, slots=True)
class _Place:
    folder: Path
    source: Source
    publish: Callable[[Path], None]


@contextmanager
def _local_target(url: str) -> Iterator[_Place]:
    with write_directory(url, command="prepare") as folder:
        for left in list(folder.iterdir()):  # by a run that was killed
            remove(left)

        def publish(path: Path) -> None:
            sync(path)
            path.rename(folder / path.name)

        try:
            yield _Place(folder, LocalSource(folder, ""), publish)
        except BaseException:
            shutil.rmtree(folder, ignore_errors=True)
            raise


@contextmanager
def _remote_target(url: str) -> Iterator[_Place]:
    storage = open_storage(url)

    async def clear() -> None:
        found = [info.path async for info in storage.list()]
        if found and UNFINISHED not in found:
            raise DatasetExistsError(url, "there is something already")
        await storage.write(UNFINISHED, b"")
        for path in found:
            if path.startswith("part-"):
                await storage.delete(path)

    async def upload(path: Path) -> None:
        async with storage.writer(path.name) as writer:
            with path.open("rb") as file:
                while data := file.read(8 << 20):
                    await writer.write(data)

    wait_for(clear())
    with tempfile.TemporaryDirectory(prefix="strata-prepare-") as folder:

        def publish(path: Path) -> None:
            wait_for(upload(path))
            path.unlink()

        source = StorageSource(storage, "", "", url=url.rstrip("/"), finished=False)
        yield _Place(Path(folder), source, publish)
    wait_for(storage.delete(UNFINISHED))
