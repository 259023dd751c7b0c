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
    ("float6_e2m3fn", 1, None),
    ("float6_e3m2fn", 1, None),
    ("float4_e2m1fn", 1, None),
    # Two numbers in each byte, which torch counts as one element.
    ("float4_e2m1fn_x2", 1, None),
    ("complex32", 4, None),
    ("bcomplex32", 4, None),
    # Narrow integers take a byte each, in torch and in ml_dtypes.
    *((f"{sign}int{bits}", 1, None) for bits in range(1, 8) for sign in ("", "u")),
    # NumPy's times are counts of 64 bits, and a safetensors file has them as such.
    *((kind, 8, "I64") for kind in ("datetime64", "timedelta64")),
    *(
        (f"{kind}[{unit}]", 8, "I64")
        for kind in ("datetime64", "timedelta64")
        for unit in ("Y", "M", "W", "D", "h", "m", "s", "ms", "us", "ns", "ps", "fs", "as")
    ),
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
