"""TFRecord: records with checksums, which hold ``tf.train.Example`` messages, or whatever bytes."""

from __future__ import annotations

import struct
from typing import TYPE_CHECKING, Any, NamedTuple

import google_crc32c
import numpy as np
import pyarrow as pa
from google.protobuf.message import DecodeError

from strata.data.formats.protocol import FileMeta
from strata.data.formats.records import example
from strata.data.rows.columns import Column, Columns
from strata.errors import CorruptFileError

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from strata.data.files.random_access import ByteFile

BLOCK_BYTES = 512 << 10
RAW_COLUMN = "record"
_HEADER = struct.Struct("<QI")
_MASK_DELTA = 0xA282EAD8


class _Record(NamedTuple):
    start: int
    end: int
    payload: bytes


class TfRecord:
    """Files of records, each with the CRC32C of its length and of its data; both are always checked.

    A record is a ``tf.train.Example`` with a column per feature, or with ``raw`` just bytes in the column ``record``.
    A feature that has one value in every record is a column of scalars, one that has ``n`` in every record a column of
    arrays, and any other a column of lists; so every record is parsed once to index a file.
    """

    kind = "tfrecord"

    def __init__(self, *, raw: bool = False) -> None:
        self._raw = raw

    def scan(self, file: ByteFile) -> tuple[FileMeta, pa.Schema]:
        """Check and parse every record."""
        starts: list[int] = []
        offsets: list[int] = []
        shapes = example.Shapes()
        rows, end = 0, 0
        for offset, record in _stream(file):
            if not offsets or offset - offsets[-1] >= BLOCK_BYTES:
                starts.append(rows)
                offsets.append(offset)
            if not self._raw:
                try:
                    shapes.add(_parse(file, record.payload, offset, rows))
                except ValueError as error:
                    raise _corrupt(file, str(error), offset, rows) from error
            rows += 1
            end = offset + record.end - record.start
        schema = pa.schema({RAW_COLUMN: pa.binary()}) if self._raw else shapes.schema()
        return FileMeta(rows, end, np.array(starts, np.int64), np.array(offsets, np.int64)), schema

    def merge(self, first: pa.Schema, second: pa.Schema) -> pa.Schema:
        """Return all features of both, each with a type that holds the values of both."""
        return example.merge(first, second)

    def open(self, file: ByteFile, meta: FileMeta, schema: pa.Schema) -> TfRecordReader:
        """Return a reader; there is nothing to prepare."""
        return TfRecordReader(file, meta, schema, raw=self._raw)


class TfRecordReader:
    """One open TFRecord file."""

    def __init__(self, file: ByteFile, meta: FileMeta, schema: pa.Schema, *, raw: bool) -> None:
        self._file = file
        self._meta = meta
        self._schema = schema
        self._raw = raw

    def read(self, start: int, stop: int, columns: Sequence[str]) -> Columns:
        """Check and parse the records of whole blocks."""
        begin, size_bytes = self._meta.place_of(self._meta.blocks_of(start, stop))
        data = memoryview(self._file.read(begin, size_bytes))
        records = list(_walk(self._file, data, begin, start))
        if len(records) != stop - start or records[-1].end != len(data):
            problem = f"{stop - start} records were here when it was indexed, and {len(records)} are now"
            raise _corrupt(self._file, problem, begin, start)
        if self._raw:
            return Columns({RAW_COLUMN: pa.array([each.payload for each in records], pa.binary())})
        examples = [
            _parse(self._file, each.payload, begin + each.start, start + number) for number, each in enumerate(records)
        ]
        built: dict[str, Column] = {}
        for name in columns:
            try:
                built[name] = example.build(examples, self._schema.field(name))
            except ValueError as error:
                raise _corrupt(self._file, str(error), begin, start) from error
        return Columns(built, stop - start)


def _stream(file: ByteFile) -> Iterator[tuple[int, _Record]]:
    """Yield every record with its place in the file."""
    base, row, rest = 0, 0, b""
    for piece in file.stream():
        data, done = rest + piece.to_pybytes(), 0
        for record in _walk(file, data, base, row):
            yield base + record.start, record
            row += 1
            done = record.end
        base, rest = base + done, data[done:]
    if rest:
        raise _corrupt(file, "it ends inside this record", base, row)


def _walk(file: ByteFile, data: bytes | memoryview, base: int, row: int) -> Iterator[_Record]:
    """Yield the whole records of these bytes, which begin with one; each is checked."""
    start = 0
    while start + 12 <= len(data):
        length, length_crc = _HEADER.unpack_from(data, start)
        if _masked_crc(bytes(data[start : start + 8])) != length_crc:
            raise _corrupt(file, "the checksum of the record's length is wrong", base + start, row)
        end = start + 12 + length + 4
        if end > len(data):
            return
        payload = bytes(data[start + 12 : end - 4])
        if _masked_crc(payload) != int.from_bytes(data[end - 4 : end], "little"):
            raise _corrupt(file, "the checksum of the record's data is wrong", base + start, row)
        yield _Record(start, end, payload)
        start = end
        row += 1


def _masked_crc(data: bytes) -> int:
    crc: int = google_crc32c.value(data)
    return (((crc >> 15) | (crc << 17)) + _MASK_DELTA) & 0xFFFFFFFF


def _parse(file: ByteFile, payload: bytes, offset: int, row: int) -> Any:
    try:
        return example.parse(payload)
    except DecodeError as error:
        problem = "the record is not a tf.train.Example; read it with the option raw=true if it is something else"
        raise _corrupt(file, problem, offset, row) from error
    except ValueError as error:
        raise _corrupt(file, str(error), offset, row) from error


def _corrupt(file: ByteFile, problem: str, offset: int, row: int) -> CorruptFileError:
    return CorruptFileError(file.name, problem, kind="tfrecord", part=f"record {row}", offset=offset)
