"""One type per column for the whole dataset: what is missing never changes the type of a batch, and is never lost."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Literal, TypeAlias, get_args

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from strata.data.formats import tensors
from strata.data.rows.columns import Array, Column
from strata.data.rows.partitions import is_partition

# What becomes of missing values in columns of numbers; other columns have None, NaN or NaT in their place.
#   mask   the column keeps its type, has 0 or False there, and a column NAME.is_null beside it says where
#   nan    the column is float64 in every batch; a whole number that float64 cannot hold is an error
#   raise  a missing value, in any column, is an error
#   arrow  the column is an Arrow array; for reading rows, not for batches
Nulls: TypeAlias = Literal["mask", "nan", "raise", "arrow"]
NULLS: tuple[Nulls, ...] = get_args(Nulls)
MASK_SUFFIX = ".is_null"
# Beyond this, float64 does not hold every whole number.
_EXACT_FLOAT = 2**53


class MissingValueError(Exception):
    """A value cannot be given as asked; ``row`` counts from the first row of what was read."""

    def __init__(self, row: int, problem: str) -> None:
        super().__init__(problem)
        self.row = row


@dataclass(frozen=True, slots=True)
class ColumnType:
    """What every batch has of one column.

    ``dtype`` and ``shape`` are those of a row as NumPy; without a ``dtype``, rows are Arrow and batches have objects.
    """

    name: str
    arrow: pa.DataType
    nulls: Nulls
    may_miss: bool
    dtype: np.dtype[Any] | None = None
    shape: tuple[int, ...] = ()

    @property
    def mask_name(self) -> str | None:
        """The name of the column that says where values are missing, if there is one."""
        return f"{self.name}{MASK_SUFFIX}" if self._is_masked else None

    @property
    def batch_type(self) -> str:
        """What a batch has, in words, as ``strata data inspect`` shows it."""
        if self.dtype is None:
            return "objects"
        dtype = np.dtype(np.float64) if self._is_nan else self.dtype
        shape = f"{list(self.shape)}" if self.shape else ""
        zone = getattr(self.arrow, "tz", None)
        words = f"{dtype}{shape}" + (f" in UTC, from {zone}" if zone else "")
        return f"{words}, 0 and {self.mask_name} where missing" if self._is_masked else words

    def apply(self, column: Column) -> dict[str, Column]:
        """Return the column as every batch has it, with its mask if it has one."""
        if self.nulls == "raise" and not isinstance(column, np.ndarray) and (row := first_missing(column)) is not None:
            raise MissingValueError(row, f"column {self.name!r} has no value here, and nulls='raise' forbids that")
        if not isinstance(column, np.ndarray) and column.type == pa.time64("ns") and self.nulls != "arrow":
            self._check_time(column)
        if self.dtype is None or (self.nulls == "arrow" and not isinstance(column, np.ndarray)):
            return {self.name: self._cast(column)}
        if isinstance(column, np.ndarray):
            values, missing = column, None
        else:
            values, missing = fill(column, self.dtype, self.shape)
            if not self.may_miss and missing.any():
                row = int(np.flatnonzero(missing.reshape(len(missing), -1).any(axis=1))[0])
                raise MissingValueError(row, f"column {self.name!r} has no value here, and had one when indexed")
        values = values if values.dtype == self.dtype else values.astype(self.dtype)
        if self._is_nan:
            return {self.name: self._with_nan(values, missing)}
        if not self._is_masked:
            return {self.name: values}
        mask = np.zeros(values.shape, np.bool_) if missing is None else missing
        return {self.name: values, f"{self.name}{MASK_SUFFIX}": mask}

    @property
    def _has_no_sentinel(self) -> bool:
        return self.dtype is not None and self.dtype.kind in "biu" and self.may_miss

    @property
    def _is_masked(self) -> bool:
        is_bytes = pa.types.is_fixed_size_binary(self.arrow)
        return self._has_no_sentinel and (self.nulls == "mask" or (self.nulls == "nan" and is_bytes))

    @property
    def _is_nan(self) -> bool:
        return self._has_no_sentinel and self.nulls == "nan" and not self._is_masked

    def _cast(self, column: Column) -> Column:
        if isinstance(column, np.ndarray) or column.type == self.arrow or tensors.is_extension(self.arrow):
            return column
        if pa.types.is_fixed_size_binary(self.arrow) and pa.types.is_fixed_size_list(column.type):
            # Arrays that are stored as bytes: where rows are missing, the others come as lists.
            return column
        return column.cast(self.arrow)

    def _check_time(self, column: pa.Array) -> None:
        parts = pc.fill_null(column.cast(pa.int64()), 0).to_numpy() % 1000
        if parts.any():
            row = int(np.flatnonzero(parts)[0])
            raise MissingValueError(
                row,
                f"column {self.name!r} has nanoseconds here, which a time of day in Python cannot hold; leave it out",
            )

    def _with_nan(self, values: Array, missing: npt.NDArray[np.bool_] | None) -> Array:
        if values.dtype.kind != "b":
            # Compared on both sides: the absolute value of the smallest int64 is negative.
            beyond = (
                (values > _EXACT_FLOAT) | (values < -_EXACT_FLOAT) if values.dtype.itemsize == 8 else values != values
            )
            if beyond.any():
                row = int(np.flatnonzero(beyond.reshape(len(beyond), -1).any(axis=1))[0])
                raise MissingValueError(
                    row, f"column {self.name!r} has a number here that float64 cannot hold; use nulls='mask'"
                )
        floats = values.astype(np.float64)
        if missing is not None:
            floats[missing] = np.nan
        return floats


def column_types(schema: pa.Schema, nulls: Nulls) -> dict[str, ColumnType]:
    """Return the type of every column of a dataset, for this way of giving missing values."""
    if nulls not in NULLS:
        raise ValueError(f"nulls is {nulls!r}; use one of {', '.join(NULLS)}")
    return {field.name: _type_of(field, nulls) for field in schema}


def with_masks(schema: pa.Schema, types: dict[str, ColumnType]) -> pa.Schema:
    """Return the schema of what is delivered: each mask right after its column, unless a column has its name."""
    fields = []
    for field in schema:
        fields.append(field)
        each = types[field.name]
        if each.mask_name is not None and each.mask_name not in types:
            fields.append(tensors.field_of(each.mask_name, np.dtype(np.bool_), each.shape))
    return pa.schema(fields)


def fill(column: pa.Array, dtype: np.dtype[Any], shape: tuple[int, ...]) -> tuple[Array, npt.NDArray[np.bool_]]:
    """Return the rows as NumPy, and where values are missing; there stands NaN, NaT, 0 or False."""
    missing = column.is_null().to_numpy(zero_copy_only=False)
    values = np.full((len(column), *shape), _filler(dtype), dtype)
    gone = np.broadcast_to(missing.reshape(-1, *(1 for _ in shape)), values.shape).copy()
    there = column.drop_null()
    if len(there) == 0 or pa.types.is_null(column.type):
        return values, gone
    if shape and not pa.types.is_fixed_size_binary(column.type):
        inner, inner_gone = fill(there.flatten(), dtype, shape[1:])
        values[~missing] = inner.reshape(len(there), *shape)
        gone[~missing] = inner_gone.reshape(len(there), *shape)
    else:
        found = tensors.plain(there)
        values[~missing] = found
    return values, gone


def first_missing(column: pa.Array) -> int | None:
    """Return the first row that is missing, or inside of which something is."""
    if column.null_count:
        return int(np.flatnonzero(column.is_null().to_numpy(zero_copy_only=False))[0])
    kind = column.type
    if pa.types.is_struct(kind):
        return min((row for row in map(first_missing, column.flatten()) if row is not None), default=None)
    is_list = pa.types.is_list(kind) or pa.types.is_large_list(kind) or pa.types.is_fixed_size_list(kind)
    inside = first_missing(column.flatten()) if is_list else None
    return None if inside is None else int(pc.list_parent_indices(column)[inside].as_py())


def _type_of(field: pa.Field, nulls: Nulls) -> ColumnType:
    kind = field.type
    may_miss = field.nullable
    found = tensors.shape_of(field) if tensors.is_tensor(field) else tensors.list_shape(kind)
    if found is not None:
        return ColumnType(field.name, kind, nulls, may_miss, *found)
    if pa.types.is_fixed_size_binary(kind) and not is_partition(field):
        return ColumnType(field.name, kind, nulls, may_miss, np.dtype(np.uint8), (kind.byte_width,))
    is_fixed = pa.types.is_primitive(kind) and not pa.types.is_interval(kind) and not pa.types.is_time(kind)
    dtype = np.dtype(kind.to_pandas_dtype()) if is_fixed and not pa.types.is_temporal(kind) else None
    if is_fixed and pa.types.is_temporal(kind):
        dtype = pa.array([], kind).to_numpy(zero_copy_only=False).dtype
    return ColumnType(field.name, kind, nulls, may_miss, dtype)


def _filler(dtype: np.dtype[Any]) -> Any:
    if dtype.kind in "Mm":
        return np.array("NaT", dtype)
    return np.nan if dtype.kind in "fc" else 0
