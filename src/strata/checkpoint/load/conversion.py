"""Conversion of stored values into the element type that ``like`` has, without a silent change of what they are.

Floats are rounded to what the type has, as torch and NumPy do. Where a fraction, an imaginary part, a time or a large
integer would be lost, the conversion is refused.
"""

from __future__ import annotations

import re
import sys
from typing import TYPE_CHECKING, Any

import numpy as np

from strata.checkpoint.format.dtypes import numpy_dtype, torch_dtype
from strata.checkpoint.format.tensors import RefusedError, name_dtype, view_tensor

if TYPE_CHECKING:
    from collections.abc import Sequence

_KIND = re.compile(r"[bu]?(bool|int|float|complex|datetime64|timedelta64)")
# Each kind holds what those before it mean.
_NUMBERS = ("bool", "int", "float", "complex")
# What libraries raise for types that they have no kernel for.
_NO_KERNEL = (NotImplementedError, RuntimeError, TypeError)


def check_cast(stored: str, wanted: str) -> None:
    """Raise RefusedError if an element type means something else than a stored one: times and numbers."""
    source, target = _kind_of(stored), _kind_of(wanted)
    if source != target and (source not in _NUMBERS or target not in _NUMBERS):
        raise RefusedError(f"has elements of type {wanted}, and the checkpoint has {stored}")


def check_values(stored: str, wanted: str, memory: memoryview) -> None:
    """Raise RefusedError if values are lost that the wanted type cannot hold; to round a float is fine."""
    source, target = _kind_of(stored), _kind_of(wanted)
    if source not in _NUMBERS or target not in _NUMBERS or stored == wanted or not len(memory):
        return
    if _NUMBERS.index(source) <= _NUMBERS.index(target) and not source == target == "int":
        return
    values = _view_numbers(stored, memory)
    if values is None:
        return
    if source == "complex":
        if (values.imag != 0).any():
            raise RefusedError(f"has elements of type {wanted}, and the checkpoint has complex numbers")
        values = values.real
    if target == "float":
        return
    if source in ("float", "complex") and not (np.isfinite(values) & (np.trunc(values) == values)).all():
        raise RefusedError(f"has elements of type {wanted}, and the checkpoint has fractions, or NaN or infinity")
    low, high = _limits(wanted)
    least, most = int(values.min()), int(values.max())
    if least < low or most > high:
        raise RefusedError(f"has elements of type {wanted}, and the checkpoint has values from {least} to {most}")


def make_torch(stored: str, shape: Sequence[int], memory: memoryview, dtype: Any) -> Any:
    """The stored values as a torch tensor of this element type; RefusedError where torch cannot convert them."""
    values = view_tensor("torch", stored, shape, memory)
    try:
        # Both libraries warn of an imaginary part that they drop, also of one that is 0 everywhere.
        return (values.real if values.is_complex() and not dtype.is_complex else values).to(dtype)
    except _NO_KERNEL as error:
        raise RefusedError(f"has elements of type {dtype}, and torch cannot make them of {stored}") from error


def make_numpy(stored: str, shape: Sequence[int], memory: memoryview, dtype: Any) -> np.ndarray[Any, Any]:
    """The stored values as a NumPy array of this element type; RefusedError where NumPy cannot convert them."""
    if numpy_dtype(stored) is None:
        raise RefusedError(f"is an array, and NumPy has no type {stored} here")
    values: np.ndarray[Any, Any] = view_tensor("numpy", stored, shape, memory)
    try:
        return (values.real if _kind_of(stored) == "complex" != _kind_of(name_dtype(dtype)) else values).astype(dtype)
    except _NO_KERNEL as error:
        raise RefusedError(f"has elements of type {dtype}, and NumPy cannot make them of {stored}") from error


def _view_numbers(stored: str, memory: memoryview) -> np.ndarray[Any, Any] | None:
    """The values in a type that NumPy can compute with; None if no library here knows the stored type."""
    if (dtype := numpy_dtype(stored)) is not None:
        values: np.ndarray[Any, Any] = np.frombuffer(memory, dtype)
        return values
    torch = sys.modules.get("torch")
    if torch is None or (found := torch_dtype(torch, stored)) is None:
        return None
    wide = torch.complex64 if _kind_of(stored) == "complex" else torch.float32
    widened: np.ndarray[Any, Any] = make_torch(stored, (len(memory) // found.itemsize,), memory, wide).numpy()
    return widened


def _limits(dtype: str) -> tuple[int, int]:
    if dtype == "bool":
        return 0, 1
    bits = int(dtype.partition("int")[2])
    return (0, (1 << bits) - 1) if dtype.startswith("u") else (-(1 << (bits - 1)), (1 << (bits - 1)) - 1)


def _kind_of(dtype: str) -> str | None:
    found = _KIND.match(dtype)
    return found[1] if found else None
