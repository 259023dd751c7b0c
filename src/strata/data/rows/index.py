"""The index: which rows are in which file, and where their blocks begin; arrays, so that millions of blocks are small.

Format, version 3: the mark ``STRATAIX``, the version, the digest of the rest, then an Arrow IPC file with a row per
file. Numbers that grow from block to block are kept as differences, which compress to next to nothing.
"""

from __future__ import annotations

import json
import struct
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa
import xxhash

from strata.data.files.random_access import may_be_copies
from strata.data.files.source import FileInfo
from strata.data.formats.protocol import FileMeta, Integers
from strata.data.formats.registry import indexed_options
from strata.errors import CorruptFileError, StaleIndexError

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from strata.data.files.source import Source

VERSION = 3
MARK = b"STRATAIX"
_HEADER = struct.Struct("<8sI16s")


@dataclass(frozen=True, eq=False)
class Index:
    """What was found out about the files of a dataset, in the order of their paths. Immutable."""

    kind: str
    options: dict[str, Any]
    schema: pa.Schema
    files: Sequence[FileInfo]
    # Row ``row_starts[i]`` of the dataset is the first of file ``i``; the last entry is the number of rows.
    row_starts: Integers
    data_bytes: Integers
    # Blocks of file ``i`` are those from ``block_starts[i]`` to ``block_starts[i + 1]``; their rows count in the file.
    block_starts: Integers
    block_rows: Integers
    block_offsets: Integers

    @classmethod
    def build(
        cls,
        kind: str,
        options: Mapping[str, Any],
        schema: pa.Schema,
        files: Sequence[FileInfo],
        metas: Sequence[FileMeta],
    ) -> Index:
        """Put together what scans of the files found."""
        none = np.empty(0, np.int64)
        return cls(
            kind=kind,
            options=indexed_options(kind, options),
            schema=schema,
            files=list(files),
            row_starts=_starts([meta.rows for meta in metas]),
            data_bytes=np.array([meta.data_bytes for meta in metas], np.int64),
            block_starts=_starts([len(meta.block_rows) for meta in metas]),
            block_rows=np.concatenate([none, *(meta.block_rows for meta in metas)]),
            block_offsets=np.concatenate([none, *(meta.block_offsets for meta in metas)]),
        )

    @property
    def num_rows(self) -> int:
        """How many rows all files have together."""
        return int(self.row_starts[-1])

    @property
    def size_bytes(self) -> int:
        """How many bytes the files have as they lie there."""
        return sum(info.size_bytes for info in self.files)

    @cached_property
    def fingerprint(self) -> str:
        """Names what row numbers mean: the same files, by name, size and rows, read in the same way."""
        digest = xxhash.xxh3_128(json.dumps([self.kind, self.options], sort_keys=True).encode())
        for info in self.files:
            digest.update(f"\0{info.path}\0{info.size_bytes}".encode())
        digest.update(self.row_starts.astype("<i8").tobytes())
        return digest.hexdigest()

    def meta(self, number: int) -> FileMeta:
        """Return what is known of one file, as views."""
        blocks = slice(int(self.block_starts[number]), int(self.block_starts[number + 1]))
        return FileMeta(
            rows=int(self.row_starts[number + 1] - self.row_starts[number]),
            data_bytes=int(self.data_bytes[number]),
            block_rows=self.block_rows[blocks],
            block_offsets=self.block_offsets[blocks],
        )

    def check(self, source: Source, files: Sequence[FileInfo]) -> None:
        """Raise StaleIndexError if these are not the files that were indexed."""
        if list(self.files) == list(files):
            return
        before = {info.path: info for info in self.files}
        replaced = []
        for info in files:
            name = source.name_of(info.path)
            old = before.pop(info.path, None)
            if old is not None and old != info and may_be_copy(old, info):
                replaced.append(name)
                continue
            if old is None:
                raise StaleIndexError(source.url, name, "was added")
            if old.size_bytes != info.size_bytes:
                raise StaleIndexError(source.url, name, f"went from {old.size_bytes} to {info.size_bytes} bytes")
            if old.version != info.version:
                raise StaleIndexError(source.url, name, "was written again")
        for path in before:
            raise StaleIndexError(source.url, source.name_of(path), "is gone")
        if replaced:
            raise StaleIndexError(source.url, replaced[0], "was replaced by a file of the same size and time")

    def may_be_of_copies(self, files: Sequence[FileInfo]) -> bool:
        """Whether these files differ from those that were indexed in nothing that copying a dataset keeps."""
        return len(files) == len(self.files) and all(map(may_be_copy, self.files, files))

    def has_rows_of(self, other: Index) -> bool:
        """Whether rows have the same numbers, places and types in both."""
        arrays = ("row_starts", "block_starts", "block_rows", "block_offsets")
        same = all(np.array_equal(getattr(self, name), getattr(other, name)) for name in arrays)
        return same and self.schema.equals(other.schema, check_metadata=True)

    def to_bytes(self) -> bytes:
        """Return the index as it is stored."""
        batch = pa.record_batch(
            {
                "path": pa.array([info.path for info in self.files], pa.string()),
                "size_bytes": pa.array([info.size_bytes for info in self.files], pa.int64()),
                "version": pa.array([info.version for info in self.files], pa.string()),
                "rows": np.diff(self.row_starts),
                "data_bytes": self.data_bytes,
                "block_rows": _lists(self.block_starts, self.block_rows),
                "block_offsets": _lists(self.block_starts, self.block_offsets),
            }
        )
        about = {"kind": self.kind, "options": json.dumps(self.options), "schema": self.schema.serialize().to_pybytes()}
        batch = batch.replace_schema_metadata(about)
        sink = pa.BufferOutputStream()
        with pa.ipc.new_file(sink, batch.schema, options=pa.ipc.IpcWriteOptions(compression="zstd")) as writer:
            writer.write_batch(batch)
        content: bytes = sink.getvalue().to_pybytes()
        return _HEADER.pack(MARK, VERSION, xxhash.xxh3_128_digest(content)) + content

    @classmethod
    def from_bytes(cls, data: bytes, *, name: str) -> Index:
        """Return a stored index; one that is damaged or of another version is a CorruptFileError."""
        if len(data) < _HEADER.size:
            raise _damaged(name, "it is cut off")
        mark, version, digest = _HEADER.unpack_from(data)
        if mark != MARK or version != VERSION:
            raise _damaged(name, f"it is not of version {VERSION}")
        content = data[_HEADER.size :]
        if xxhash.xxh3_128_digest(content) != digest:
            raise _damaged(name, "its digest is not that of its content")
        batch = pa.ipc.open_file(content).get_batch(0)
        about = batch.schema.metadata
        columns = (batch.column(each).to_pylist() for each in ("path", "size_bytes", "version"))
        starts, rows = _flat(batch.column("block_rows"))
        return cls(
            kind=about[b"kind"].decode(),
            options=json.loads(about[b"options"]),
            schema=pa.ipc.read_schema(pa.py_buffer(about[b"schema"])),
            files=[FileInfo(*each) for each in zip(*columns, strict=True)],
            row_starts=_starts(batch.column("rows").to_numpy()),
            data_bytes=batch.column("data_bytes").to_numpy(),
            block_starts=starts,
            block_rows=rows,
            block_offsets=_flat(batch.column("block_offsets"))[1],
        )


