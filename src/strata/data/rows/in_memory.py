"""Rows of objects that other libraries hold: Arrow tables, NumPy arrays, and datasets of Hugging Face and Arrow."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
import pyarrow as pa

from strata.data.formats import tensors
from strata.data.rows.column_types import Nulls
from strata.data.rows.columns import Columns
from strata.data.rows.typed_schema import TypedSchema

COLUMN = "data"


class TableRows:
    """The rows of an Arrow table, or of what gives Arrow tables for ranges of its rows."""

    def __init__(
        self,
        schema: pa.Schema,
        num_rows: int,
        read: Callable[[int, int], pa.Table],
        *,
        columns: Sequence[str] | None = None,
        nulls: Nulls = "mask",
    ) -> None:
        self._typed = TypedSchema(tensors.decoded_schema(schema), nulls)
        self._names = self._typed.choose(columns)
        self._read = read
        self.num_rows = num_rows

    @property
    def names(self) -> tuple[str, ...]:
        """The names of the columns."""
        return self._names

    def read(self, start: int, stop: int, columns: Sequence[str] | None = None) -> Columns:
        """Return rows [start, stop), in these columns or in all."""
        names = self._typed.choose(columns, self._names)
        if start == stop:
            return self._typed.empty(names)
        table = self._read(start, stop).select(self._typed.sources(names))
        return self._typed.conform(tensors.decode(table, self._typed.stored), names, lambda row: f"row {start + row}")


class ArrayRows:
    """The rows of NumPy arrays: an element of the first axis each; nothing is copied."""

    def __init__(self, arrays: Mapping[str, Any], columns: Sequence[str] | None = None) -> None:
        for name, array in arrays.items():
            if isinstance(array, np.ma.MaskedArray):
                raise TypeError(f"{name!r} is a masked array, whose mask would be lost; give an Arrow table instead")
        self._arrays = {name: np.asarray(array) for name, array in arrays.items()}
        sizes = {name: array.shape[0] if array.ndim else None for name, array in self._arrays.items()}
        if None in sizes.values() or len(set(sizes.values())) != 1:
            raise ValueError(f"arrays must have rows, and all as many; these have {sizes}")
        self.num_rows = len(next(iter(self._arrays.values())))
        self._names = tuple(self._arrays)
        for name in columns or ():
            if name not in self._arrays:
                raise ValueError(f"there is no column {name!r}; the columns are {', '.join(self._arrays)}")
        self._names = tuple(columns or self._arrays)

    @property
    def names(self) -> tuple[str, ...]:
        """The names of the columns."""
        return self._names

    def read(self, start: int, stop: int, columns: Sequence[str] | None = None) -> Columns:
        """Return rows [start, stop) as views."""
        return Columns({name: self._arrays[name][start:stop] for name in columns or self._names}, stop - start)


class _SliceTable:
    def __init__(self, table: pa.Table) -> None:
        self._table = table

    def __call__(self, start: int, stop: int) -> pa.Table:
        return self._table.slice(start, stop - start)


class _SliceHub:
    def __init__(self, dataset: Any) -> None:
        self._dataset = dataset.with_format("arrow")

    def __call__(self, start: int, stop: int) -> pa.Table:
        return self._dataset[start:stop]


def rows_of(
    source: object, columns: Sequence[str] | None, nulls: Nulls
) -> TableRows | ArrayRows | Sequence[str] | None:
    """Return the rows of an object that another library made, or the files that it is of; None if it is none of these.

    Of a dataset of Arrow's with files, the local paths come back, to be read like any others.
    """
    home = type(source).__module__.partition(".")[0]
    if isinstance(source, np.ndarray):
        return ArrayRows({COLUMN: source}, columns)
    if home == "datasets" and isinstance(source, Mapping):
        raise TypeError(
            f"a {type(source).__name__} has several datasets; choose one, as in source[{next(iter(source), 'train')!r}]"
        )
    if isinstance(source, Mapping):
        return ArrayRows(source, columns)
    if isinstance(source, pa.RecordBatch):
        source = pa.Table.from_batches([source])
    if isinstance(source, pa.Table):
        schema = pa.schema([_noted(field, source.column(place)) for place, field in enumerate(source.schema)])
        return TableRows(schema, source.num_rows, _SliceTable(source), columns=columns, nulls=nulls)
    if home == "datasets" and hasattr(source, "with_format") and hasattr(source, "features"):
        return _rows_of_hub(source, columns, nulls)
    if home == "pyarrow" and hasattr(source, "get_fragments"):
        return _files_of(source, columns, nulls)
    return None


def _rows_of_hub(source: Any, columns: Sequence[str] | None, nulls: Nulls) -> TableRows:
    if not hasattr(source, "num_rows") or not hasattr(source, "data"):
        raise TypeError(
            f"a {type(source).__name__} has no rows to go to; use a datasets.Dataset: load it without streaming, and "
            "choose one split"
        )
    if source.format["type"] == "custom":
        raise TypeError(
            "this dataset has a transform of its own, which would not be run; give it as transform=, and here what "
            "with_format(None) returns"
        )
    data = source.data.table
    schema = pa.schema([_noted(field, data.column(field.name)) for field in source.features.arrow_schema])
    return TableRows(schema, source.num_rows, _SliceHub(source), columns=columns, nulls=nulls)


def _files_of(source: Any, columns: Sequence[str] | None, nulls: Nulls) -> Sequence[str] | TableRows:
    files = getattr(source, "files", None)
    if files is None:
        table = source.to_table()
        found = rows_of(table, columns, nulls)
        assert isinstance(found, TableRows)
        return found
    if type(source.filesystem).__name__ != "LocalFileSystem":
        raise TypeError("this dataset of Arrow's lies in a store; give its URL instead, such as s3://bucket/data")
    return list(files)


def _noted(field: pa.Field, column: pa.ChunkedArray) -> pa.Field:
    return field.with_nullable(pa.types.is_null(field.type) or any(map(_misses, column.chunks)))


def _misses(array: pa.Array) -> bool:
    if isinstance(array, pa.ExtensionArray):
        return _misses(array.storage)
    if pa.types.is_fixed_size_list(array.type):
        return bool(array.null_count) or _misses(array.flatten())
    return bool(array.null_count) or pa.types.is_dictionary(array.type) or pa.types.is_run_end_encoded(array.type)
