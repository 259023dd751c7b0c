"""Rows as columns: what readers give, and what batches are cut from."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, TypeAlias

import numpy as np
import numpy.typing as npt

if TYPE_CHECKING:
    import pyarrow as pa

Array: TypeAlias = npt.NDArray[Any]
# NumPy where each row has one fixed shape: numbers, tensors, bytes of one length. Arrow for strings, bytes and lists of
# varying length, for what is nested, and for numbers of which some are missing.
Column: TypeAlias = "Array | pa.Array"

# Offsets of strings, bytes and lists are 32 bits wide; from here on they must be 64.
_LARGEST_NARROW_BYTES = 2**31 - 1


class Columns:
    """Rows in columns of equal length. Slicing copies nothing; taking rows copies once. Immutable by convention."""

    __slots__ = ("_columns", "_num_rows")

    def __init__(self, columns: Mapping[str, Column], num_rows: int | None = None) -> None:
        """``num_rows`` is needed where there may be no columns; otherwise it is checked."""
        self._columns: dict[str, Column] = dict(columns)
        if num_rows is None:
            num_rows = len(next(iter(self._columns.values()), ()))
        self._num_rows = num_rows
        for name, column in self._columns.items():
            if len(column) != num_rows:
                raise ValueError(f"column {name!r} has {len(column)} rows where others have {num_rows}")

    @property
    def names(self) -> tuple[str, ...]:
        """The names of the columns, in their order."""
        return tuple(self._columns)

    @property
    def num_rows(self) -> int:
        """How many rows each column has."""
        return self._num_rows

    @property
    def size_bytes(self) -> int:
        """How many bytes the rows take up."""
        return sum(column.nbytes for column in self._columns.values())

    def __getitem__(self, name: str) -> Column:
        return self._columns[name]

    def __contains__(self, name: object) -> bool:
        return name in self._columns

    def slice(self, start: int, stop: int) -> Columns:
        """Return rows [start, stop) as views."""
        rows = range(self._num_rows)[start:stop]
        return self._like({name: column[start:stop] for name, column in self._columns.items()}, len(rows))

    def take(self, indices: npt.NDArray[np.int64]) -> Columns:
        """Return the rows at ``indices``, in that order, as copies."""
        taken: dict[str, Column] = {
            name: column.take(indices, axis=0) if isinstance(column, np.ndarray) else _take(column, indices)
            for name, column in self._columns.items()
        }
        return self._like(taken, len(indices))

    def with_objects(self) -> Columns:
        """Return these columns with strings and bytes as objects: ordering and joining rows then moves no text.

        Of use where every row is given to someone: each of them becomes an object in the end.
        """
        columns = {name: _to_objects(column) if _is_text(column) else column for name, column in self._columns.items()}
        return self._like(columns, self._num_rows)

    def select(self, names: Sequence[str]) -> Columns:
        """Return these columns, in this order."""
        missing = [name for name in names if name not in self._columns]
        if missing:
            raise ValueError(f"there is no column {missing[0]!r}; the columns are {', '.join(self._columns)}")
        return self._like({name: self._columns[name] for name in names}, self._num_rows)

    @classmethod
    def concat(cls, parts: Sequence[Columns]) -> Columns:
        """Return the rows of all parts, which must have the same columns; one part alone is not copied."""
        if not parts:
            raise ValueError("there is nothing to concatenate; give at least one part")
        if len(parts) == 1:
            return parts[0]
        for part in parts:
            if part.names != parts[0].names:
                raise ValueError(f"parts have columns {parts[0].names} and {part.names}; give each the same")
        joined = {name: _concat([part[name] for part in parts]) for name in parts[0].names}
        return cls(joined, sum(part.num_rows for part in parts))

    @classmethod
    def gather(
        cls,
        parts: Sequence[Columns],
        rows: Sequence[npt.NDArray[np.int64]],
        places: Sequence[npt.NDArray[np.int64]],
    ) -> Columns:
        """Return ``rows[i]`` of each part, standing at ``places[i]`` of the result; the places are all of it."""
        num_rows = sum(map(len, places))
        order: npt.NDArray[np.int64] = np.empty(num_rows, dtype=np.int64)
        order[np.concatenate(places)] = np.arange(num_rows)
        gathered: dict[str, Column] = {}
        for name in parts[0].names:
            columns = [part[name] for part in parts]
            arrays = [column for column in columns if isinstance(column, np.ndarray)]
            if len(arrays) == len(columns) and len({(array.dtype, array.shape[1:]) for array in arrays}) == 1:
                # A part's rows go to their places while they are in the processor's cache; joining all of them first
                # and then ordering them would move everything through memory once more.
                whole = np.empty((num_rows, *arrays[0].shape[1:]), dtype=arrays[0].dtype)
                for array, taken, at in zip(arrays, rows, places, strict=True):
                    whole[at] = array.take(taken, axis=0)
                gathered[name] = whole
            else:
                pieces = [cls._like({name: column}, len(column)) for column in columns]
                joined = cls.concat([piece.take(taken) for piece, taken in zip(pieces, rows, strict=True)])
                gathered[name] = joined.take(order)[name]
        return cls._like(gathered, num_rows)

    @classmethod
    def from_arrow(cls, table: pa.Table | pa.RecordBatch) -> Columns:
        """Return the columns of an Arrow table; fixed-width columns without nulls become NumPy, mostly without a copy.

        Bytes of one fixed length become rows of ``uint8``; dictionaries are decoded.
        """
        names = table.column_names
        columns = {name: from_arrow_array(column) for name, column in zip(names, table.columns, strict=True)}
        if len(columns) != len(names):
            raise ValueError(f"columns {names} have a name more than once; give each its own")
        return cls(columns, table.num_rows)

    def to_numpy(self) -> dict[str, Array]:
        """Return each column as NumPy: strings, bytes and lists of varying length as arrays of objects.

        A missing value is None in such an array, also inside of a list; no number is changed for it.
        """
        return {
            name: column if isinstance(column, np.ndarray) else _to_objects(column)
            for name, column in self._columns.items()
        }

    def __repr__(self) -> str:
        return f"Columns({', '.join(self._columns)}; {self._num_rows} rows)"

    @classmethod
    def _like(cls, columns: dict[str, Column], num_rows: int) -> Columns:
        """Make columns that are known to be of equal length; batches are cut thousands of times a second."""
        made = cls.__new__(cls)
        made._columns = columns
        made._num_rows = num_rows
        return made


def from_arrow_array(column: pa.Array | pa.ChunkedArray) -> Column:
    """Return an Arrow column as NumPy where each row has one fixed shape, and as one Arrow array otherwise."""
    import pyarrow as pa

    if isinstance(column, pa.ChunkedArray):
        if column.num_chunks != 1:
            # Each chunk by itself first: where they become NumPy, joining copies once and nothing before did.
            chunks = [from_arrow_array(chunk) for chunk in column.chunks if len(chunk)]
            return _concat(chunks) if chunks else from_arrow_array(pa.array([], type=column.type))
        column = column.chunk(0)
    return _from_array(column)


def _from_array(array: pa.Array) -> Column:
    import pyarrow as pa

    from strata.data.rows.plain_arrow import to_plain

    if isinstance(array, pa.FixedShapeTensorArray) and not (array.null_count or array.storage.flatten().null_count):
        tensors: Array = array.to_numpy_ndarray()
        return tensors
    array = to_plain(array)
    kind = array.type
    if array.null_count:
        return array
    if isinstance(array, pa.FixedSizeListArray):
        # flatten() respects the slice that this array may be of a larger one; values does not.
        inner = _from_array(array.flatten())
        if isinstance(inner, np.ndarray):
            return inner.reshape(len(array), kind.list_size, *inner.shape[1:])
        return array
    if pa.types.is_fixed_size_binary(kind):
        return _fixed_bytes(array, kind.byte_width)
    # Times of day have no NumPy type.
    is_moment = pa.types.is_temporal(kind) and not pa.types.is_interval(kind) and not pa.types.is_time(kind)
    if pa.types.is_boolean(kind) or is_moment:
        fixed: Array = array.to_numpy(zero_copy_only=False)
        return fixed
    if pa.types.is_integer(kind) or pa.types.is_floating(kind):
        numbers: Array = array.to_numpy()
        return numbers
    return array


def _is_text(column: Column) -> bool:
    if isinstance(column, np.ndarray):
        return False
    import pyarrow as pa

    kinds = (pa.types.is_string, pa.types.is_large_string, pa.types.is_binary, pa.types.is_large_binary)
    return any(is_kind(column.type) for is_kind in kinds)


def _to_objects(array: pa.Array) -> Array:
    import pyarrow as pa

    if pa.types.is_union(array.type):
        return np.fromiter(array.to_pylist(), object, len(array))
    if _misses_numbers(array):
        # Arrow would make floats of whole numbers beside a missing one, and 2**60 + 5 is none.
        kind = array.type
        is_list = pa.types.is_list(kind) or pa.types.is_large_list(kind)
        is_flat = is_list and not pa.types.is_nested(kind.value_type)
        rows = np.empty(len(array), object)
        for place, row in enumerate(array.to_pylist()):
            rows[place] = row
            if is_flat and row is not None:
                rows[place] = np.array(row, object if None in row else kind.value_type.to_pandas_dtype())
        return rows
    found: Array = array.to_numpy(zero_copy_only=False)
    return found


def _misses_numbers(array: pa.Array) -> bool:
    """Whether a whole number or a boolean is missing somewhere inside."""
    import pyarrow as pa

    kind = array.type
    if pa.types.is_integer(kind) or pa.types.is_boolean(kind):
        return bool(array.null_count)
    if pa.types.is_struct(kind):
        return any(map(_misses_numbers, array.flatten()))
    if pa.types.is_map(kind):
        return _misses_numbers(array.items)
    is_list = pa.types.is_list(kind) or pa.types.is_large_list(kind) or pa.types.is_fixed_size_list(kind)
    return is_list and _misses_numbers(array.flatten())


def _fixed_bytes(array: pa.Array, width: int) -> Array:
    data = array.buffers()[1]
    if data is None or width == 0:
        return np.empty((len(array), width), dtype=np.uint8)
    rows = np.frombuffer(data, dtype=np.uint8, count=len(array) * width, offset=array.offset * width)
    return rows.reshape(len(array), width)


def _take(array: pa.Array, indices: npt.NDArray[np.int64]) -> pa.Array:
    import pyarrow as pa

    taken = array.take(pa.array(indices))
    # Arrow answers in chunks where the rows taken are more than 32-bit offsets can reach.
    return _join_arrow(taken.chunks) if isinstance(taken, pa.ChunkedArray) else taken


def _concat(parts: Sequence[Column]) -> Column:
    if len(parts) == 1:
        return parts[0]
    arrays = [part for part in parts if isinstance(part, np.ndarray)]
    if len(arrays) == len(parts):
        return np.concatenate(arrays)
    return _join_arrow([_to_arrow(part) for part in parts])


def _join_arrow(parts: Sequence[pa.Array]) -> pa.Array:
    import pyarrow as pa

    # A part without a value has the type null, and an integer column with missing values may meet one without.
    kinds = {part.type for part in parts}
    if len(kinds) > 1:
        kind = pa.unify_schemas([pa.schema({"": each}) for each in kinds], promote_options="permissive").field(0).type
        parts = [part.cast(kind) for part in parts]
    if sum(part.nbytes for part in parts) > _LARGEST_NARROW_BYTES:
        wide = {pa.string(): pa.large_string(), pa.binary(): pa.large_binary()}
        kind = parts[0].type
        if pa.types.is_list(kind):
            wide[kind] = pa.large_list(kind.value_field)
        parts = [part.cast(wide.get(kind, kind)) for part in parts]
    return pa.concat_arrays(parts)


def _to_arrow(column: Column) -> pa.Array:
    """Return the column as Arrow; where one part of a column has missing values, the others join it there."""
    import pyarrow as pa

    if not isinstance(column, np.ndarray):
        return column
    if column.ndim == 1:
        return pa.array(column)
    inner = _to_arrow(column.reshape(-1, *column.shape[2:]))
    return pa.FixedSizeListArray.from_arrays(inner, column.shape[1])
