"""NumPy files: ``.npy`` with one array, ``.npz`` with several; a row is an element of their first axis."""

from __future__ import annotations

import math
import struct
import zipfile
import zlib
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from strata.data.formats import npy, tensors
from strata.data.formats.protocol import FileMeta, merge_declared
from strata.data.rows.columns import Columns
from strata.errors import CorruptFileError

if TYPE_CHECKING:
    from collections.abc import Sequence

    from strata.data.files.random_access import ByteFile

COLUMN = "data"
# All that zipfile says of an archive that is damaged, encrypted, or of a kind that it does not know.
_ZIP_ERRORS = (
    zipfile.BadZipFile,
    zlib.error,
    struct.error,
    EOFError,
    OSError,
    NotImplementedError,
    RuntimeError,
    UnicodeDecodeError,
)


@dataclass(frozen=True, slots=True)
class _Array:
    """Where an array lies: in the file itself from ``offset``, or only in the deflated ``member`` of an archive."""

    dtype: np.dtype[Any]
    shape: tuple[int, ...]
    fortran: bool
    offset: int
    member: str | None = None

    @property
    def row_bytes(self) -> int:
        return math.prod(self.shape[1:]) * self.dtype.itemsize


class Arrays:
    """``.npy`` files, whose one array is the column ``data``, and ``.npz`` files, whose arrays keep their names.

    An array of a structured type gives a column per field. Arrays of Python objects are refused: they are pickles.
    """

    kind = "numpy"

    def scan(self, file: ByteFile) -> tuple[FileMeta, pa.Schema]:
        """Read headers alone."""
        arrays = _find(file)
        rows = {name: array.shape[0] for name, array in arrays.items()}
        if len(set(rows.values())) > 1:
            raise _corrupt(file, f"its arrays have different numbers of rows: {rows}", 0)
        count = next(iter(rows.values()), 0)
        fields = []
        for name, array in arrays.items():
            for column, dtype in _columns_of(name, array.dtype).items():
                base, inner = dtype.subdtype or (dtype, ())
                if base.names is not None:
                    raise _corrupt(file, f"its field {column!r} has fields inside; write each as a field of its own", 0)
                fields.append(tensors.field_of(column, base.newbyteorder("="), (*array.shape[1:], *inner)))
        # What is deflated or stored by columns has no rows to go to, and is decoded as one block.
        whole = count > 0 and any(array.member or array.fortran for array in arrays.values())
        start = np.zeros(1 if whole else 0, np.int64)
        return FileMeta(count, file.size_bytes, start, start), pa.schema(fields)

    merge = staticmethod(merge_declared)

    def open(self, file: ByteFile, meta: FileMeta, schema: pa.Schema) -> ArrayReader:
        """Read headers, and keep them."""
        return ArrayReader(file, _find(file))


class ArrayReader:
    """One open NumPy file."""

    def __init__(self, file: ByteFile, arrays: dict[str, _Array]) -> None:
        self._file = file
        self._arrays = arrays

    def read(self, start: int, stop: int, columns: Sequence[str]) -> Columns:
        """Return the rows as views of the file, or of the member that was inflated for them."""
        found: dict[str, npt.NDArray[Any]] = {}
        for name, array in self._arrays.items():
            fields = _columns_of(name, array.dtype)
            if not set(fields) & set(columns):
                continue
            rows = self._read_rows(array, start, stop)
            for field in fields:
                column = rows if array.dtype.names is None else rows[field]
                found[field] = column if column.dtype.isnative else column.astype(column.dtype.newbyteorder("="))
        return Columns({name: found[name] for name in columns}, stop - start)

    def _read_rows(self, array: _Array, start: int, stop: int) -> npt.NDArray[Any]:
        if array.member is not None or array.fortran:
            data = self._read_all(array)
            order: Any = "F" if array.fortran else "C"
            return np.frombuffer(data, array.dtype).reshape(array.shape, order=order)[start:stop]
        buffer = self._file.read(array.offset + start * array.row_bytes, (stop - start) * array.row_bytes)
        shape = (stop - start, *array.shape[1:])
        return np.frombuffer(buffer, array.dtype).reshape(shape) if buffer.size else np.empty(shape, array.dtype)

    def _read_all(self, array: _Array) -> Any:
        size = array.row_bytes * array.shape[0]
        if array.member is None:
            return self._file.read(array.offset, size)
        with _archive(self._file) as archive:
            try:
                content = archive.read(array.member)
            except _ZIP_ERRORS as error:
                offset = archive.getinfo(array.member).header_offset
                raise _corrupt(self._file, f"{array.member}: {error}", offset) from error
        if len(content) < array.offset + size:
            raise _corrupt(self._file, f"{array.member} ends inside its data", 0)
        return memoryview(content)[array.offset : array.offset + size]


def _find(file: ByteFile) -> dict[str, _Array]:
    start = file.read(0, min(6, file.size_bytes)).to_pybytes()
    if start == npy.MAGIC:
        array = _parse_header(file, file.read(0, min(npy.HEADER_BYTES, file.size_bytes)).to_pybytes(), 0, None)
        _check_size(file, array)
        return {COLUMN: array}
    if not start.startswith(b"PK"):
        raise _corrupt(file, "it begins neither as an array nor as an archive of arrays", 0)
    found = {}
    with _archive(file) as archive:
        for member in archive.infolist():
            name = member.filename.removesuffix(".npy")
            if not 0 <= member.header_offset <= file.size_bytes - 30:
                raise _corrupt(file, f"{member.filename} lies outside of it", file.size_bytes)
            if member.compress_type == zipfile.ZIP_STORED:
                # The sizes of name and extra field here may differ from those in the archive's directory.
                local = file.read(member.header_offset, 30).to_pybytes()
                at = member.header_offset + 30 + int.from_bytes(local[26:28], "little")
                at += int.from_bytes(local[28:30], "little")
                header = file.read(at, min(npy.HEADER_BYTES, member.file_size)).to_pybytes()
                found[name] = _parse_header(file, header, at, None)
                _check_size(file, found[name])
            else:
                try:
                    with archive.open(member) as content:
                        header = content.read(npy.HEADER_BYTES)
                except _ZIP_ERRORS as error:
                    raise _corrupt(file, f"{member.filename}: {error}", member.header_offset) from error
                found[name] = _parse_header(file, header, 0, member.filename)
    return found


def _parse_header(file: ByteFile, data: bytes, offset: int, member: str | None) -> _Array:
    try:
        found = npy.parse_header(data)
    except ValueError as error:
        raise _corrupt(file, str(error), offset) from error
    if not found.shape:
        raise _corrupt(file, "its array has no dimension, so it has no rows", offset)
    return _Array(found.dtype, found.shape, found.fortran, offset + found.offset, member)


def _check_size(file: ByteFile, array: _Array) -> None:
    end = array.offset + array.row_bytes * array.shape[0]
    if end > file.size_bytes:
        raise _corrupt(file, f"it ends there, but its data would end at {end}", file.size_bytes)


def _columns_of(name: str, dtype: np.dtype[Any]) -> dict[str, np.dtype[Any]]:
    if dtype.names is None or dtype.fields is None:
        return {name: dtype}
    return {field: dtype.fields[field][0] for field in dtype.names}


def _archive(file: ByteFile) -> zipfile.ZipFile:
    try:
        return zipfile.ZipFile(file.native())
    except _ZIP_ERRORS as error:
        raise _corrupt(file, str(error), file.size_bytes) from error


def _corrupt(file: ByteFile, problem: str, offset: int) -> CorruptFileError:
    return CorruptFileError(file.name, problem.splitlines()[0], kind="numpy", offset=offset)
