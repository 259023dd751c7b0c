"""Parquet: a block is a row group; only the columns asked for are read and decoded."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from strata.data.formats import tensors
from strata.data.formats.parquet_footer import parse_footer
from strata.data.formats.protocol import FileMeta, merge_declared
from strata.data.rows.columns import Columns
from strata.errors import CorruptFileError

if TYPE_CHECKING:
    from collections.abc import Sequence

    from strata.data.files.random_access import ByteFile


class Parquet:
    """Parquet files, with any compression and nesting that Arrow reads.

    Pages may carry checksums. With ``verify`` each is checked, at a third of the speed; without it, damage is noticed
    where it breaks the encoding or the compression.
    """

    kind = "parquet"

    def __init__(self, *, verify: bool = False) -> None:
        self._verify = verify

    def scan(self, file: ByteFile) -> tuple[FileMeta, pa.Schema]:
        """Read the footer alone."""
        opened = _open(file, verify=False)
        metadata = opened.metadata
        rows = np.cumsum([0, *(metadata.row_group(number).num_rows for number in range(metadata.num_row_groups))])
        if rows[-1] != metadata.num_rows:
            problem = f"its row groups have {rows[-1]} rows, but its footer says {metadata.num_rows}"
            raise CorruptFileError(file.name, problem, kind=self.kind, part="footer")
        try:
            # Not by Arrow: it ends the process where a column's statistics are damaged.
            footer = parse_footer(_footer(file))
            schema = _with_nulls(tensors.decoded_schema(opened.schema_arrow), footer.columns_with_missing_values)
        except (pa.ArrowException, ValueError) as error:
            raise _corrupt(file, error, "schema", None) from error
        meta = FileMeta(
            rows=metadata.num_rows,
            data_bytes=file.size_bytes,
            block_rows=rows[:-1].astype(np.int64),
            block_offsets=np.array(footer.group_offsets, dtype=np.int64),
        )
        return meta, schema

    merge = staticmethod(merge_declared)

    def open(self, file: ByteFile, meta: FileMeta, schema: pa.Schema) -> ParquetReader:
        """Read the footer, and keep it."""
        return ParquetReader(file, meta, schema, _open(file, verify=self._verify))


class ParquetReader:
    """One open Parquet file."""

    def __init__(self, file: ByteFile, meta: FileMeta, schema: pa.Schema, opened: pq.ParquetFile) -> None:
        self._file = file
        self._meta = meta
        self._schema = schema
        self._opened = opened

    def read(self, start: int, stop: int, columns: Sequence[str]) -> Columns:
        """Decode whole row groups."""
        groups = self._meta.blocks_of(start, stop)
        if len(columns) == len(self._schema):
            self._file.will_need(*self._meta.place_of(groups))
        try:
            table = self._decode(groups, columns)
        except (pa.ArrowException, OSError) as error:
            raise self._locate(groups, columns, error) from error
        return tensors.decode(table, self._schema).select(columns)

    def _decode(self, groups: Sequence[int], columns: Sequence[str]) -> pa.Table:
        # Callers read from several threads, so more inside one read would only get in each other's way.
        table = self._opened.read_row_groups(list(groups), columns=list(columns), use_threads=False)
        for column in table.columns:
            # Text that is no UTF-8 would break whoever looks at it; other types are right once they are decoded.
            if pa.types.is_string(column.type) or pa.types.is_large_string(column.type):
                column.validate(full=True)
        return table

    def _locate(self, groups: Sequence[int], columns: Sequence[str], error: Exception) -> CorruptFileError:
        """Find which of the groups it is; reading one by one is slow, and here that does not matter."""
        for group in groups:
            try:
                self._decode([group], columns)
            except (pa.ArrowException, OSError) as found:
                return _corrupt(self._file, found, f"row group {group}", int(self._meta.block_offsets[group]))
        return _corrupt(self._file, error, f"row groups {groups[0]} to {groups[-1]}", None)


def _open(file: ByteFile, *, verify: bool) -> pq.ParquetFile:
    if file.size_bytes < 12:
        raise CorruptFileError(file.name, f"it has {file.size_bytes} bytes", kind="parquet", offset=0)
    try:
        return pq.ParquetFile(file.native(), page_checksum_verification=verify)
    except (pa.ArrowException, OSError, UnicodeDecodeError) as error:
        raise _corrupt(file, error, "footer", file.size_bytes - 8) from error


def _footer(file: ByteFile) -> bytes:
    length = int.from_bytes(memoryview(file.read(file.size_bytes - 8, 4)), "little")
    return bytes(memoryview(file.read(file.size_bytes - 8 - length, length)))


def _with_nulls(schema: pa.Schema, missing: set[str]) -> pa.Schema:
    """Return the schema with the columns of numbers as not nullable that, by the footer, miss no value."""
    return pa.schema([field.with_nullable(field.nullable and _may_miss(field, missing)) for field in schema])


def _may_miss(field: pa.Field, missing: set[str]) -> bool:
    kind = field.type
    is_fixed = pa.types.is_fixed_size_list(kind) or pa.types.is_fixed_size_binary(kind)
    return field.name in missing or not (pa.types.is_primitive(kind) or is_fixed)


def _corrupt(file: ByteFile, error: Exception, part: str, offset: int | None) -> CorruptFileError:
    return CorruptFileError(file.name, str(error).splitlines()[0], kind="parquet", part=part, offset=offset)
