"""JSON lines: one object per line; a column per key. A key that an object lacks is null there."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa
import pyarrow.json as pj

from strata.data.columns import Columns
from strata.data.formats import lines
from strata.data.formats.protocol import FileMeta
from strata.errors import CorruptFileError

if TYPE_CHECKING:
    from collections.abc import Sequence

    from strata.data.files import ByteFile


class JsonLines:
    """Files of one JSON object per line. ``types`` fixes the types of columns that should not be guessed.

    Every line is parsed once to index a file, so the types are those that fit all rows, and a file that was
    indexed has no bad line.
    """

    kind = "jsonl"

    def __init__(self, *, types: dict[str, str] | None = None) -> None:
        self._types = lines.parse_types(types)

    def scan(self, file: ByteFile) -> tuple[FileMeta, pa.Schema]:
        """Parse every line."""
        rows, end = 0, 0
        starts: list[int] = []
        offsets: list[int] = []
        fixed = schema = pa.schema(self._types)
        for offset, data in lines.cut_blocks(file, lines.line_ends, kind=self.kind):
            end = offset + len(data)
            if not _strip(data).strip():
                continue
            table = _parse(file, offset, rows, data, fixed, unexpected="infer")
            try:
                schema = self.merge(schema, _without_times(table.schema))
            except ValueError as error:
                raise _corrupt(file, str(error), offset, f"records {rows} to {rows + table.num_rows - 1}") from error
            starts.append(rows)
            offsets.append(offset)
            rows += table.num_rows
        return FileMeta(rows, end, np.array(starts, np.int64), np.array(offsets, np.int64)), schema

    def merge(self, first: pa.Schema, second: pa.Schema) -> pa.Schema:
        """Return all columns of both, each with a type that holds the values of both."""
        try:
            return pa.unify_schemas([first, second], promote_options="permissive")
        except pa.ArrowException as error:
            problem = f"{lines.first_error(error)}; give the column a type, as in types={{'column': 'string'}}"
            raise ValueError(problem) from error

    def open(self, file: ByteFile, meta: FileMeta, schema: pa.Schema) -> JsonLinesReader:
        """Return a reader; there is nothing to prepare."""
        return JsonLinesReader(file, meta, schema)


class JsonLinesReader:
    """One open file of JSON lines."""

    def __init__(self, file: ByteFile, meta: FileMeta, schema: pa.Schema) -> None:
        self._file = file
        self._meta = meta
        self._schema = schema

    def read(self, start: int, stop: int, columns: Sequence[str]) -> Columns:
        """Parse whole blocks, and of them only these columns."""
        begin, size_bytes = self._meta.place_of(self._meta.blocks_of(start, stop))
        data = self._file.read(begin, size_bytes)
        wanted = pa.schema([self._schema.field(name) for name in columns])
        table = _parse(self._file, begin, start, data.to_pybytes(), wanted, unexpected="ignore")
        if table.num_rows != stop - start:
            problem = f"{stop - start} records were here when it was indexed, and {table.num_rows} are now"
            raise _corrupt(self._file, problem, begin, f"record {start}")
        return Columns.from_arrow(table.select(list(columns)))


def _parse(file: ByteFile, offset: int, row: int, data: bytes, schema: pa.Schema, *, unexpected: str) -> pa.Table:
    content = _strip(data) if offset == 0 else data
    # One block of Arrow's for all: types must not be guessed anew in the middle.
    reading = pj.ReadOptions(use_threads=False, block_size=len(content) + 1)
    parsing = pj.ParseOptions(explicit_schema=schema, unexpected_field_behavior=unexpected)
    try:
        # The parser takes any bytes for text; whoever looked at them would fail. To see ASCII takes no copy.
        if not content.isascii():
            content.decode()
        return pj.read_json(pa.BufferReader(content), reading, parsing)
    except (pa.ArrowException, UnicodeDecodeError) as error:
        raise _locate(file, offset, row, data, error) from error


def _locate(file: ByteFile, offset: int, row: int, data: bytes, error: Exception) -> CorruptFileError:
    """Find the line, which Arrow does not say; parsing all again is slow, and here that does not matter."""
    for line in data.splitlines(keepends=True):
        if line.strip():
            try:
                parsed = json.loads(line)
            except ValueError as found:
                return _corrupt(file, str(found), offset, f"record {row}")
            if not isinstance(parsed, dict):
                return _corrupt(file, "the line is not an object", offset, f"record {row}")
            row += 1
        offset += len(line)
    hint = "give columns whose values differ in type one that holds all, as in types={'column': 'string'}"
    return CorruptFileError(file.name, lines.first_error(error), kind="jsonl", part=f"records up to {row}", hint=hint)


def _strip(data: bytes) -> bytes:
    return data.removeprefix(lines.BYTE_ORDER_MARK)


def _without_times(schema: pa.Schema) -> pa.Schema:
    """Leave strings that look like times as strings: another line of the same column may not look so."""
    return pa.schema([pa.field(field.name, without_time(field.type)) for field in schema])


def without_time(kind: pa.DataType) -> pa.DataType:
    """Return the type with strings in place of times."""
    if pa.types.is_timestamp(kind):
        return pa.string()
    if pa.types.is_list(kind):
        return pa.list_(without_time(kind.value_type))
    if pa.types.is_struct(kind):
        return pa.struct([pa.field(each.name, without_time(each.type)) for each in kind])
    return kind


def _corrupt(file: ByteFile, problem: str, offset: int, part: str) -> CorruptFileError:
    return CorruptFileError(file.name, problem, kind="jsonl", part=part, offset=offset)