def may_be_copy(old: FileInfo, new: FileInfo) -> bool:
    """Whether a file may be a copy of one that was indexed, or the one itself."""
    same = (old.path, old.size_bytes) == (new.path, new.size_bytes)
    return same and (old.version == new.version or may_be_copies(old.version, new.version))


def index_name(kind: str, options: Mapping[str, Any], selection: str) -> str:
    """Return the name of the stored index: other options or another choice of files are another index."""
    text = json.dumps([kind, indexed_options(kind, options), selection], sort_keys=True)
    return f"_strata_index_v{VERSION}_{kind}_{xxhash.xxh3_64_hexdigest(text.encode())[:8]}"


def _starts(counts: Sequence[int] | Integers) -> Integers:
    starts = np.zeros(len(counts) + 1, np.int64)
    np.cumsum(counts, out=starts[1:])
    return starts


def _lists(starts: Integers, values: Integers) -> pa.Array:
    return pa.LargeListArray.from_arrays(starts, np.diff(values, prepend=0))


def _flat(lists: pa.Array) -> tuple[Integers, Integers]:
    starts: Integers = lists.offsets.to_numpy()
    return starts, np.cumsum(lists.values.to_numpy(), dtype=np.int64)


def _damaged(name: str, problem: str) -> CorruptFileError:
    return CorruptFileError(name, problem, kind="index", hint="run 'strata data index' to write it anew")
