"""Rows: the files of a dataset as one sequence of rows, any range of which can be read by itself."""

from __future__ import annotations

import copy
import threading
from functools import partial
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol
from weakref import WeakValueDictionary

import numpy as np
import pyarrow as pa

from strata.data.files.addresses import Address, open_source
from strata.data.files.cache import Cache, open_cache
from strata.data.formats.registry import make_format
from strata.data.rows.column_types import ColumnType, Nulls
from strata.data.rows.columns import Columns
from strata.data.rows.decoded_blocks import BlockMemory
from strata.data.rows.index import Index
from strata.data.rows.partitions import build, is_partition
from strata.data.rows.reader_pool import ReaderPool
from strata.data.rows.scan import choose_files, load_index, open_file
from strata.data.rows.schemas import check_columns
from strata.data.rows.skips import SkippedRows
from strata.data.rows.splits import select_split
from strata.data.rows.typed_schema import TypedSchema

if TYPE_CHECKING:
    import os
    from collections.abc import Iterator, Mapping, Sequence

    from strata.data.files.random_access import ByteFile
    from strata.data.files.source import FileInfo, Source
    from strata.data.formats.protocol import FileMeta, Reader
    from strata.errors import CorruptFileError
    from strata.storage import Storage

# Decoded blocks kept in memory, and files kept open.
MEMORY_BYTES = 256 << 20
OPEN_FILES = 64
# Arrays of bytes and strings end at 2 GiB; from files of this much, they stay well below.
STRETCH_BYTES = 256 << 20


class Rows(Protocol):
    """What a loader reads from. Safe to use from several threads at once."""

    @property
    def num_rows(self) -> int:
        """How many rows there are."""
        ...

    @property
    def names(self) -> tuple[str, ...]:
        """The names of the columns."""
        ...

    def read(self, start: int, stop: int, columns: Sequence[str] | None = None) -> Columns:
        """Return rows [start, stop); what cannot be read is a CorruptFileError that says where."""
        ...


class Place(NamedTuple):
    """Rows [start, stop) of a dataset are those from ``first`` on in the file at ``path``."""

    start: int
    stop: int
    path: str
    first: int


