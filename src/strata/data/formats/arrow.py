"""Arrow IPC, as file (also called Feather) and as stream: a block is a record batch, read without a copy."""

from __future__ import annotations

import struct
from typing import TYPE_CHECKING, NamedTuple

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from strata.data.formats import tensors
from strata.data.formats.protocol import FileMeta, merge_declared
from strata.errors import CorruptFileError

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from strata.data.files.random_access import ByteFile
    from strata.data.rows.columns import Columns

MAGIC = b"ARROW1"
_SCHEMA, _DICTIONARY, _BATCH = 1, 2, 3
_NONE = np.empty(0, np.int64)


class _Message(NamedTuple):
    kind: int
    offset: int
    end: int
    rows: int = 0
    # How many values each array of a batch misses, in the order of a walk through the types.
    missing: npt.NDArray[np.int64] = _NONE


class Arrow:
    """Arrow IPC files and streams. Only messages' headers are looked at to index one."""

    kind = "arrow"

    def scan(self, file: ByteFile) -> tuple[FileMeta, pa.Schema]:
        """Walk from message to message, past the data."""
        if _is_file(file):
            batches = list(_walk_footer(file))
            schema = _open_file(file).schema
        else:
            messages = list(_walk(file))
            batches = [message for message in messages if message.kind == _BATCH]
            schema = _read_schema(file, messages)
        rows = np.cumsum([0, *(batch.rows for batch in batches)])
        meta = FileMeta(
            rows=int(rows[-1]),
            data_bytes=batches[-1].end if batches else 0,
            block_rows=rows[:-1].astype(np.int64),
            block_offsets=np.array([batch.offset for batch in batches], dtype=np.int64),
        )
        return meta, _with_nulls(tensors.decoded_schema(schema), schema, batches)

    merge = staticmethod(merge_declared)

    def open(self, file: ByteFile, meta: FileMeta, schema: pa.Schema) -> ArrowFileReader | ArrowStreamReader:
        """Read the footer of a file; the schema, and the dictionaries if there are any, of a stream."""
        return ArrowFileReader(file, meta, schema) if _is_file(file) else ArrowStreamReader(file, meta, schema)


class ArrowFileReader:
    """One open Arrow file; its footer says where batches and dictionaries are, whatever lies between them."""

    def __init__(self, file: ByteFile, meta: FileMeta, schema: pa.Schema) -> None:
        self._file = file
        self._meta = meta
        self._schema = schema
        self._opened = _open_file(file)

    def read(self, start: int, stop: int, columns: Sequence[str]) -> Columns:
        """Return whole record batches, as views where they are not compressed."""
        batches = [self._read_batch(block).select(list(columns)) for block in self._meta.blocks_of(start, stop)]
        return tensors.decode(pa.Table.from_batches(batches), self._schema)

    def _read_batch(self, block: int) -> pa.RecordBatch:
        offset = int(self._meta.block_offsets[block])
        self._file.read(offset, 8)  # a file that was shortened is found here, and not by the kernel
        try:
            batch = self._opened.get_batch(block)
            # In full, because a wrong offset in it would be followed out of the mapping.
            batch.validate(full=True)
        except (pa.ArrowException, OSError, EOFError) as error:
            raise _corrupt(self._file, str(error), offset, f"record batch {block}") from error
        return batch


class ArrowStreamReader:
    """One open Arrow stream."""

    def __init__(self, file: ByteFile, meta: FileMeta, schema: pa.Schema) -> None:
        self._file = file
        self._meta = meta
        self._schema = schema
        first = next(_walk(file))
        self._own_schema = _read_schema(file, [first])
        self._opening = first
        self._dictionaries: list[_Message] = []
        if any(_has_dictionary(field.type) for field in self._own_schema):
            self._dictionaries = [message for message in _walk(file) if message.kind == _DICTIONARY]

    def read(self, start: int, stop: int, columns: Sequence[str]) -> Columns:
        """Return whole record batches, as views where they are not compressed."""
        blocks = self._meta.blocks_of(start, stop)
        batches = [self._read_batch(block).select(list(columns)) for block in blocks]
        return tensors.decode(pa.Table.from_batches(batches), self._schema)

    def _read_batch(self, block: int) -> pa.RecordBatch:
        offset, size_bytes = self._meta.place_of(range(block, block + 1))
        data = self._file.read(offset, size_bytes)
        try:
            if not self._dictionaries:
                batch = pa.ipc.read_record_batch(pa.ipc.read_message(data), self._own_schema)
            else:
                batch = self._read_with_dictionaries(offset, data)
            # In full, because a wrong offset in it would be followed out of the mapping.
            batch.validate(full=True)
        except (pa.ArrowException, OSError, EOFError) as error:
            raise _corrupt(self._file, str(error), offset, f"record batch {block}") from error
        return batch

    def _read_with_dictionaries(self, offset: int, data: pa.Buffer) -> pa.RecordBatch:
        """Read a stream of the schema, the dictionaries that hold at this batch, and the batch."""
        # A later dictionary replaces an earlier one.
        valid = [each for each in self._dictionaries if each.offset < offset]
        parts = [self._file.read(each.offset, each.end - each.offset) for each in (self._opening, *valid)]
        stream = b"".join(part.to_pybytes() for part in parts) + data.to_pybytes()
        return pa.ipc.open_stream(stream).read_next_batch()


