"""Raw token files for language models: numbers one after the other; a row is a sequence of them."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa

from strata.data.formats import tensors
from strata.data.formats.protocol import FileMeta, merge_declared
from strata.data.rows.columns import Columns
from strata.errors import CorruptFileError, UnknownDataFormatError

if TYPE_CHECKING:
    from collections.abc import Sequence

    from strata.data.files.random_access import ByteFile

COLUMN = "tokens"
DTYPES = ("uint8", "uint16", "uint32", "int32", "int64")
_NAMED = re.compile(rf"\.({'|'.join(DTYPES)})\.[^./]+$")


class Tokens:
    """Files of nothing but token numbers, little endian.

    Row ``i`` is the tokens from ``i * sequence_length``, ``sequence_length + extra_tokens`` of them: with one
    extra token, a row holds both the inputs and the targets of next-token training. Tokens at the end of a file
    that fill no row are not read. The ``dtype`` may also stand in the name, as in ``train.uint16.bin``.
    """

    kind = "tokens"

    def __init__(
        self,
        *,
        dtype: str | None = None,
        sequence_length: int = 1024,
        extra_tokens: int = 0,
        header_bytes: int = 0,
    ) -> None:
        if dtype is not None and dtype not in DTYPES:
            raise ValueError(f"dtype={dtype!r} is no type of tokens; use one of {', '.join(DTYPES)}")
        if sequence_length < 1 or extra_tokens < 0 or header_bytes < 0:
            raise ValueError(
                f"sequence_length={sequence_length} must be 1 or more, extra_tokens={extra_tokens} and "
                f"header_bytes={header_bytes} 0 or more"
            )
        self._dtype = dtype
        self._step = sequence_length
        self._width = sequence_length + extra_tokens
        self._header_bytes = header_bytes

    def scan(self, file: ByteFile) -> tuple[FileMeta, pa.Schema]:
        """Count; nothing is read."""
        dtype = self._dtype_of(file)
        size = file.size_bytes - self._header_bytes
        if size < 0 or size % dtype.itemsize:
            problem = f"{file.size_bytes} bytes are no whole number of {dtype} tokens"
            raise CorruptFileError(file.name, problem, kind=self.kind, offset=file.size_bytes)
        tokens = size // dtype.itemsize
        rows = max(0, (tokens - self._width) // self._step + 1)
        schema = pa.schema([tensors.field_of(COLUMN, dtype, (self._width,))])
        return FileMeta(rows, file.size_bytes), schema

    merge = staticmethod(merge_declared)

    def open(self, file: ByteFile, meta: FileMeta, schema: pa.Schema) -> TokenReader:
        """Return a reader; there is nothing to prepare."""
        return TokenReader(file, self._dtype_of(file), self._step, self._width, self._header_bytes)

    def _dtype_of(self, file: ByteFile) -> np.dtype[Any]:
        named = _NAMED.search(file.name)
        if self._dtype is None and named is None:
            problem = (
                "a token file does not say how wide a token is; give the option dtype, such as dtype=uint16, "
                "or name the file train.uint16.bin"
            )
            raise UnknownDataFormatError(file.name, problem, known=[self.kind])
        return np.dtype(self._dtype or (named and named[1])).newbyteorder("<")


class TokenReader:
    """One open token file."""

    def __init__(self, file: ByteFile, dtype: np.dtype[Any], step: int, width: int, header_bytes: int) -> None:
        self._file = file
        self._dtype = dtype
        self._step = step
        self._width = width
        self._header_bytes = header_bytes

    def read(self, start: int, stop: int, columns: Sequence[str]) -> Columns:
        """Return the rows as a view of the file; rows that share tokens share memory."""
        size, rows = self._dtype.itemsize, stop - start
        length = (rows - 1) * self._step + self._width
        data = self._file.read(self._header_bytes + start * self._step * size, length * size)
        tokens = np.frombuffer(data, self._dtype)
        shape, strides = (rows, self._width), (self._step * size, size)
        view = np.lib.stride_tricks.as_strided(tokens, shape, strides, writeable=False)
        return Columns(dict.fromkeys(columns, view), rows)
