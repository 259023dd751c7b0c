"""Element types: one name for each, whatever library a tensor comes from, and how a part file calls it."""

from __future__ import annotations

import sys
from dataclasses import dataclass
from typing import Any

import numpy as np


@dataclass(frozen=True, slots=True)
class DType:
    """An element type. ``stored_as`` is its name in a safetensors header, or None if it has none there.

    What safetensors has no name for is stored as U8 with one more dimension, and only the manifest knows better.
    """

    name: str
    itemsize: int
    stored_as: str | None


_NAMED = [
    ("bool", 1, "BOOL"),
    ("uint8", 1, "U8"),
    ("int8", 1, "I8"),
    ("uint16", 2, "U16"),
    ("int16", 2, "I16"),
    ("uint32", 4, "U32"),
    ("int32", 4, "I32"),
    ("uint64", 8, "U64"),
    ("int64", 8, "I64"),
    ("float16", 2, "F16"),
    ("bfloat16", 2, "BF16"),
    ("float32", 4, "F32"),
    ("float64", 8, "F64"),
    ("complex64", 8, "C64"),
    ("complex128", 16, None),
    ("float8_e4m3fn", 1, "F8_E4M3"),
    ("float8_e5m2", 1, "F8_E5M2"),
    ("float8_e8m0fnu", 1, "F8_E8M0"),
    ("float8_e4m3fnuz", 1, None),
    ("float8_e5m2fnuz", 1, None),
    ("float8_e4m3", 1, None),
    ("float8_e3m4", 1, None),
    ("float8_e4m3b11fnuz", 1, None),
]
DTYPES = {name: DType(name, itemsize, stored_as) for name, itemsize, stored_as in _NAMED}


def numpy_dtype(name: str) -> np.dtype[Any] | None:
    """NumPy's type of this name, little-endian; None if NumPy has none, with ml_dtypes or without."""
    try:
        return np.dtype(name).newbyteorder("<")
    except TypeError:
        pass
    # Whoever has such arrays has imported ml_dtypes; JAX does.
    extension = sys.modules.get("ml_dtypes")
    found = getattr(extension, name, None)
    return None if found is None else np.dtype(found)


def torch_dtype(torch: Any, name: str) -> Any:
    """Torch's type of this name, or None."""
    return getattr(torch, name, None)
