"""Arrays of one fixed shape inside columnar files: how they are written as plain bytes, and come back as arrays.

Parquet keeps a list element by element, with levels for each; 8 KB of ``uint8`` take 32 KB there and 20 times as
long to read as 8 KB of bytes. A column of bytes of one fixed length whose field says ``strata.tensor`` is that array.
"""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa

from strata.data.columns import Columns

if TYPE_CHECKING:
    import numpy.typing as npt

KEY = b"strata.tensor"


def decoded_schema(schema: pa.Schema) -> pa.Schema:
    """Return the schema as its rows are given: dictionaries by their values, without the file's own notes."""
    return pa.schema([pa.field(each.name, _decoded(each.type), metadata=_note(each)) for each in schema])


def decode(table: pa.Table | pa.RecordBatch, schema: pa.Schema) -> Columns:
    """Return the rows as columns, tensors as what they are."""
    columns = Columns.from_arrow(table)
    noted = {name for name in columns.names if _note(schema.field(name)) is not None}
    if not noted:
        return columns
    return Columns(
        {name: _view(columns[name], schema.field(name)) if name in noted else columns[name] for name in columns.names},
        columns.num_rows,
    )


def encode(columns: Columns, schema: pa.Schema | None = None) -> pa.Table:
    """Return the rows as an Arrow table that :func:`decode` turns back into the same columns.

    With a ``schema``, that of rows before these, the table has that schema.
    """
    fields, arrays = [], []
    for name in columns.names:
        column = columns[name]
        if not isinstance(column, np.ndarray):
            if schema is not None and is_tensor(schema.field(name)):
                fields.append(schema.field(name))
                arrays.append(_nulls_as_bytes(column, schema.field(name)))
                continue
            fields.append(pa.field(name, column.type))
            arrays.append(column)
        elif column.ndim == 1 and column.dtype.kind in "biufMm":
            arrays.append(pa.array(column))
            fields.append(pa.field(name, arrays[-1].type))
        elif column.ndim == 1 and column.dtype.kind in "SU":
            arrays.append(pa.array(column.tolist()))
            fields.append(pa.field(name, arrays[-1].type))
        else:
            fields.append(pa.field(name, pa.binary(_row_bytes(column)), metadata=_describe(column)))
            arrays.append(_as_bytes(column))
    table = pa.table(arrays, schema=pa.schema(fields))
    return table if schema is None else table.cast(schema)


def describe_type(field: pa.Field) -> str:
    """Say in words what a row of this column is."""
    if not is_tensor(field):
        return str(field.type)
    dtype, shape = shape_of(field)
    return f"{dtype}{list(shape)}"


def field_of(name: str, dtype: np.dtype[Any], shape: tuple[int, ...]) -> pa.Field:
    """Return the field of a column whose rows are arrays of this type and shape."""
    if not shape and dtype.kind in "biuf":
        return pa.field(name, pa.from_numpy_dtype(dtype))
    width = int(np.prod(shape, dtype=np.int64)) * dtype.itemsize
    return pa.field(name, pa.binary(width), metadata=_describe(np.empty((0, *shape), dtype)))


def is_tensor(field: pa.Field) -> bool:
    """Whether the field's rows are arrays that are kept as bytes."""
    return _note(field) is not None


def shape_of(field: pa.Field) -> tuple[np.dtype[Any], tuple[int, ...]]:
    """Return type and shape of the arrays that are this field's rows."""
    if not is_tensor(field):
        return np.dtype(field.type.to_pandas_dtype()), ()
    found = json.loads(field.metadata[KEY])
    return np.dtype(found["dtype"]), tuple(found["shape"])


def _describe(column: npt.NDArray[Any]) -> dict[bytes, bytes]:
    return {KEY: json.dumps({"dtype": column.dtype.str, "shape": list(column.shape[1:])}).encode()}


def _note(field: pa.Field) -> dict[bytes, bytes] | None:
    return {KEY: field.metadata[KEY]} if field.metadata and KEY in field.metadata else None


def _view(column: Any, field: pa.Field) -> Any:
    dtype, shape = shape_of(field)
    if not isinstance(column, np.ndarray):
        return _nulls_as_lists(column, dtype, shape)
    if column.shape[1] == 0:
        return np.empty((len(column), *shape), dtype)
    return column.view(dtype).reshape(len(column), *shape)


def _row_bytes(column: npt.NDArray[Any]) -> int:
    return int(np.prod(column.shape[1:], dtype=np.int64)) * column.dtype.itemsize


def _as_bytes(column: npt.NDArray[Any]) -> pa.Array:
    width = _row_bytes(column)
    data = pa.py_buffer(np.ascontiguousarray(column).reshape(-1).view(np.uint8)) if column.size else pa.py_buffer(b"")
    return pa.Array.from_buffers(pa.binary(width), len(column), [None, data])


def _nulls_as_bytes(column: pa.Array, field: pa.Field) -> pa.Array:
    """Arrays of which some are missing, as bytes of which some are."""
    dtype, _ = shape_of(field)
    rows = [None if row is None else np.asarray(row, dtype).tobytes() for row in column.to_pylist()]
    return pa.array(rows, field.type)


def _nulls_as_lists(column: pa.Array, dtype: np.dtype[Any], shape: tuple[int, ...]) -> pa.Array:
    """Bytes of which some are missing, as lists of which some are, so that they fit arrays of other rows."""
    kind = pa.from_numpy_dtype(dtype)
    for size in reversed(shape):
        kind = pa.list_(kind, size)
    rows = [None if row is None else np.frombuffer(row, dtype).reshape(shape).tolist() for row in column.to_pylist()]
    return pa.array(rows, kind)


def _decoded(kind: pa.DataType) -> pa.DataType:
    return kind.value_type if pa.types.is_dictionary(kind) else kind
