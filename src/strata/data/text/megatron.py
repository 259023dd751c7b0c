"""Megatron's indexed datasets: documents of tokens in ``NAME.bin``, and where each begins in ``NAME.idx``."""

from __future__ import annotations

import os
import struct
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from strata.data.rows.columns import Columns
from strata.errors import CorruptFileError, DatasetNotFoundError

COLUMN = "tokens"
_MARK = b"MMIDIDX\0\0"
_HEAD = struct.Struct("<9sQBQQ")
_CODES = {1: "uint8", 2: "int8", 3: "int16", 4: "int32", 5: "int64", 8: "uint16"}


class MegatronRows:
    """The documents of ``PREFIX.bin`` and ``PREFIX.idx``, one row each, in the column ``tokens``.

    Any range of documents can be read by itself. Files are mapped into memory.
    """

    def __init__(self, prefix: str | os.PathLike[str]) -> None:
        text = os.fspath(prefix)
        self.prefix = text.removesuffix(".bin").removesuffix(".idx")
        index, data = Path(f"{self.prefix}.idx"), Path(f"{self.prefix}.bin")
        for path in (index, data):
            if not path.is_file():
                raise DatasetNotFoundError(
                    str(path), "there is no such file", hint="give the path without .bin or .idx"
                )
        self.dtype, self._sizes, self._places, documents = _read_index(index)
        # Several sequences may be one document, as sentences are; the index says at which sequence each begins.
        self._starts = documents[:-1]
        ends = documents[1:]
        self.num_rows = len(self._starts)
        self.names = (COLUMN,)
        self._ends = ends
        size = data.stat().st_size
        last = int((self._places + self._sizes.astype(np.int64) * self.dtype.itemsize).max(initial=0))
        if last > size:
            raise CorruptFileError(
                str(data), f"it ends there, but {last} bytes are needed", kind="megatron", offset=size
            )
        count = size // self.dtype.itemsize
        self._data = np.memmap(data, self.dtype, "r", shape=count) if count else np.empty(0, self.dtype)

    @property
    def num_tokens(self) -> int:
        """How many tokens all documents have together."""
        return int(self._sizes.sum(dtype=np.int64))

    def __reduce__(self) -> tuple[Any, ...]:
        return MegatronRows, (self.prefix,)

    def read(self, start: int, stop: int, columns: Sequence[str] | None = None) -> Columns:
        """Return documents [start, stop)."""
        if columns is not None and list(columns) != [COLUMN]:
            raise ValueError(f"the only column is {COLUMN!r}")
        documents = [self._document(number) for number in range(start, stop)]
        offsets = np.concatenate([[0], np.cumsum([len(each) for each in documents])])
        flat = np.concatenate([np.empty(0, self.dtype), *documents])
        return Columns({COLUMN: pa.LargeListArray.from_arrays(offsets.astype(np.int64), pa.array(flat))}, stop - start)

    def _document(self, number: int) -> npt.NDArray[Any]:
        pieces = []
        for sequence in range(int(self._starts[number]), int(self._ends[number])):
            begin = int(self._places[sequence]) // self.dtype.itemsize
            pieces.append(self._data[begin : begin + int(self._sizes[sequence])])
        return pieces[0] if len(pieces) == 1 else np.concatenate([np.empty(0, self.dtype), *pieces])


def write_megatron(prefix: str | os.PathLike[str], documents: Iterable[npt.ArrayLike], *, dtype: str = "int32") -> int:
    """Write documents as ``PREFIX.bin`` and ``PREFIX.idx``; return how many tokens they have.

    The index is written last, so that a pair that was cut short does not look whole.
    """
    name = os.fspath(prefix)
    kind = _check_dtype(dtype)
    sizes = []
    limits = np.iinfo(kind)
    # The index of an earlier pair would be one of the new file.
    Path(f"{name}.idx").unlink(missing_ok=True)
    with Path(f"{name}.bin").open("wb") as file:
        for number, document in enumerate(documents):
            tokens = np.asarray(document)
            if tokens.ndim != 1 or (tokens.size and tokens.dtype.kind not in "iu"):
                raise ValueError(f"document {number} is {document!r:.80}, which is no list of token numbers")
            if tokens.size and not (limits.min <= tokens.min() and tokens.max() <= limits.max):
                token = int(tokens.max() if tokens.max() > limits.max else tokens.min())
                raise ValueError(f"document {number} has token {token}, which {kind} cannot hold; use a wider dtype")
            file.write(tokens.astype(kind.newbyteorder("<")).tobytes())
            sizes.append(len(tokens))
        file.flush()
        os.fsync(file.fileno())
    Path(f"{name}.idx").write_bytes(index_bytes(sizes, kind))
    return sum(sizes)


def _check_dtype(dtype: Any) -> np.dtype[Any]:
    name = dtype.name if isinstance(dtype, np.dtype) else dtype
    if name not in _CODES.values():
        raise ValueError(f"dtype={name!r} is not one of Megatron's; use one of {', '.join(_CODES.values())}")
    return np.dtype(name)


def index_bytes(sizes: Sequence[int], dtype: np.dtype[Any]) -> bytes:
    """Return the index of documents of these sizes, one sequence each."""
    code = next(code for code, name in _CODES.items() if name == _check_dtype(dtype).name)
    counts = np.array(sizes, "<i4")
    places = (np.cumsum(counts, dtype=np.int64) - counts) * dtype.itemsize
    head = _HEAD.pack(_MARK, 1, code, len(sizes), len(sizes) + 1)
    documents = np.arange(len(sizes) + 1, dtype="<i8")
    return b"".join((head, counts.tobytes(), places.astype("<i8").tobytes(), documents.tobytes()))


def _read_index(
    path: Path,
) -> tuple[np.dtype[Any], npt.NDArray[np.int32], npt.NDArray[np.int64], npt.NDArray[np.int64]]:
    data = path.read_bytes()
    if len(data) < _HEAD.size or not data.startswith(_MARK):
        raise CorruptFileError(str(path), "it does not begin as an index of Megatron's", kind="megatron", offset=0)
    _, version, code, sequences, documents = _HEAD.unpack_from(data)
    if version != 1 or code not in _CODES:
        problem = f"it is of version {version} with tokens of kind {code}, which are not known"
        raise CorruptFileError(str(path), problem, kind="megatron", offset=9)
    needed = _HEAD.size + sequences * 12 + documents * 8
    if len(data) < needed:
        raise CorruptFileError(
            str(path), f"it ends there, but {needed} bytes are needed", kind="megatron", offset=len(data)
        )
    sizes = np.frombuffer(data, "<i4", sequences, _HEAD.size)
    places = np.frombuffer(data, "<i8", sequences, _HEAD.size + 4 * sequences)
    bounds = np.frombuffer(data, "<i8", documents, _HEAD.size + 12 * sequences)
    if len(bounds) and (bounds[0] != 0 or bounds[-1] != sequences or (np.diff(bounds) < 0).any()):
        raise CorruptFileError(str(path), "its documents are not in order", kind="megatron", offset=_HEAD.size)
    return np.dtype(_CODES[code]).newbyteorder("<"), sizes, places, bounds
