"""CSV and TSV: columns by the header line, types by all values that there are."""

from __future__ import annotations

import codecs
import csv
import io
import re
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa
import pyarrow.csv as pc

from strata.data.formats.protocol import FileMeta
from strata.data.formats.text import lines, whole_numbers
from strata.data.option_checks import OptionTypeError
from strata.data.rows.columns import Columns
from strata.errors import CorruptFileError

if TYPE_CHECKING:
    from collections.abc import Sequence

    from strata.data.files.random_access import ByteFile

# How Arrow names the row that it could not read, counted from 1 in what it was given.
_ROW = re.compile(r"Row #(\d+)")
# Arrow reserves memory for all that it parses at once; in one go, 8 MB take eight times as long as in pieces.
PIECE_BYTES = 256 << 10
# How text in UTF-16 begins, whose lines cannot be found as those of other encodings.
_WIDE_MARKS = (b"\xff\xfe", b"\xfe\xff")
_HEADER_HINT = "write a first line with a name for each column, or use the option header=false"
_ENCODING_HINT = (
    "name its encoding, as in encoding=latin-1, or read the column as bytes, as in types={'column': 'binary'}"
)


class Csv:
    """Files of delimited values.

    ``delimiter`` is a comma, or a tab for files that end in ``.tsv``. Without ``header`` the columns are called
    f0, f1 and so on. ``types`` fixes the types of columns that should not be guessed. Every record is parsed once to
    index a file, so types fit all rows: whole numbers if all are, else numbers, else strings. ``encoding`` is that of
    the text, where it is not UTF-8. Without ``quotes``, a quote is a character as any other.
    """

    kind = "csv"

    def __init__(
        self,
        *,
        delimiter: str | None = None,
        header: bool = True,
        newlines_in_values: bool = True,
        quotes: bool = True,
        types: dict[str, str] | None = None,
        encoding: str | None = None,
    ) -> None:
        self._delimiter = _check_delimiter(delimiter)
        self._header = header
        self._newlines = newlines_in_values and quotes
        self._quotes = quotes
        self._types = lines.parse_types(types)
        self._encoding = _check_encoding(encoding)

    def scan(self, file: ByteFile) -> tuple[FileMeta, pa.Schema]:
        """Parse every record."""
        find_ends = lines.unquoted_record_ends if self._newlines else lines.record_ends
        rows, end = 0, 0
        starts: list[int] = []
        offsets: list[int] = []
        names: list[str] | None = None
        schema = pa.schema([])
        for offset, data in lines.cut_blocks(file, find_ends, kind=self.kind):
            end = offset + len(data)
            if names is None:
                names, skipped = self._read_names(file, data)
                self._check_types(file, names)
                offset, data = offset + skipped, data[skipped:]
            # A line of tabs or spaces is a record: its values are missing, or blank.
            if not data.strip(b"\r\n"):
                continue
            if self._newlines and data.count(b'"') % 2:
                problem = "it ends inside a quoted value, so it was cut off"
                hint = "bring a whole copy; where quotes are plain characters, use the option quotes=false"
                part = f"record {rows} or after"
                raise CorruptFileError(file.name, problem, kind=self.kind, part=part, offset=offset, hint=hint)
            table = self._parse(file, offset, rows, data, names, names, self._types)
            own = self._refine(file, offset, rows, data, table)
            schema = self.merge(schema, own) if starts else own
            starts.append(rows)
            offsets.append(offset)
            rows += table.num_rows
        if not starts:
            schema = pa.schema([pa.field(name, self._types.get(name, pa.null())) for name in names or []])
        return FileMeta(rows, end, np.array(starts, np.int64), np.array(offsets, np.int64)), schema

    def merge(self, first: pa.Schema, second: pa.Schema) -> pa.Schema:
        """Return the same columns, each with a type that holds the values of both."""
        for name in [*first.names, *second.names]:
            if name not in first.names or name not in second.names:
                which = "first" if name in first.names else "second"
                raise ValueError(f"column {name!r} is only in the header of the {which}")
        return pa.schema([_merge_fields(field, second.field(field.name)) for field in first])

    def open(self, file: ByteFile, meta: FileMeta, schema: pa.Schema) -> CsvReader:
        """Read the header, which may have its columns in another order than those of other files."""
        names: list[str] = []
        if meta.rows:
            head = (
                file.read(0, max(1, int(meta.block_offsets[0])))
                if self._header
                else file.read(*meta.place_of(range(1)))
            )
            names, _ = self._read_names(file, head.to_pybytes())
        return CsvReader(self, file, meta, schema, names)

    def _read_names(self, file: ByteFile, data: bytes) -> tuple[list[str], int]:
        start = len(lines.BYTE_ORDER_MARK) if data.startswith(lines.BYTE_ORDER_MARK) else 0
        find_ends = lines.unquoted_record_ends if self._quotes else lines.record_ends
        head = start
        for end in [*find_ends(np.frombuffer(data, np.uint8)).tolist(), len(data)]:
            first = data[head:end]
            # Lines without anything in front of the header are no header, nor are they records.
            if first.strip(b"\r\n"):
                break
            head = end
        try:
            text = first.decode(self._encoding or "utf-8")
            delimiter = self._delimiter_of(file)
            if self._quotes:
                fields = next(csv.reader(io.StringIO(text), delimiter=delimiter), [])
            else:
                fields = text.strip("\r\n").split(delimiter)
        except (UnicodeDecodeError, csv.Error) as error:
            hint = _ENCODING_HINT if isinstance(error, UnicodeDecodeError) else _HEADER_HINT
            if data.startswith(_WIDE_MARKS):
                hint = "it begins as UTF-16 does; convert it to UTF-8"
            raise CorruptFileError(file.name, str(error), kind=self.kind, part="header", offset=0, hint=hint) from error
        if not self._header:
            return [f"f{number}" for number in range(len(fields))], start
        if len(set(fields)) != len(fields) or b"\0" in first:
            problem = f"its first line is no header with a name for each column: {first[:80]!r}"
            raise CorruptFileError(file.name, problem, kind=self.kind, part="header", offset=0, hint=_HEADER_HINT)
        return fields, head + len(first)

    def _check_types(self, file: ByteFile, names: Sequence[str]) -> None:
        if unknown := [name for name in self._types if name not in names]:
            raise ValueError(
                f"types has the column {unknown[0]!r}, which {file.name} has not; its columns are {', '.join(names)}"
            )

    def _delimiter_of(self, file: ByteFile) -> str:
        return self._delimiter or ("\t" if ".tsv" in file.name.rsplit("/", 1)[-1] else ",")

    def _refine(self, file: ByteFile, offset: int, row: int, data: bytes, table: pa.Table) -> pa.Schema:
        """Return the types of a block, where Arrow's guess would lose something."""
        fields = []
        for field in table.schema:
            column = table.column(field.name)
            if field.name in self._types:
                fields.append(pa.field(field.name, field.type, nullable=column.null_count > 0))
                continue
            if pa.types.is_binary(field.type):
                problem = f"column {field.name!r} holds bytes that are not UTF-8"
                part = f"records {row} to {row + table.num_rows - 1}"
                raise CorruptFileError(
                    file.name, problem, kind=self.kind, part=part, offset=offset, hint=_ENCODING_HINT
                )
            if whole_numbers.is_suspect(column, whole_numbers.ROUNDED):
                text = {field.name: pa.string()}
                texts = self._parse(file, offset, row, data, table.column_names, [field.name], text).column(0)
                fields.append(whole_numbers.field_of_text(field.name, texts, column))
            else:
                fields.append(whole_numbers.field_of(field.name, column))
        return pa.schema(fields)

    def _parse(
        self,
        file: ByteFile,
        offset: int,
        row: int,
        data: bytes | pa.Buffer,
        names: Sequence[str],
        columns: Sequence[str],
        types: dict[str, pa.DataType],
        *,
        piece_bytes: int | None = None,
    ) -> pa.Table:
        """With ``piece_bytes``, so much is parsed at a time; without, all at once, as guessing types needs it."""
        try:
            if self._encoding is not None:
                data = bytes(memoryview(data)).decode(self._encoding).encode()
            return pc.read_csv(
                pa.BufferReader(data),
                pc.ReadOptions(use_threads=False, block_size=piece_bytes or len(data) + 1, column_names=list(names)),
                pc.ParseOptions(
                    delimiter=self._delimiter_of(file),
                    quote_char='"' if self._quotes else False,
                    newlines_in_values=self._newlines,
                ),
                pc.ConvertOptions(include_columns=list(columns), column_types=types),
            )
        except (pa.ArrowException, UnicodeDecodeError) as error:
            problem = lines.first_error(error)
            if piece_bytes is not None and "straddl" in problem:
                # A record is longer than a piece.
                return self._parse(file, offset, row, data, names, columns, types)
            found = _ROW.search(problem)
            part = f"record {row + int(found[1]) - 1}" if found else f"record {row} or after"
            hint = _ENCODING_HINT if "UTF8" in problem or isinstance(error, UnicodeDecodeError) else ""
            raise CorruptFileError(file.name, problem, kind=self.kind, part=part, offset=offset, hint=hint) from error


