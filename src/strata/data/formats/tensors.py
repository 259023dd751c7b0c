"""Arrays of one fixed shape inside columnar files: how they are written as plain bytes, and come back as arrays.

Parquet keeps a list element by element, with levels for each; 8 KB of ``uint8`` take 32 KB there and 20 times as
long to read as 8 KB of bytes. A column of bytes of one fixed length whose field says ``strata.tensor`` is that array.
"""

from __future__ import annotations

import json
import math
import re
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa

from strata.data.rows.columns import Columns, from_arrow_array
from strata.data.rows.plain_arrow import plain_type

if TYPE_CHECKING:
    import numpy.typing as npt

    from strata.data.rows.columns import Column

KEY = b"strata.tensor"
_HUB_ARRAY = re.compile(r"datasets\.features\.features\.Array\dDExtensionType")


def decoded_schema(schema: pa.Schema) -> pa.Schema:
    """Return the schema as its rows are given: dictionaries by their values, without the file's own notes."""
    return pa.schema([_decoded_field(each) for each in schema])


def decode(table: pa.Table | pa.RecordBatch, schema: pa.Schema) -> Columns:
    """Return the rows as columns, tensors as what they are."""
    columns = Columns.from_arrow(table)
    changed: dict[str, Any] = {}
    for name in columns.names:
        field = schema.field(name)
        if _note(field) is not None:
            changed[name] = _view(columns[name], field)
        elif not isinstance(columns[name], np.ndarray) and pa.types.is_fixed_size_list(field.type):
            changed[name] = _fixed_lists(columns[name], field.type)
    return Columns({name: changed.get(name, columns[name]) for name in columns.names}, columns.num_rows)


def encoded_schema(schema: pa.Schema, *, as_bytes: bool) -> pa.Schema:
    """Return the schema to write rows of ``schema`` with: arrays of one shape as bytes, or as lists for other tools."""
    return pa.schema([_encoded(field, as_bytes=as_bytes) for field in schema])


def encode(columns: Columns, schema: pa.Schema) -> pa.Table:
    """Return the rows as an Arrow table of this schema, which :func:`decode` turns back into the same columns."""
    return pa.table([_encode(columns[field.name], field) for field in schema], schema=schema)


def describe_type(field: pa.Field) -> str:
    """Say in words what a row of this column is."""
    if not is_tensor(field):
        return str(field.type)
    dtype, shape = shape_of(field)
    return f"{dtype}{list(shape)}"


def field_of(name: str, dtype: np.dtype[Any], shape: tuple[int, ...]) -> pa.Field:
    """Return the field of a column whose rows are arrays of this type and shape."""
    # Arrow has no floats beyond 64 bits.
    if not shape and dtype.kind in "biuf" and dtype.itemsize <= 8:
        return pa.field(name, pa.from_numpy_dtype(dtype), nullable=False)
    width = math.prod(shape) * dtype.itemsize
    return pa.field(name, pa.binary(width), nullable=False, metadata=_describe(np.empty((0, *shape), dtype)))


def is_tensor(field: pa.Field) -> bool:
    """Whether the field's rows are arrays that are kept as bytes."""
    return _note(field) is not None


def is_extension(kind: pa.DataType) -> bool:
    """Whether the type is another one with a meaning that Arrow does not know, or knows by a name."""
    return isinstance(kind, pa.BaseExtensionType)


def plain(array: pa.Array) -> npt.NDArray[Any]:
    """Return a column of one fixed width without missing values as NumPy."""
    found = from_arrow_array(array)
    assert isinstance(found, np.ndarray)
    return found


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
    return math.prod(column.shape[1:]) * column.dtype.itemsize


def _as_bytes(column: npt.NDArray[Any]) -> pa.Array:
    width = _row_bytes(column)
    data = pa.py_buffer(np.ascontiguousarray(column).reshape(-1).view(np.uint8)) if column.size else pa.py_buffer(b"")
    return pa.Array.from_buffers(pa.binary(width), len(column), [None, data])


