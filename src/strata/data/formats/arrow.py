"""Arrow IPC, as file (also called Feather) and as stream: a block is a record batch, read without a copy."""

from __future__ import annotations

import struct
from typing import TYPE_CHECKING, NamedTuple

import numpy as np
import pyarrow as pa

from strata.data.formats import tensors
from strata.data.formats.protocol import FileMeta, merge_equal
from strata.errors import CorruptFileError

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from strata.data.columns import Columns
    from strata.data.files import ByteFile

MAGIC = b"ARROW1"
_SCHEMA, _DICTIONARY, _BATCH = 1, 2, 3


class _Message(NamedTuple):
    kind: int
    offset: int
    end: int
    rows: int


class Arrow:
    """Arrow IPC files and streams. Only messages' headers are looked at to index one."""

    kind = "arrow"

    def scan(self, file: ByteFile) -> tuple[FileMeta, pa.Schema]:
        """Walk from message to message, past the data."""
        messages = list(_walk(file))
        batches = [message for message in messages if message.kind == _BATCH]
        rows = np.cumsum([0, *(batch.rows for batch in batches)])
        meta = FileMeta(
            rows=int(rows[-1]),
            data_bytes=batches[-1].end if batches else 0,
            block_rows=rows[:-1].astype(np.int64),
            block_offsets=np.array([batch.offset for batch in batches], dtype=np.int64),
        )
        return meta, tensors.decoded_schema(_read_schema(file, messages))

    merge = staticmethod(merge_equal)

    def open(self, file: ByteFile, meta: FileMeta, schema: pa.Schema) -> ArrowReader:
        """Read the schema, and find the dictionaries if there are any."""
        return ArrowReader(file, meta, schema)


class ArrowReader:
    """One open Arrow file or stream."""

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
        is_file = self._opening.offset > 0
        # In a stream a later dictionary replaces an earlier one; in a file there is one, wherever it stands.
        valid = [each for each in self._dictionaries if is_file or each.offset < offset]
        parts = [self._file.read(each.offset, each.end - each.offset) for each in (self._opening, *valid)]
        stream = b"".join(part.to_pybytes() for part in parts) + data.to_pybytes()
        return pa.ipc.open_stream(stream).read_next_batch()


def _walk(file: ByteFile) -> Iterator[_Message]:
    """Yield every message's place; a file that ends inside one is corrupt."""
    is_file = file.size_bytes >= 8 and file.read(0, 6).to_pybytes() == MAGIC
    if is_file and file.read(file.size_bytes - 6, 6).to_pybytes() != MAGIC:
        raise _corrupt(file, "its end is missing", file.size_bytes, "footer")
    offset = 8 if is_file else 0
    if file.size_bytes < 8:
        raise _corrupt(file, f"it has {file.size_bytes} bytes", 0, None)
    number = 0
    while offset < file.size_bytes:
        prefix = file.read(offset, min(8, file.size_bytes - offset)).to_pybytes()
        if len(prefix) < 8:
            raise _corrupt(file, "it ends inside a message", offset, f"message {number}")
        mark, length = struct.unpack("<Ii", prefix)
        if mark != 0xFFFFFFFF:
            raise _corrupt(file, "no message begins here", offset, f"message {number}")
        if length == 0:
            return
        if length < 0 or offset + 8 + length > file.size_bytes:
            raise _corrupt(file, "it ends inside a message", offset, f"message {number}")
        header = file.read(offset + 8, length).to_pybytes()
        try:
            kind, body_bytes, rows = _parse(header)
        except (struct.error, IndexError) as error:
            raise _corrupt(file, "its message has no readable header", offset, f"message {number}") from error
        end = offset + 8 + length + body_bytes
        if body_bytes < 0 or rows < 0 or end > file.size_bytes:
            raise _corrupt(file, "it ends inside a message", offset, f"message {number}")
        yield _Message(kind, offset, end, rows)
        offset = end
        number += 1


def _parse(header: bytes) -> tuple[int, int, int]:
    """Return kind, body size and rows out of a flatbuffer ``Message``, without touching the body."""
    (root,) = struct.unpack_from("<I", header)
    kind = struct.unpack_from("<B", header, at)[0] if (at := _field(header, root, 1)) else 0
    body_bytes = struct.unpack_from("<q", header, at)[0] if (at := _field(header, root, 3)) else 0
    rows = 0
    if kind == _BATCH and (at := _field(header, root, 2)):
        table = at + struct.unpack_from("<I", header, at)[0]
        rows = struct.unpack_from("<q", header, at)[0] if (at := _field(header, table, 0)) else 0
    return kind, body_bytes, rows


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