def _is_file(file: ByteFile) -> bool:
    if file.size_bytes < 8:
        raise _corrupt(file, f"it has {file.size_bytes} bytes", 0, None)
    if file.read(0, 6).to_pybytes() != MAGIC:
        return False
    if file.read(file.size_bytes - 6, 6).to_pybytes() != MAGIC:
        raise _corrupt(file, "its end is missing", file.size_bytes, "footer")
    return True


def _open_file(file: ByteFile) -> pa.RecordBatchFileReader:
    try:
        opened = pa.ipc.open_file(file.native())
        tensors.decoded_schema(opened.schema)  # so that names that are no text are found here
    except (pa.ArrowException, OSError, UnicodeDecodeError) as error:
        raise _corrupt(file, str(error), file.size_bytes, "footer") from error
    return opened


def _walk_footer(file: ByteFile) -> Iterator[_Message]:
    """Yield the place of every record batch, as the footer lists them."""
    size = int.from_bytes(file.read(file.size_bytes - 10, 4).to_pybytes(), "little")
    begin = file.size_bytes - 10 - size
    if begin < 8:
        raise _corrupt(file, "its footer would begin before it", file.size_bytes - 10, "footer")
    footer = file.read(begin, size).to_pybytes()
    try:
        (root,) = struct.unpack_from("<I", footer)
        at = _field(footer, root, 3)
        at += struct.unpack_from("<I", footer, at)[0] if at else 0
        count = struct.unpack_from("<I", footer, at)[0] if at else 0
        # Where a message begins, how long its header is, and how long its body.
        places = [struct.unpack_from("<qi4xq", footer, at + 4 + 24 * number) for number in range(count)]
    except (struct.error, IndexError) as error:
        raise _corrupt(file, "its footer cannot be read", begin, "footer") from error
    for number, (offset, header_bytes, body_bytes) in enumerate(places):
        part, end = f"record batch {number}", offset + header_bytes + body_bytes
        if offset < 8 or header_bytes < 8 or body_bytes < 0 or end > begin:
            raise _corrupt(file, "its footer names a place outside of the data", begin, part)
        header = file.read(offset, header_bytes).to_pybytes()
        # Before the header stand a mark and its length; files of before 2019 have no mark.
        start = 8 if header.startswith(b"\xff\xff\xff\xff") else 4
        kind, _, rows, missing = _parse_checked(file, header[start:], offset, part)
        if kind != _BATCH:
            raise _corrupt(file, "its footer names what is no record batch", offset, part)
        if rows < 0:
            raise _corrupt(file, f"it would have {rows} rows", offset, part)
        yield _Message(kind, offset, end, rows, missing)


def _walk(file: ByteFile) -> Iterator[_Message]:
    """Yield every message's place in a stream; one that ends inside a message is corrupt."""
    offset = number = 0
    while offset < file.size_bytes:
        prefix = file.read(offset, min(8, file.size_bytes - offset)).to_pybytes()
        if len(prefix) < 8:
            raise _corrupt(file, "it ends inside a message", offset, f"message {number}")
        mark, length = struct.unpack("<Ii", prefix)
        if offset == 0 and prefix.startswith(b"FEA1"):
            hint = "read it with pyarrow.feather and write it again, which gives version 2"
            problem = "it is a Feather file of version 1, which is not read"
            raise CorruptFileError(file.name, problem, kind="arrow", offset=0, hint=hint)
        if mark != 0xFFFFFFFF:
            raise _corrupt(file, "no message begins here", offset, f"message {number}")
        if length == 0:
            return
        if length < 0 or offset + 8 + length > file.size_bytes:
            raise _corrupt(file, "it ends inside a message", offset, f"message {number}")
        header = file.read(offset + 8, length).to_pybytes()
        kind, body_bytes, rows, missing = _parse_checked(file, header, offset, f"message {number}")
        end = offset + 8 + length + body_bytes
        if body_bytes < 0 or rows < 0 or end > file.size_bytes:
            raise _corrupt(file, "it ends inside a message", offset, f"message {number}")
        yield _Message(kind, offset, end, rows, missing)
        offset = end
        number += 1