def _encoded(field: pa.Field, *, as_bytes: bool) -> pa.Field:
    found = shape_of(field) if is_tensor(field) else list_shape(field.type)
    if found is None:
        return pa.field(field.name, field.type)
    # Rows of it may be missing, whatever it was read from.
    made = field_of(field.name, *found) if as_bytes else pa.field(field.name, _list_type(*found))
    return made.with_nullable(nullable=True)


def list_shape(kind: pa.DataType) -> tuple[np.dtype[Any], tuple[int, ...]] | None:
    """Return type and shape if each row is an array of numbers of one fixed shape."""
    shape = []
    while pa.types.is_fixed_size_list(kind):
        shape.append(kind.list_size)
        kind = kind.value_type
    is_number = pa.types.is_integer(kind) or pa.types.is_floating(kind) or pa.types.is_boolean(kind)
    return (np.dtype(kind.to_pandas_dtype()), tuple(shape)) if shape and is_number else None


def _list_type(dtype: np.dtype[Any], shape: tuple[int, ...]) -> pa.DataType:
    kind = pa.from_numpy_dtype(dtype)
    for size in reversed(shape):
        kind = pa.list_(kind, size)
    return kind


def _encode(column: Column, field: pa.Field) -> pa.Array:
    if not isinstance(column, np.ndarray):
        if is_tensor(field):
            return _nulls_as_bytes(column, field)
        return column if column.type == field.type else column.cast(field.type)
    if pa.types.is_fixed_size_binary(field.type):
        return _as_bytes(column)
    if column.ndim == 1:
        return pa.array(column).cast(field.type)
    flat = pa.array(column.reshape(-1))
    for size in reversed(column.shape[1:]):
        flat = pa.FixedSizeListArray.from_arrays(flat, size)
    return flat.cast(field.type)


def _nulls_as_bytes(column: pa.Array, field: pa.Field) -> pa.Array:
    """Arrays of which some are missing, as bytes of which some are."""
    dtype, _ = shape_of(field)
    rows: list[bytes | None] = []
    for row in column.to_pylist():
        array = None if row is None else np.asarray(row)
        if array is not None and array.dtype == object:
            raise ValueError(f"column {field.name!r} has values missing inside its arrays; write it as lists")
        rows.append(None if array is None else array.astype(dtype).tobytes())
    return pa.array(rows, field.type)


def _nulls_as_lists(column: pa.Array, dtype: np.dtype[Any], shape: tuple[int, ...]) -> pa.Array:
    """Bytes of which some are missing, as lists of which some are, so that they fit arrays of other rows."""
    rows = [None if row is None else np.frombuffer(row, dtype).reshape(shape).tolist() for row in column.to_pylist()]
    return pa.array(rows, _list_type(dtype, shape))


def _decoded_field(field: pa.Field) -> pa.Field:
    kind = _hub_array(field) or plain_type(field.type)
    return pa.field(field.name, kind, nullable=field.nullable, metadata=_note(field))


def _hub_array(field: pa.Field) -> pa.DataType | None:
    """Return the type of an array of Hugging Face ``datasets``: lists in the file, and a note of their one shape."""
    # Types that Arrow itself defines have no such note.
    if isinstance(field.type, pa.ExtensionType):
        name, note = field.type.extension_name, field.type.__arrow_ext_serialize__()
    else:
        metadata = field.metadata or {}
        name = metadata.get(b"ARROW:extension:name", b"").decode("utf-8", "replace")
        note = metadata.get(b"ARROW:extension:metadata", b"")
    if not _HUB_ARRAY.fullmatch(name):
        return None
    shape, dtype = json.loads(note)
    # The first dimension may differ from row to row; then they are lists.
    return None if None in shape else _list_type(np.dtype(dtype), tuple(shape))


def _fixed_lists(column: pa.Array, kind: pa.DataType) -> Column:
    """Return lists that are known to have one length as arrays, or as lists of that length where some are missing."""
    fixed = column.cast(kind)
    return from_arrow_array(fixed)