class DatasetRows:
    """The rows of all files, in the order of their paths.

    A range is read from the blocks that it touches and no others. A block that a range covers only in part is kept
    in memory, up to ``memory_bytes``, for the range that wants the rest of it.
    """

    def __init__(
        self,
        source: Source,
        index: Index,
        cache: Cache,
        *,
        options: Mapping[str, Any],
        columns: Sequence[str] | None = None,
        memory_bytes: int = MEMORY_BYTES,
        nulls: Nulls = "mask",
        left_out: Sequence[SkippedRows] = (),
        bad: Mapping[str, CorruptFileError] | None = None,
    ) -> None:
        """``bad`` are files, by path, that were good when they were indexed and are not now: reading them fails."""
        self.index = index
        self._bad = dict(bad or {})
        self.left_out = tuple(left_out)
        """Files that were left out because they could not be understood; how many rows they had is not known."""
        self._options = dict(options)
        self._source = source
        self._cache = cache
        self._format = make_format(index.kind, self._options)
        self._typed = TypedSchema(index.schema, nulls)
        self._names = self._typed.choose(columns)
        check_columns(self.index.schema, self._typed.sources(self._names))
        self._memory = BlockMemory(memory_bytes)
        # Readers of one file share it: one mapping, one decompression.
        self._files: WeakValueDictionary[int, ByteFile] = WeakValueDictionary()
        self._files_lock = threading.Lock()
        self._readers = ReaderPool(self._open_reader, limit=OPEN_FILES)

    def __reduce__(self) -> tuple[Any, ...]:
        # Another process opens the files itself; what was found out about them goes along.
        options = {"options": self._options, "columns": self._names, "memory_bytes": self._memory.limit_bytes}
        options |= {"nulls": self._typed.nulls, "left_out": self.left_out, "bad": self._bad}
        return _revive, (self._source, self.index.to_bytes(), self._cache, options)

    def __repr__(self) -> str:
        return f"DatasetRows({self._source.url!r}, {self.num_rows} rows, {', '.join(self._names)})"

    @property
    def num_rows(self) -> int:
        """How many rows there are."""
        return self.index.num_rows

    @property
    def names(self) -> tuple[str, ...]:
        """The names of the columns."""
        return self._names

    @property
    def schema(self) -> pa.Schema:
        """The columns with their types."""
        return pa.schema([self._typed.given.field(name) for name in self._names])

    @property
    def types(self) -> dict[str, ColumnType]:
        """What batches have of each column of the files."""
        return {name: self._typed.types[name] for name in self._typed.sources(self._names)}

    @property
    def fingerprint(self) -> str:
        """Names what row numbers mean; it changes when files are added, removed or resized."""
        return self.index.fingerprint

    @property
    def block_rows(self) -> int | None:
        """How many rows a block has on average; None where rows need no blocks. Shards of this size read best."""
        count = len(self.index.block_rows)
        return max(1, self.num_rows // count) if count else None

    def read(self, start: int, stop: int, columns: Sequence[str] | None = None) -> Columns:
        """Return rows [start, stop), in these columns or in all."""
        if not 0 <= start <= stop <= self.num_rows:
            raise ValueError(f"rows {start} to {stop} are not within the {self.num_rows} rows of {self._source.url}")
        names = self._typed.choose(columns, self._names)
        if start == stop or not names:
            return self._typed.empty(names) if names else Columns({}, stop - start)
        parts = [
            part for number, low, high in self._split(start, stop) for part in self._read_file(number, low, high, names)
        ]
        return parts[0] if len(parts) == 1 else Columns.concat(parts)

    def keeping_nulls(self) -> DatasetRows:
        """Return the same rows, of which missing values stay as Arrow has them, for whoever writes them anew."""
        return DatasetRows(
            self._source,
            self.index,
            self._cache,
            options=self._options,
            columns=self._typed.sources(self._names),
            memory_bytes=self._memory.limit_bytes,
            nulls="arrow",
        )

    def places(self, start: int, stop: int) -> list[Place]:
        """Return rows [start, stop) block by block: what can be read or lost by itself, and in which file it is."""
        found = []
        for number, low, high in self._split(start, stop):
            base, path = int(self.index.row_starts[number]), self._source.name_of(self.index.files[number].path)
            meta = self.index.meta(number)
            first, last = np.searchsorted(meta.block_rows, (low + 1, high))
            edges = meta.block_rows[first:last].tolist()
            for first, end in zip([low, *edges], [*edges, high], strict=True):
                found.append(Place(base + first, base + end, path, first))
        return found

    def _split(self, start: int, stop: int) -> Iterator[tuple[int, int, int]]:
        """Yield (file, first row, end) of each file that has some of the rows."""
        starts = self.index.row_starts
        number = int(np.searchsorted(starts, start, side="right")) - 1
        while start < stop:
            end = min(stop, int(starts[number + 1]))
            if start < end:
                base = int(starts[number])
                yield number, start - base, end - base
                start = end
            number += 1

    def _read_file(self, number: int, start: int, stop: int, names: tuple[str, ...]) -> Iterator[Columns]:
        """Yield the rows in up to three parts: the end of a block, whole blocks, and the start of one."""
        meta = self.index.meta(number)
        if not len(meta.block_rows):
            yield self._read_rows(number, start, stop, names)
            return
        blocks = meta.blocks_of(start, stop)
        begin = start
        for block in dict.fromkeys((blocks[0], blocks[-1])):
            low, high = _block_rows(meta, block)
            is_whole = start <= low and high <= stop
            if is_whole and self._memory.peek((number, block, names)) is None:
                continue
            yield from self._read_blocks(number, meta, begin, low, names)
            load = partial(self._read_rows, number, low, high, names)
            columns = self._memory.get((number, block, names), load)
            begin = min(high, stop)
            yield columns.slice(max(start, low) - low, begin - low)
        yield from self._read_blocks(number, meta, begin, stop, names)

    def _read_blocks(
        self, number: int, meta: FileMeta, start: int, stop: int, names: tuple[str, ...]
    ) -> Iterator[Columns]:
        """Yield rows of whole blocks, in stretches that Arrow can hold in one array."""
        while start < stop:
            block = int(np.searchsorted(meta.block_rows, start))
            end = int(np.searchsorted(meta.block_offsets, meta.block_offsets[block] + STRETCH_BYTES))
            following = meta.rows if end >= len(meta.block_rows) else int(meta.block_rows[max(end, block + 1)])
            yield self._read_rows(number, start, min(stop, following), names)
            start = following

    def _read_rows(self, number: int, start: int, stop: int, names: tuple[str, ...]) -> Columns:
        if (error := self._bad.get(self.index.files[number].path)) is not None:
            # A new one each time: threads read at once, and each adds to it where it was raised.
            raise copy.copy(error)
        stored = self._typed.sources(names)
        added = [name for name in stored if is_partition(self.index.schema.field(name))]
        in_file = [name for name in stored if name not in added]
        if in_file:
            with self._readers.lend(number) as reader:
                read = reader.read(start, stop, in_file)
                if (file := self._files.get(number)) is not None:
                    file.check_unchanged()
        else:
            read = Columns({}, stop - start)
        if added:
            path = self.index.files[number].path
            made = {name: build(self.index.schema.field(name), path, stop - start) for name in added}
            read = Columns({**{name: read[name] for name in in_file}, **made}, stop - start)
        where = self._source.name_of(self.index.files[number].path)
        return self._typed.conform(read, names, lambda row: f"{where}, row {start + row}")

    def _open_reader(self, number: int) -> Reader:
        meta = self.index.meta(number)
        with self._files_lock:
            file = self._files.get(number)
            if file is None:
                file = open_file(self._source, self.index.files[number], self._cache, data_bytes=meta.data_bytes)
                self._files[number] = file
        return self._format.open(file, meta, self.index.schema)


def open_rows(
    url: Address | Sequence[Address],
    *,
    format: str | None = None,  # noqa: A002 - the word that users know
    options: Mapping[str, Any] | None = None,
    columns: Sequence[str] | None = None,
    split: str | None = None,
    index: Index | None = None,
    storage: Storage | None = None,
    cache: Cache | str | os.PathLike[str] | None = None,
    memory_bytes: int = MEMORY_BYTES,
    nulls: Nulls = "mask",
    skip_bad: bool = False,
) -> DatasetRows:
    """Return the rows of a directory, a file, a pattern such as ``s3://bucket/data/*.parquet``, or a list of these.

    The ``format`` is guessed from the files' endings, and ``options`` are those of the format. Of a place with
    several splits, ``split`` says which to read: one, several as ``"train+validation"``, or ``"all"``. The index that
    ``strata data index`` wrote is used if it is there, else the files are scanned now. With a ``storage``, ``url`` is a
    path in it. ``cache`` is a directory for remote and decompressed data; the settings name the default.
    ``nulls`` says what becomes of missing numbers: see :data:`strata.data.rows.column_types.Nulls`.
    With ``skip_bad``, files that cannot be understood are left out; ``left_out`` names them. One that an index knows,
    because it was good then, keeps its rows, and reading them fails.
    """
    source = select_split(open_source(url, storage), split)
    opened = open_cache(cache)
    options = options if options is not None or index is None else index.options
    bad: dict[str, CorruptFileError] = {}

    def note(info: FileInfo, error: CorruptFileError) -> None:
        bad[info.path] = error

    if index is None:
        index = load_index(source, format, options or {}, opened, on_bad=note if skip_bad else None)
    else:
        index.check(source, choose_files(source, index.kind)[1])
    indexed = {info.path for info in index.files} if bad else set()
    return DatasetRows(
        source,
        index,
        opened,
        options=options or {},
        columns=columns,
        memory_bytes=memory_bytes,
        nulls=nulls,
        left_out=[
            SkippedRows(0, source.name_of(path), 0, 0, str(error)) for path, error in bad.items() if path not in indexed
        ],
        bad={path: error for path, error in bad.items() if path in indexed},
    )


def _revive(source: Source, index: bytes, cache: Cache, options: dict[str, Any]) -> DatasetRows:
    return DatasetRows(source, Index.from_bytes(index, name=source.url), cache, **options)


def _block_rows(meta: FileMeta, block: int) -> tuple[int, int]:
    end = int(meta.block_rows[block + 1]) if block + 1 < len(meta.block_rows) else meta.rows
    return int(meta.block_rows[block]), end
