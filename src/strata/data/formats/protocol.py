"""What a format is: how its files are scanned once, and how rows are read from them ever after."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Protocol

import numpy as np
import numpy.typing as npt

from strata.data.formats.tensors import describe_type

if TYPE_CHECKING:
    from collections.abc import Sequence

    import pyarrow as pa

    from strata.data.columns import Columns
    from strata.data.files import ByteFile

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


def merge_equal(first: pa.Schema, second: pa.Schema) -> pa.Schema:
    """The merge of formats that say their types: they must be the same, in any order of columns."""
    if first.equals(second, check_metadata=True):
        return first
    left, right = ({field.name: describe_type(field) for field in each} for each in (first, second))
    for name in [*left, *right]:
        if name not in right or name not in left:
            raise ValueError(f"column {name!r} is only in the {'first' if name in left else 'second'}")
        if left[name] != right[name]:
            raise ValueError(f"column {name!r} is {left[name]} in the first and {right[name]} in the second")
    return first
