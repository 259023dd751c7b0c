"""CSV and TSV: columns by the header line, types by all values that there are."""

from __future__ import annotations

import csv
import io
import re
from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa
import pyarrow.csv as pc

from strata.data.columns import Columns
from strata.data.formats import lines
from strata.data.formats.protocol import FileMeta
from strata.errors import CorruptFileError

if TYPE_CHECKING:
    from collections.abc import Sequence

    from strata.data.files import ByteFile

# How Arrow names the row that it could not read, counted from 1 in what it was given.
_ROW = re.compile(r"Row #(\d+)")


class Csv:
    """Files of delimited values.

    ``delimiter`` is a comma, or a tab for files that end in ``.tsv``. Without ``header`` the columns are called
    f0, f1 and so on. ``types`` fixes the types of columns that should not be guessed. Every record is parsed once to
    index a file, so types fit all rows: whole numbers if all are, else numbers, else strings.
    """

    kind = "csv"

    def __init__(
        self,
        *,
        delimiter: str | None = None,
        header: bool = True,
        newlines_in_values: bool = True,
        types: dict[str, str] | None = None,
    ) -> None:
        if delimiter is not None and len(delimiter) != 1:
            raise ValueError(f"delimiter={delimiter!r} must be one character")
        self._delimiter = delimiter
        self._header = header
        self._newlines = newlines_in_values
        self._types = lines.parse_types(types)

    def scan(self, file: ByteFile) -> tuple[FileMeta, pa.Schema]:
        """Parse every record."""
        find_ends = lines.unquoted_line_ends if self._newlines else lines.line_ends
        rows, end = 0, 0
        starts: list[int] = []
        offsets: list[int] = []
        names: list[str] | None = None
        schema = pa.schema([])
        for offset, data in lines.cut_blocks(file, find_ends, kind=self.kind):
            end = offset + len(data)
            if names is None:
                names, skipped = self._read_names(file, data)
                offset, data = offset + skipped, data[skipped:]
            if not data.strip():
                continue
            table = self._parse(file, offset, rows, data, names, names, self._types)
            if table.num_rows == 0:
                continue
            schema = self.merge(schema, table.schema) if starts else table.schema
            starts.append(rows)
            offsets.append(offset)
            rows += table.num_rows
        if not starts:
            schema = pa.schema([pa.field(name, self._types.get(name, pa.null())) for name in names or []])
        return FileMeta(rows, end, np.array(starts, np.int64), np.array(offsets, np.int64)), schema

    def merge(self, first: pa.Schema, second: pa.Schema) -> pa.Schema:
        """Return the same columns, each with a type that holds the values of both."""
        if first.names != second.names:
            raise ValueError(
                f"the header is {', '.join(first.names)} in one and {', '.join(second.names)} in the other"
            )
        return pa.schema([_merge_fields(left, right) for left, right in zip(first, second, strict=True)])

    def open(self, file: ByteFile, meta: FileMeta, schema: pa.Schema) -> CsvReader:
        """Return a reader; the header was read when the file was indexed."""
        return CsvReader(self, file, meta, schema)

    def _read_names(self, file: ByteFile, data: bytes) -> tuple[list[str], int]:
        start = len(lines.BYTE_ORDER_MARK) if data.startswith(lines.BYTE_ORDER_MARK) else 0
        ends = lines.unquoted_line_ends(np.frombuffer(data, np.uint8))
        first = data[start : ends[0]] if len(ends) else data[start:]
        try:
            fields = next(csv.reader(io.StringIO(first.decode()), delimiter=self._delimiter_of(file)), [])
        except (UnicodeDecodeError, csv.Error) as error:
            raise CorruptFileError(file.name, str(error), kind=self.kind, part="header", offset=0) from error
        if not self._header:
            return [f"f{number}" for number in range(len(fields))], start
        if len(set(fields)) != len(fields) or b"\0" in first:
            problem = f"its first line is no header with a name for each column: {first[:80]!r}"
            raise CorruptFileError(file.name, problem, kind=self.kind, part="header", offset=0)
        return fields, start + len(first)

    def _delimiter_of(self, file: ByteFile) -> str:
        return self._delimiter or ("\t" if ".tsv" in file.name.rsplit("/", 1)[-1] else ",")

    def _parse(
        self,
        file: ByteFile,
        offset: int,
        row: int,
        data: bytes | pa.Buffer,
        names: Sequence[str],
        columns: Sequence[str],
        types: dict[str, pa.DataType],
    ) -> pa.Table:
        try:
            return pc.read_csv(
                pa.BufferReader(data),
                pc.ReadOptions(use_threads=False, block_size=len(data) + 1, column_names=list(names)),
                pc.ParseOptions(delimiter=self._delimiter_of(file), newlines_in_values=self._newlines),
                pc.ConvertOptions(include_columns=list(columns), column_types=types),
            )
        except pa.ArrowException as error:
            problem = lines.first_error(error)
            found = _ROW.search(problem)
            part = f"record {row + int(found[1]) - 1}" if found else f"record {row} or after"
            raise CorruptFileError(file.name, problem, kind=self.kind, part=part, offset=offset) from error


class CsvReader:
    """One open CSV file."""

    def __init__(self, csv_format: Csv, file: ByteFile, meta: FileMeta, schema: pa.Schema) -> None:
        self._format = csv_format
        self._file = file
        self._meta = meta
        self._schema = schema

    def read(self, start: int, stop: int, columns: Sequence[str]) -> Columns:
        """Parse whole blocks, and convert only these columns."""
        begin, size_bytes = self._meta.place_of(self._meta.blocks_of(start, stop))
        data = self._file.read(begin, size_bytes)
        types = {name: self._schema.field(name).type for name in columns}
        table = self._format._parse(self._file, begin, start, data, self._schema.names, columns, types)
        if table.num_rows != stop - start:
            problem = f"{stop - start} records were here when it was indexed, and {table.num_rows} are now"
            raise CorruptFileError(self._file.name, problem, kind="csv", part=f"record {start}", offset=begin)
        return Columns.from_arrow(table.select(list(columns)))


def _merge_fields(first: pa.Field, second: pa.Field) -> pa.Field:
    try:
        return pa.unify_schemas([pa.schema([first]), pa.schema([second])], promote_options="permissive").field(0)
    except pa.ArrowException:
        # Whatever the values look like, all of them are text.
        return pa.field(first.name, pa.string())
