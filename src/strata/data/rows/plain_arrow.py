"""Arrow arrays in the plain layouts of their values: no views, dictionaries, runs or named types, at any depth.

Arrow's own functions know few of these layouts. Some refuse them, and casting a list view loses values.
"""

from __future__ import annotations

import functools
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

if TYPE_CHECKING:
    import numpy.typing as npt


@functools.lru_cache(maxsize=1024)
def plain_type(kind: pa.DataType) -> pa.DataType:
    """Return the type of the same values in their plain layout; a tensor is lists of lists of its shape."""
    if pa.types.is_dictionary(kind) or pa.types.is_run_end_encoded(kind):
        return plain_type(kind.value_type)
    if isinstance(kind, pa.FixedShapeTensorType):
        return functools.reduce(pa.list_, reversed(_shape_of(kind)), kind.value_type)
    if isinstance(kind, pa.BaseExtensionType):
        return plain_type(kind.storage_type)
    if pa.types.is_string_view(kind):
        return pa.large_string()
    if pa.types.is_binary_view(kind):
        return pa.large_binary()
    if pa.types.is_struct(kind):
        return pa.struct([_plain_field(each) for each in kind])
    if pa.types.is_fixed_size_list(kind):
        return pa.list_(_plain_field(kind.value_field), kind.list_size)
    if pa.types.is_list(kind) or pa.types.is_list_view(kind):
        return pa.list_(_plain_field(kind.value_field))
    if pa.types.is_large_list(kind) or pa.types.is_large_list_view(kind):
        return pa.large_list(_plain_field(kind.value_field))
    return kind


def to_plain(array: pa.Array) -> pa.Array:
    """Return the same values in their plain layout; nothing is copied that is plain already."""
    kind = array.type
    made = plain_type(kind)
    if made == kind:
        return array
    if isinstance(array, pa.FixedShapeTensorArray):
        return _nest_tensors(array)
    if isinstance(array, pa.ExtensionArray):
        return to_plain(array.storage)
    if isinstance(array, pa.DictionaryArray):
        return to_plain(array.dictionary).take(array.indices)
    if pa.types.is_run_end_encoded(kind):
        return to_plain(pc.run_end_decode(array))
    if pa.types.is_struct(kind):
        children = [to_plain(array.field(number)) for number in range(kind.num_fields)]
        return pa.StructArray.from_arrays(children, fields=list(made), mask=_missing(array))
    if pa.types.is_fixed_size_list(kind):
        # The values of a missing row are there, too.
        values = array.values.slice(array.offset * kind.list_size, len(array) * kind.list_size)
        return pa.FixedSizeListArray.from_arrays(to_plain(values), type=made, mask=_missing(array))
    if pa.types.is_list(made) or pa.types.is_large_list(made):
        is_large = pa.types.is_large_list(made)
        lengths = pc.fill_null(pc.list_value_length(array), 0).to_numpy(zero_copy_only=False)
        offsets: npt.NDArray[Any] = np.concatenate([[0], np.cumsum(lengths)]).astype(np.int64 if is_large else np.int32)
        lists = pa.LargeListArray if is_large else pa.ListArray
        return lists.from_arrays(pa.array(offsets), to_plain(array.flatten()), type=made, mask=_missing(array))
    return array.cast(made)


def _plain_field(field: pa.Field) -> pa.Field:
    return field.with_type(plain_type(field.type))


def _missing(array: pa.Array) -> pa.Array | None:
    return array.is_null() if array.null_count else None


def _shape_of(kind: pa.FixedShapeTensorType) -> tuple[int, ...]:
    """Return the shape of a tensor as it is meant: its dimensions may be stored in another order."""
    stored = tuple(kind.shape)
    return stored if kind.permutation is None else tuple(stored[axis] for axis in kind.permutation)


def _nest_tensors(array: pa.FixedShapeTensorArray) -> pa.Array:
    kind, storage = array.type, array.storage
    size = storage.type.list_size
    flat = storage.values.slice(storage.offset * size, len(storage) * size)
    if kind.permutation is not None:
        places = np.arange(len(flat)).reshape(len(storage), *kind.shape)
        flat = flat.take(pa.array(places.transpose(0, *(axis + 1 for axis in kind.permutation)).reshape(-1)))
    first, *inner = _shape_of(kind)
    for length in reversed(inner):
        flat = pa.FixedSizeListArray.from_arrays(flat, length)
    return pa.FixedSizeListArray.from_arrays(flat, first, mask=_missing(storage))