class CsvReader:
    """One open CSV file."""

    def __init__(
        self, csv_format: Csv, file: ByteFile, meta: FileMeta, schema: pa.Schema, names: Sequence[str]
    ) -> None:
        self._format = csv_format
        self._file = file
        self._meta = meta
        self._schema = schema
        self._names = names

    def read(self, start: int, stop: int, columns: Sequence[str]) -> Columns:
        """Parse whole blocks, and convert only these columns."""
        begin, size_bytes = self._meta.place_of(self._meta.blocks_of(start, stop))
        data = self._file.read(begin, size_bytes)
        types = {name: self._schema.field(name).type for name in columns}
        table = self._format._parse(
            self._file, begin, start, data, self._names, columns, types, piece_bytes=PIECE_BYTES
        )
        if table.num_rows != stop - start:
            problem = f"{stop - start} records were here when it was indexed, and {table.num_rows} are now"
            raise CorruptFileError(self._file.name, problem, kind="csv", part=f"record {start}", offset=begin)
        return Columns.from_arrow(table.select(list(columns)))


def _merge_fields(first: pa.Field, second: pa.Field) -> pa.Field:
    if (found := whole_numbers.merge(first, second)) is not None:
        return found
    nullable = first.nullable or second.nullable
    try:
        merged = pa.unify_schemas([pa.schema([first]), pa.schema([second])], promote_options="permissive").field(0)
    except pa.ArrowException:
        # Whatever the values look like, all of them are text.
        return pa.field(first.name, pa.string(), nullable=nullable)
    return pa.field(first.name, merged.type, nullable=nullable or pa.types.is_null(first.type))


def _check_delimiter(delimiter: Any) -> str | None:
    if delimiter is None:
        return None
    # Python's csv, which reads the header, and Arrow, which reads the rest, both take one character.
    if not isinstance(delimiter, str) or len(delimiter) != 1 or delimiter in '\r\n"' or not delimiter.isascii():
        raise ValueError(f"delimiter={delimiter!r} must be one character of ASCII, and no quote and no end of a line")
    return delimiter


def _check_encoding(encoding: Any) -> str | None:
    if encoding is None:
        return None
    if not isinstance(encoding, str):
        raise OptionTypeError(f"encoding is {encoding!r}; use a name such as latin-1")
    plain = bytes(range(128))
    try:
        if codecs.lookup(encoding).name == "utf-8":
            return None
        is_plain = plain.decode(encoding) == plain.decode("ascii")
    except LookupError:
        raise ValueError(f"encoding={encoding!r} is not known; use one such as latin-1, cp1252 or shift_jis") from None
    except UnicodeError:
        is_plain = False
    if not is_plain:
        # Records are cut at the byte of a newline, which here may be a part of something else.
        raise ValueError(f"encoding={encoding!r} does not keep ASCII as it is; convert the files to UTF-8 first")
    return encoding
