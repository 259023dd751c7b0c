"""By how much the values of two tensors differ, in numbers that say something about training. Pure."""

from __future__ import annotations

import math
from contextlib import suppress
from dataclasses import dataclass
from importlib import import_module
from typing import Any, Literal

import numpy as np

from strata.checkpoint.format.dtypes import DTYPES, numpy_dtype

# So many elements are compared at a time, which bounds what conversion to float64 takes.
BLOCK_ELEMENTS = 4 << 20


@dataclass(frozen=True, slots=True)
class Difference:
    """One tensor or plain value that is not the same in two checkpoints.

    For tensors of numbers, ``max_abs`` is the largest difference of two elements and ``cosine`` the cosine of the angle
    between the tensors, both over the elements that are finite in both; None where there is none to tell. The detail
    says how many of the changed ones are NaN or infinite in one of them, or in both.
    """

    name: str
    change: Literal["added", "removed", "type", "shape", "values"]
    detail: str
    changed: int | None = None
    elements: int | None = None
    max_abs: float | None = None
    cosine: float | None = None


def compare_values(name: str, dtype: str, left: memoryview, right: memoryview) -> Difference | None:
    """Say by how much two tensors of one type and shape differ; None if they are the same bits."""
    if left == right:
        return None
    itemsize = DTYPES[dtype].itemsize
    elements = len(left) // itemsize
    changed, largest, dot, squares = 0, 0.0, 0.0, [0.0, 0.0]
    counted, odd = 0, 0
    step = BLOCK_ELEMENTS * itemsize
    for start in range(0, len(left), step):
        pair = [view[start : start + step] for view in (left, right)]
        raw = [np.frombuffer(view, np.uint8).reshape(-1, itemsize) for view in pair]
        differs = (raw[0] != raw[1]).any(axis=1)
        changed += int(differs.sum())
        numbers = [to_floats(dtype, view) for view in pair]
        if numbers[0] is None or numbers[1] is None:
            continue
        finite = np.isfinite(numbers[0]) & np.isfinite(numbers[1])
        # A complex element is two numbers.
        odd += int((differs & ~finite.reshape(len(differs), -1).all(axis=1)).sum())
        a, b = numbers[0][finite], numbers[1][finite]
        counted += a.size
        with np.errstate(over="ignore"):
            largest = max(largest, float(np.abs(a - b).max(initial=0.0)))
            dot, squares = dot + float(a @ b), [squares[0] + float(a @ a), squares[1] + float(b @ b)]
    length = math.sqrt(squares[0]) * math.sqrt(squares[1])
    return Difference(
        name,
        "values",
        f"{changed} of {elements} elements" + (f", {odd} of them NaN or infinite" if odd else ""),
        changed=changed,
        elements=elements,
        max_abs=largest if counted and math.isfinite(largest) else None,
        cosine=max(-1.0, min(1.0, dot / length)) if length and math.isfinite(length) else None,
    )


def count_nonfinite(dtype: str, memory: memoryview) -> int | None:
    """How many NaN and infinite elements a tensor has; None for a type that cannot be read without ml_dtypes."""
    count = 0
    step = BLOCK_ELEMENTS * DTYPES[dtype].itemsize
    # Types of fewer bits have neither.
    can_have = ("float" in dtype or "complex" in dtype) and not dtype.startswith(("float4_", "float6_"))
    for start in range(0, len(memory), step) if can_have else ():
        numbers = to_floats(dtype, memory[start : start + step])
        if numbers is None:
            return None
        count += int((~np.isfinite(numbers)).sum())
    return count


def to_floats(dtype: str, memory: memoryview) -> np.ndarray[Any, np.dtype[np.float64]] | None:
    """See the values as float64, a complex number as two of them; None if NumPy has no such type, or it is a time."""
    if dtype in ("bfloat16", "bcomplex32"):
        wide = np.frombuffer(memory, "<u2").astype("<u4") << 16
        return wide.view("<f4").astype(np.float64)
    if dtype == "complex32":
        return np.frombuffer(memory, "<f2").astype(np.float64)
    if numpy_dtype(dtype) is None:
        with suppress(ImportError):
            import_module("ml_dtypes")
    found = numpy_dtype(dtype)
    if found is None or found.kind in "Mm":
        return None
    values = np.frombuffer(memory, found)
    if found.kind == "c":
        values = values.view(np.float32 if found.itemsize == 8 else np.float64)
    return values.astype(np.float64)
