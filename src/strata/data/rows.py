"""Rows: the files of a dataset as one sequence of rows, any range of which can be read by itself."""

from __future__ import annotations

import threading
from functools import partial
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol
from weakref import WeakValueDictionary

import numpy as np
import pyarrow as pa

from strata.data.cache import Cache, open_cache
from strata.data.columns import Columns
from strata.data.formats import tensors
from strata.data.formats.registry import make_format
from strata.data.index import Index
from strata.data.memory import BlockMemory
from strata.data.readers import ReaderPool
from strata.data.scan import choose_files, load_index, open_file
from strata.data.source import open_source

if TYPE_CHECKING:
    import os
    from collections.abc import Iterator, Mapping, Sequence

    from strata.data.files import ByteFile
    from strata.data.formats.protocol import FileMeta, Reader
    from strata.data.source import Source
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
    ) -> None:
        self.index = index
        self._options = dict(options)
        self._source = source
        self._cache = cache
        self._format = make_format(index.kind, self._options)
        self._names: tuple[str, ...] = tuple(index.schema.names)
        self._names = self._choose(columns)
        self._memory = BlockMemory(memory_bytes)
        # Readers of one file share it: one mapping, one decompression.
        self._files: WeakValueDictionary[int, ByteFile] = WeakValueDictionary()
        self._files_lock = threading.Lock()
        self._readers = ReaderPool(self._open_reader, limit=OPEN_FILES)

    def __reduce__(self) -> tuple[Any, ...]:
        # Another process opens the files itself; what was found out about them goes along.
        options = {"options": self._options, "columns": self._names, "memory_bytes": self._memory.limit_bytes}
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
        return pa.schema([self.index.schema.field(name) for name in self._names])

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
        names = self._choose(columns)
        if start == stop or not names:
            empty = pa.schema([self.index.schema.field(name) for name in names]).empty_table()
            return tensors.decode(empty, self.index.schema) if names else Columns({}, stop - start)
        parts = [
            part for number, low, high in self._split(start, stop) for part in self._read_file(number, low, high, names)
        ]
        return parts[0] if len(parts) == 1 else Columns.concat(parts)

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

    def _choose(self, columns: Sequence[str] | None) -> tuple[str, ...]:
        if columns is None:
            return self._names
        for name in columns:
            if name not in self._names:
                raise ValueError(f"there is no column {name!r}; the columns are {', '.join(self._names)}")
        return tuple(dict.fromkeys(columns))

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
        with self._readers.lend(number) as reader:
            return reader.read(start, stop, names)

    def _open_reader(self, number: int) -> Reader:
        meta = self.index.meta(number)
        with self._files_lock:
            file = self._files.get(number)
            if file is None:
                file = open_file(self._source, self.index.files[number], self._cache, data_bytes=meta.data_bytes)
                self._files[number] = file
        return self._format.open(file, meta, self.index.schema)


def open_rows(
    url: str | os.PathLike[str],
    *,
    format: str | None = None,  # noqa: A002 - the word that users know
    options: Mapping[str, Any] | None = None,
    columns: Sequence[str] | None = None,
    index: Index | None = None,
    storage: Storage | None = None,
    cache: Cache | str | os.PathLike[str] | None = None,
    memory_bytes: int = MEMORY_BYTES,
) -> DatasetRows:
    """Return the rows of a directory, a file or a pattern such as ``s3://bucket/data/*.parquet``.

    The ``format`` is guessed from the files' endings, and ``options`` are those of the format. The index that
    ``strata data index`` wrote is used if it is there, else the files are scanned now. With a ``storage``, ``url`` is a
    path in it. ``cache`` is a directory for remote and decompressed data; the settings name the default.
    """
    source = open_source(url, storage)
    opened = open_cache(cache)
    options = options if options is not None or index is None else index.options
    if index is None:
        index = load_index(source, format, options or {}, opened)
    else:
        index.check(source, choose_files(source, index.kind)[1])
    return DatasetRows(source, index, opened, options=options or {}, columns=columns, memory_bytes=memory_bytes)


def _revive(source: Source, index: bytes, cache: Cache, options: dict[str, Any]) -> DatasetRows:
    return DatasetRows(source, Index.from_bytes(index, name=source.url), cache, **options)


def _block_rows(meta: FileMeta, block: int) -> tuple[int, int]:
    end = int(meta.block_rows[block + 1]) if block + 1 < len(meta.block_rows) else meta.rows
    return int(meta.block_rows[block]), end
