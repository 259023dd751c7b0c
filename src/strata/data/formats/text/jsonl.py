"""JSON lines: one object per line; a column per key. A key that an object lacks is null there."""

from __future__ import annotations

import io
import json
import re
from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa
import pyarrow.json as pj

from strata.data.formats.protocol import FileMeta
from strata.data.formats.text import json_text, lines, whole_numbers
from strata.data.rows.columns import Columns
from strata.errors import CorruptFileError

if TYPE_CHECKING:
    from collections.abc import Sequence

    from strata.data.files.random_access import ByteFile


# Arrow reserves memory for all that it parses at once; in one go, 8 MB take three times as long as in pieces.
PIECE_BYTES = 1 << 20
# How Arrow names the record that it could not read, and the column whose values are of two kinds.
_ROW = re.compile(r" in row (\d+)")
_TOO_DEEP = "its values are nested too deeply"
_CHANGED = re.compile(r"Column\(/([^/)]*).* changed from")
# A line that may be null and not an object. Arrow dies of it if no object is before it.
_NULL_LINE = re.compile(rb"^[ \t]*null", re.MULTILINE)


class JsonLines:
    """Files of one JSON object per line. ``types`` fixes the types of columns that should not be guessed.

    Every line is parsed once to index a file, so the types are those that fit all rows, and a file that was
    indexed has no bad line. With the type string, a value that is none is given as its JSON text.
    """

    kind = "jsonl"

    def __init__(self, *, types: dict[str, str] | None = None) -> None:
        self._types = lines.parse_types(types)

    def scan(self, file: ByteFile) -> tuple[FileMeta, pa.Schema]:
        """Parse every line."""
        rows, end = 0, 0
        starts: list[int] = []
        offsets: list[int] = []
        schema: pa.Schema | None = None
        fixed = pa.schema(self._types)
        for offset, data in lines.cut_blocks(file, lines.line_ends, kind=self.kind):
            end = offset + len(data)
            if not _strip(data).strip():
                continue
            try:
                found, own = self._scan_block(file, offset, rows, data, fixed)
            except RecursionError:
                raise _find_nested(file, offset, rows, data) from None
            try:
                schema = own if schema is None else self.merge(schema, own)
            except ValueError as error:
                raise _corrupt(file, str(error), offset, f"records {rows} to {rows + found - 1}") from error
            starts.append(rows)
            offsets.append(offset)
            rows += found
        meta = FileMeta(rows, end, np.array(starts, np.int64), np.array(offsets, np.int64))
        return meta, fixed if schema is None else schema

    def merge(self, first: pa.Schema, second: pa.Schema) -> pa.Schema:
        """Return all columns of both, each with a type that holds the values of both."""
        names = dict.fromkeys([*first.names, *second.names])
        return pa.schema([_merge_fields(*(_find(each, name) for each in (first, second))) for name in names])

    def open(self, file: ByteFile, meta: FileMeta, schema: pa.Schema) -> JsonLinesReader:
        """Return a reader; there is nothing to prepare."""
        return JsonLinesReader(file, meta, schema)

    def _scan_block(
        self, file: ByteFile, offset: int, row: int, data: bytes, fixed: pa.Schema
    ) -> tuple[int, pa.Schema]:
        texts = [field.name for field in fixed if pa.types.is_string(field.type)]
        is_text = False
        try:
            table = _parse(file, offset, row, data, fixed, unexpected="infer")
        except CorruptFileError:
            if not texts:
                raise
            table = _parse(file, offset, row, json_text.quote(data, texts), fixed, unexpected="infer")
            is_text = True
        fields = []
        for field in _without_times(table.schema):
            column = table.column(field.name)
            if is_text and field.name in texts:
                fields.append(json_text.mark(field.name, nullable=column.null_count > 0))
            elif field.name in self._types:
                fields.append(field.with_nullable(column.null_count > 0))
            else:
                fields.append(json_text.refine(field, column, data))
        return table.num_rows, pa.schema(fields)


class JsonLinesReader:
    """One open file of JSON lines."""

    def __init__(self, file: ByteFile, meta: FileMeta, schema: pa.Schema) -> None:
        self._file = file
        self._meta = meta
        self._schema = schema

    def read(self, start: int, stop: int, columns: Sequence[str]) -> Columns:
        """Parse whole blocks, and of them only these columns."""
        begin, size_bytes = self._meta.place_of(self._meta.blocks_of(start, stop))
        data = self._file.read(begin, size_bytes).to_pybytes()
        fields = [self._schema.field(name) for name in columns]
        if texts := [field.name for field in fields if json_text.is_marked(field)]:
            data = json_text.quote(data, texts)
        # What is known of missing values is for whoever reads; Arrow looks at the values.
        wanted = pa.schema([pa.field(field.name, field.type) for field in fields])
        table = _parse(self._file, begin, start, data, wanted, unexpected="ignore", piece_bytes=PIECE_BYTES)
        if table.num_rows != stop - start:
            problem = f"{stop - start} records were here when it was indexed, and {table.num_rows} are now"
            raise _corrupt(self._file, problem, begin, f"record {start}")
        return Columns.from_arrow(table.select(list(columns)))


