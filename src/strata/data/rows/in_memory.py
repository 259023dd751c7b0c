"""Rows of objects that other libraries hold: Arrow tables, NumPy arrays, and datasets of Hugging Face and Arrow."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
import pyarrow as pa

from strata.data.formats import tensors
from strata.data.rows.column_types import Nulls
from strata.data.rows.columns import Array, Columns
from strata.data.rows.typed_schema import TypedSchema

COLUMN = "data"
# What Arrow calls the formats that are read here too.
_FORMATS = {"parquet": "parquet", "arrow": "arrow", "ipc": "arrow", "feather": "arrow", "csv": "csv", "json": "jsonl"}


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
    """The rows of NumPy arrays: an element of the first axis each; arrays in native byte order are not copied."""

    def __init__(self, arrays: Mapping[str, Any], columns: Sequence[str] | None = None) -> None:
        self._arrays = {_check_name(name): _array_of(name, values) for name, values in arrays.items()}
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


def _check_name(name: Any) -> str:
    if not isinstance(name, str):
        raise TypeError(f"{name!r} is no name of a column; use text")
    return name


def _array_of(name: str, values: Any) -> Array:
    """Return the values as an array, or raise an error where one would not hold them as they are."""
    if isinstance(values, np.ma.MaskedArray):
        raise TypeError(f"{name!r} is a masked array, whose mask would be lost; give an Arrow table instead")
    try:
        array = np.asarray(values)
    except ValueError as error:
        raise ValueError(f"{name!r} has rows of different lengths; give an Arrow table instead") from error
    if isinstance(values, list | tuple) and array.dtype != np.object_ and not _is_same(array.tolist(), values):
        raise ValueError(
            f"{name!r} is a list whose values an array of {array.dtype} would change; give an array of the type that "
            "you want, or an Arrow table"
        )
    # Torch and JAX take no other byte order, and files are not given in one.
    return array if array.dtype.isnative else array.astype(array.dtype.newbyteorder("="))


def _is_same(found: Any, given: Any) -> bool:
    if isinstance(found, list):
        return all(map(_is_same, found, given))
    # Not a number is not equal to itself.
    return bool(found == given) or bool(found != found and given != given)


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
        if repeated := [name for place, name in enumerate(source.column_names) if name in source.column_names[:place]]:
            raise ValueError(f"the table has two columns {repeated[0]!r}; give each a name of its own")
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
    if getattr(source, "_scan_options", None):
        raise TypeError(
            "this dataset of Arrow's has a filter, which its files know nothing of; give it as filter=, or give what "
            "to_table() returns"
        )
    return list(files)


def format_of(source: Any) -> str | None:
    """Return the name of the format of a dataset of Arrow's files; None if their endings must say it."""
    return _FORMATS.get(getattr(getattr(source, "format", None), "default_extname", ""))


def check_files_of(source: Any, names: Sequence[str], columns: Sequence[str] | None) -> None:
    """Raise an error if the files of a dataset of Arrow's have other columns than the dataset, unless some are chosen.

    It may have columns of directories, options for parsing, or a schema of its own.
    """
    own = source.schema.names
    if columns is None and sorted(own) != sorted(names):
        raise TypeError(
            f"this dataset of Arrow's has the columns {', '.join(own)}, and its files have {', '.join(names)}; give "
            "the directory or the files with the options to read them, or give what to_table() returns"
        )


def _noted(field: pa.Field, column: pa.ChunkedArray) -> pa.Field:
    return field.with_nullable(pa.types.is_null(field.type) or any(map(_misses, column.chunks)))


def _misses(array: pa.Array) -> bool:
    if isinstance(array, pa.ExtensionArray):
        return _misses(array.storage)
    if pa.types.is_fixed_size_list(array.type):
        return bool(array.null_count) or _misses(array.flatten())
    return bool(array.null_count) or pa.types.is_dictionary(array.type) or pa.types.is_run_end_encoded(array.type)
