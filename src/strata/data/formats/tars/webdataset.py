"""WebDataset: tar archives; members that share a name up to its first dot are one row, with a column per ending."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa

from strata.data.formats.protocol import FileMeta
from strata.data.formats.tars import members
from strata.data.formats.tars.tar import Member, TarError, ends_well, walk_members
from strata.data.rows.columns import Column, Columns
from strata.errors import CorruptFileError

if TYPE_CHECKING:
    from collections.abc import Container, Iterator, Sequence

    from strata.data.files.random_access import ByteFile

KEY_COLUMN = "__key__"
BLOCK_BYTES = 1 << 20
_NAME = re.compile(r"^((?:.*/)?[^./][^./]*)\.([^/]*)$", re.DOTALL)

Sample = dict[str, Any]


class WebDataset:
    """Tar archives of samples. ``__key__`` is what a sample's members share.

    With ``decode``, ``.json`` gives values, ``.cls`` whole numbers, ``.txt`` strings and ``.npy`` arrays; everything
    else, and all without ``decode``, gives bytes. Members without an ending are not read.
    """

    kind = "webdataset"

    def __init__(self, *, decode: bool = True) -> None:
        self._decode = decode

    def scan(self, file: ByteFile) -> tuple[FileMeta, pa.Schema]:
        """Look at every header, and at what must be decoded to know its type."""
        starts: list[int] = []
        offsets: list[int] = []
        rows, end = 0, 0
        schema: pa.Schema | None = None
        for offset, data in _cut(file):
            end = offset + len(data)
            samples = _group(file, data, offset, rows)
            if not samples:
                continue
            try:
                own = members.infer_schema(samples, KEY_COLUMN, decode=self._decode)
                schema = own if schema is None else self.merge(schema, own)
            except members.MemberError as error:
                raise _refuse(file, error, error.ending, samples, offset, rows) from error
            except ValueError as error:
                raise _corrupt(file, str(error), offset, f"samples {rows} to {rows + len(samples) - 1}") from error
            starts.append(rows)
            offsets.append(offset)
            rows += len(samples)
        meta = FileMeta(rows, end, np.array(starts, np.int64), np.array(offsets, np.int64))
        return meta, schema if schema is not None else pa.schema({KEY_COLUMN: pa.string()})

    def merge(self, first: pa.Schema, second: pa.Schema) -> pa.Schema:
        """Return all endings of both, each with a type that holds the values of both."""
        return members.merge_schemas(first, second)

    def open(self, file: ByteFile, meta: FileMeta, schema: pa.Schema) -> WebDatasetReader:
        """Return a reader; there is nothing to prepare."""
        return WebDatasetReader(file, meta, schema, decode=self._decode)


class WebDatasetReader:
    """One open archive."""

    def __init__(self, file: ByteFile, meta: FileMeta, schema: pa.Schema, *, decode: bool) -> None:
        self._file = file
        self._meta = meta
        self._schema = schema
        self._decode = decode

    def read(self, start: int, stop: int, columns: Sequence[str]) -> Columns:
        """Find the members of whole blocks, and decode those that are wanted."""
        begin, size_bytes = self._meta.place_of(self._meta.blocks_of(start, stop))
        data = memoryview(self._file.read(begin, size_bytes))
        samples = _group(self._file, data, begin, start, columns)
        if len(samples) != stop - start:
            problem = f"{stop - start} samples were here when it was indexed, and {len(samples)} are now"
            raise _corrupt(self._file, problem, begin, f"sample {start}")
        built: dict[str, Column] = {}
        for name in columns:
            values = [sample.get(name) for sample in samples]
            if name == KEY_COLUMN:
                built[name] = pa.array(values, pa.string())
                continue
            try:
                built[name] = members.build(name, values, self._schema.field(name), decode=self._decode)
            except members.MemberError as error:
                raise _refuse(self._file, error, name, samples, begin, start) from error
        return Columns(built, stop - start)


def _cut(file: ByteFile) -> Iterator[tuple[int, bytes]]:
    """Yield (offset, bytes) of about a block each, cut between samples; together the whole archive."""
    base, rest, tail = 0, b"", b""
    for piece in file.stream():
        data = rest + piece.to_pybytes()
        tail = data[-512:]
        begin, key = 0, None
        for member in _walk(file, data, base):
            found = _NAME.match(member.name) if member.is_file else None
            if found is None:
                continue
            if found[1] != key and member.header - begin >= BLOCK_BYTES:
                yield base + begin, data[begin : member.header]
                begin = member.header
            key = found[1]
        base, rest = base + begin, data[begin:]
    if not ends_well(tail):
        raise _corrupt(file, "it ends before the end of the archive", base + len(rest), None)
    last = max((member.end for member in _walk(file, rest, base)), default=0)
    if any(rest[last:]):
        raise _corrupt(file, "it ends inside a member", base + last, None)
    yield base, rest


def _group(
    file: ByteFile, data: bytes | memoryview, base: int, row: int, wanted: Container[str] | None = None
) -> list[Sample]:
    """Return the samples of these bytes: by ending, the bytes of each member; none of one that is not wanted."""
    samples: list[Sample] = []
    for member in _walk(file, data, base):
        found = _NAME.match(member.name) if member.is_file else None
        if found is None:
            continue
        key, ending = found[1], found[2].lower()
        if not samples or samples[-1][KEY_COLUMN] != key:
            samples.append({KEY_COLUMN: key})
        if ending in samples[-1]:
            part = f"sample {row + len(samples) - 1}"
            raise _corrupt(file, f"it has two members {member.name}", base + member.header, part)
        try:
            samples[-1][ending] = member.content(data) if wanted is None or ending in wanted else b""
        except TarError as error:
            raise _corrupt(file, str(error), base + error.offset, f"sample {row + len(samples) - 1}") from error
    return samples


def _walk(file: ByteFile, data: bytes | memoryview, base: int) -> Iterator[Member]:
    try:
        yield from walk_members(data)
    except TarError as error:
        raise _corrupt(file, str(error), base + error.offset, None) from error


def _refuse(
    file: ByteFile, error: members.MemberError, ending: str, samples: list[Sample], offset: int, row: int
) -> CorruptFileError:
    key = samples[error.number][KEY_COLUMN]
    problem = f"member {key}.{ending} cannot be decoded: {error}"
    hint = "mend it, or read members as bytes with the option decode=false"
    part = f"sample {row + error.number}"
    return CorruptFileError(file.name, problem, kind="webdataset", part=part, offset=offset, hint=hint)


def _corrupt(file: ByteFile, problem: str, offset: int, part: str | None) -> CorruptFileError:
    return CorruptFileError(file.name, problem, kind="webdataset", part=part, offset=offset)