def _parse(
    file: ByteFile,
    offset: int,
    row: int,
    data: bytes,
    schema: pa.Schema,
    *,
    unexpected: str,
    piece_bytes: int | None = None,
) -> pa.Table:
    content = _strip(data) if offset == 0 else data
    # One block of Arrow's for all where types are guessed: not anew in the middle.
    reading = pj.ReadOptions(use_threads=False, block_size=piece_bytes or len(content) + 1)
    parsing = pj.ParseOptions(explicit_schema=schema, unexpected_field_behavior=unexpected)
    try:
        # The parser takes any bytes for text; whoever looked at them would fail. To see ASCII takes no copy.
        if not content.isascii():
            content.decode()
        if b"null" in content and _NULL_LINE.search(content) and not json_text.has_objects_only(content):
            raise pa.ArrowInvalid("a record is null and not an object")
        return pj.read_json(pa.BufferReader(content), reading, parsing)
    except (pa.ArrowException, UnicodeDecodeError) as error:
        if piece_bytes is not None:
            # A record is longer than a piece, or bad, and then only all of it together says which one.
            return _parse(file, offset, row, data, schema, unexpected=unexpected)
        raise _locate(file, offset, row, data, error) from error


def _locate(file: ByteFile, offset: int, row: int, data: bytes, error: Exception) -> CorruptFileError:
    """Find the line, which Arrow does not say; parsing all again is slow, and here that does not matter."""
    for line in io.BytesIO(data):
        if line.strip():
            try:
                parsed = json.loads(line)
            except ValueError as found:
                is_end = not line.endswith(b"\n")
                problem = f"it ends inside this record, so it was cut off: {found}" if is_end else str(found)
                return _corrupt(file, problem, offset, f"record {row}")
            except RecursionError:
                return _corrupt(file, _TOO_DEEP, offset, f"record {row}")
            if not isinstance(parsed, dict):
                return _corrupt(file, "the line is not an object", offset, f"record {row}")
            row += 1
        offset += len(line)
    return _explain(file, lines.first_error(error), row - _count(data))


def _find_nested(file: ByteFile, offset: int, row: int, data: bytes) -> CorruptFileError:
    """Find the line whose values are nested too deeply."""
    number, at = row, offset
    for line in io.BytesIO(data):
        if line.strip():
            try:
                json.loads(line)
            except RecursionError:
                return _corrupt(file, _TOO_DEEP, at, f"record {number}")
            except ValueError:
                break
            number += 1
        at += len(line)
    return _corrupt(file, _TOO_DEEP, offset, f"record {row} or after")


def _explain(file: ByteFile, problem: str, first: int) -> CorruptFileError:
    """Say of what Python can read and Arrow cannot in which record it is, and what to do."""
    found = _ROW.search(problem)
    part = f"record {first + int(found[1])}" if found else f"record {first} or after"
    problem = _ROW.sub("", problem)
    hint = ""
    if changed := _CHANGED.search(problem):
        hint = f"give the column a type that holds all values, as in types={{'{changed[1]}': 'string'}}"
    elif "twice" in problem:
        hint = "write each key of an object once"
    elif "surrogate" in problem:
        hint = "half of a surrogate pair is no text; replace it where the file is written"
    return CorruptFileError(file.name, problem, kind="jsonl", part=part, hint=hint)


def _count(data: bytes) -> int:
    return sum(1 for line in data.split(b"\n") if line.strip())


def _find(schema: pa.Schema, name: str) -> pa.Field | None:
    return schema.field(name) if name in schema.names else None


def _merge_fields(first: pa.Field | None, second: pa.Field | None) -> pa.Field:
    if first is None or second is None:
        (there,) = (each for each in (first, second) if each is not None)
        return there.with_nullable(nullable=True)
    nullable = first.nullable or second.nullable
    if json_text.is_marked(first) or json_text.is_marked(second):
        return json_text.mark(first.name, nullable=nullable)
    if (found := whole_numbers.merge(first, second)) is not None:
        is_text = pa.types.is_string(found.type)
        return json_text.mark(first.name, nullable=nullable) if is_text else found
    try:
        merged = pa.unify_schemas([pa.schema([first]), pa.schema([second])], promote_options="permissive").field(0)
    except pa.ArrowException as error:
        problem = f"{lines.first_error(error)}; give the column a type, as in types={{'{first.name}': 'string'}}"
        raise ValueError(problem) from error
    return pa.field(first.name, merged.type, nullable=nullable)


def _strip(data: bytes) -> bytes:
    return data.removeprefix(lines.BYTE_ORDER_MARK)


def _without_times(schema: pa.Schema) -> pa.Schema:
    """Leave strings that look like times as strings: another line of the same column may not look so."""
    return pa.schema([pa.field(field.name, without_time(field.type), nullable=field.nullable) for field in schema])


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
