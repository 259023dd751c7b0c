"""What a format is: how its files are scanned once, and how rows are read from them ever after."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Protocol

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from strata.data.formats.tensors import describe_type, is_tensor

if TYPE_CHECKING:
    from collections.abc import Sequence

    from strata.data.files.random_access import ByteFile
    from strata.data.rows.columns import Columns

Integers = npt.NDArray[np.int64]


def _none() -> Integers:
    return np.empty(0, np.int64)


@dataclass(frozen=True, slots=True)
class FileMeta:
    """What the index keeps of one file.

    A block is what must be decoded at once: a row group, a record batch, a stretch of records. Block ``i``
    begins with row ``block_rows[i]`` at byte ``block_offsets[i]``. A file without blocks gives any rows directly.
    ``data_bytes`` is the size of what blocks lie in: of the file, or of its content if it is compressed.
    """

    rows: int
    data_bytes: int
    block_rows: Integers = field(default_factory=_none)
    block_offsets: Integers = field(default_factory=_none)

    def blocks_of(self, start: int, stop: int) -> range:
        """Return the blocks that hold rows [start, stop)."""
        first, last = (np.searchsorted(self.block_rows, (start, stop - 1), side="right") - 1).tolist()
        return range(first, last + 1)

    def place_of(self, blocks: range) -> tuple[int, int]:
        """Return where consecutive blocks begin, and how many bytes they have."""
        begin = int(self.block_offsets[blocks.start])
        end = int(self.block_offsets[blocks.stop]) if blocks.stop < len(self.block_offsets) else self.data_bytes
        return begin, end - begin


class Reader(Protocol):
    """Reads rows of one open file. Used by one thread at a time."""

    def read(self, start: int, stop: int, columns: Sequence[str]) -> Columns:
        """Return these columns of rows [start, stop); where there are blocks, of whole blocks only."""
        ...


class Format(Protocol):
    """One format with its options. Stateless, so that any thread may use it."""

    @property
    def kind(self) -> str:
        """The format's name."""
        ...

    def scan(self, file: ByteFile) -> tuple[FileMeta, pa.Schema]:
        """Look through a file once; one that cannot be read is a CorruptFileError."""
        ...

    def merge(self, first: pa.Schema, second: pa.Schema) -> pa.Schema:
        """Return the schema that rows of both have, or raise ValueError that says how they differ."""
        ...

    def open(self, file: ByteFile, meta: FileMeta, schema: pa.Schema) -> Reader:
        """Return a reader; ``schema`` is that of the dataset."""
        ...


def merge_declared(first: pa.Schema, second: pa.Schema) -> pa.Schema:
    """The merge of formats that say their types: the same columns, of types of which one holds the other's values.

    Strings and bytes may be of both widths, whole numbers and floats of several, and a column may be empty in a file.
    """
    for name in [*first.names, *second.names]:
        if name not in second.names or name not in first.names:
            raise ValueError(f"column {name!r} is only in the {'first' if name in first.names else 'second'}")
    return pa.schema([_merge_fields(field, second.field(field.name)) for field in first])


def _merge_fields(first: pa.Field, second: pa.Field) -> pa.Field:
    nullable = first.nullable or second.nullable
    left, right = describe_type(first), describe_type(second)
    if left == right and first.type == second.type:
        return first.with_nullable(nullable)
    # Arrays that are kept as bytes are what they are; only lists of them can be compared with lists.
    kind = None if is_tensor(first) or is_tensor(second) else wider_type(first.type, second.type)
    if kind is None and pa.types.is_null(second.type):
        return first.with_nullable(nullable=True)
    if kind is None and pa.types.is_null(first.type):
        return second.with_nullable(nullable=True)
    if kind is None:
        raise ValueError(f"column {first.name!r} is {left} in the first and {right} in the second")
    return pa.field(first.name, kind, nullable=nullable, metadata=first.metadata)


def wider_type(first: pa.DataType, second: pa.DataType) -> pa.DataType | None:
    """Return the type that holds every value of both exactly; None if neither is meant to hold the other's."""
    types = pa.types
    if first == second or types.is_null(second):
        return first
    if types.is_null(first):
        return second
    for family, wide in _WIDE:
        if family(first) and family(second):
            return wide
    if types.is_floating(first) and types.is_floating(second):
        return max(first, second, key=lambda kind: kind.bit_width)
    if types.is_integer(first) and types.is_integer(second):
        if types.is_signed_integer(first) == types.is_signed_integer(second):
            return max(first, second, key=lambda kind: kind.bit_width)
        signed, unsigned = (first, second) if types.is_signed_integer(first) else (second, first)
        wanted = max(signed.bit_width, 2 * unsigned.bit_width)
        return pa.type_for_alias(f"int{wanted}") if wanted <= 64 else None
    if _is_varying_list(first) and _is_varying_list(second):
        inner = wider_type(first.value_type, second.value_type)
        is_large = types.is_large_list(first) or types.is_large_list(second)
        return None if inner is None else (pa.large_list(inner) if is_large else pa.list_(inner))
    return None


def _is_text(kind: pa.DataType) -> bool:
    return bool(pa.types.is_string(kind) or pa.types.is_large_string(kind))


def _is_bytes(kind: pa.DataType) -> bool:
    return bool(pa.types.is_binary(kind) or pa.types.is_large_binary(kind))


def _is_varying_list(kind: pa.DataType) -> bool:
    return bool(pa.types.is_list(kind) or pa.types.is_large_list(kind))


_WIDE = ((_is_text, pa.large_string()), (_is_bytes, pa.large_binary()))