def _parse_checked(
    file: ByteFile, header: bytes, offset: int, part: str
) -> tuple[int, int, int, npt.NDArray[np.int64]]:
    try:
        return _parse(header)
    except (struct.error, IndexError, ValueError) as error:
        raise _corrupt(file, "its message has no readable header", offset, part) from error


def _parse(header: bytes) -> tuple[int, int, int, npt.NDArray[np.int64]]:
    """Return kind, body size, rows and missing values out of a flatbuffer ``Message``, without touching the body."""
    (root,) = struct.unpack_from("<I", header)
    kind = struct.unpack_from("<B", header, at)[0] if (at := _field(header, root, 1)) else 0
    body_bytes = struct.unpack_from("<q", header, at)[0] if (at := _field(header, root, 3)) else 0
    rows, missing = 0, _NONE
    if kind == _BATCH and (at := _field(header, root, 2)):
        table = at + struct.unpack_from("<I", header, at)[0]
        rows = struct.unpack_from("<q", header, at)[0] if (at := _field(header, table, 0)) else 0
        if at := _field(header, table, 1):
            at += struct.unpack_from("<I", header, at)[0]
            (count,) = struct.unpack_from("<I", header, at)
            # A node is the length of an array, and how many of its values are missing.
            missing = np.frombuffer(header, "<i8", 2 * count, at + 4)[1::2]
    return kind, body_bytes, rows, missing


def _with_nulls(schema: pa.Schema, own: pa.Schema, batches: Sequence[_Message]) -> pa.Schema:
    """Return the schema with the columns as not nullable that miss no value in any batch."""
    counts = [_count_nodes(field.type) for field in own]
    if any(len(batch.missing) != sum(counts) for batch in batches):
        return schema
    total = np.sum([batch.missing != 0 for batch in batches], axis=0) if batches else np.zeros(sum(counts))
    fields, at = [], 0
    for field, stored, count in zip(schema, own, counts, strict=True):
        may_miss = bool(total[at : at + count].any()) or _has_dictionary(stored.type)
        fields.append(field.with_nullable(field.nullable and may_miss))
        at += count
    return pa.schema(fields)


def _count_nodes(kind: pa.DataType) -> int:
    if isinstance(kind, pa.BaseExtensionType):
        return _count_nodes(kind.storage_type)
    if pa.types.is_dictionary(kind):
        return 1
    return 1 + sum(_count_nodes(kind.field(number).type) for number in range(kind.num_fields))


def _field(header: bytes, table: int, number: int) -> int:
    """Return where field ``number`` of a flatbuffer table stands; 0 if it has its default."""
    vtable = table - struct.unpack_from("<i", header, table)[0]
    if 4 + 2 * number >= struct.unpack_from("<H", header, vtable)[0]:
        return 0
    (relative,) = struct.unpack_from("<H", header, vtable + 4 + 2 * number)
    return table + relative if relative else 0


def _has_dictionary(kind: pa.DataType) -> bool:
    if isinstance(kind, pa.BaseExtensionType):
        return _has_dictionary(kind.storage_type)
    return pa.types.is_dictionary(kind) or any(_has_dictionary(kind.field(i).type) for i in range(kind.num_fields))


def _read_schema(file: ByteFile, messages: list[_Message]) -> pa.Schema:
    if not messages or messages[0].kind != _SCHEMA:
        raise _corrupt(file, "it does not begin with a schema", 0, None)
    first = messages[0]
    try:
        schema = pa.ipc.read_schema(file.read(first.offset, first.end - first.offset))
        tensors.decoded_schema(schema)  # so that names that are no text are found here
        return schema  # noqa: TRY300 - what is returned was checked
    except (pa.ArrowException, OSError, UnicodeDecodeError) as error:
        raise _corrupt(file, str(error), first.offset, "schema") from error


def _corrupt(file: ByteFile, problem: str, offset: int, part: str | None) -> CorruptFileError:
    return CorruptFileError(file.name, problem.splitlines()[0], kind="arrow", part=part, offset=offset)
