"""Values of every element type are compared as the numbers that they are, or bit by bit."""

from __future__ import annotations

from typing import Any

import ml_dtypes
import numpy as np
import pytest

from strata.checkpoint.keep import comparison
from strata.checkpoint.keep.comparison import compare_values, count_nonfinite


def memory(values: Any, dtype: Any) -> memoryview:
    return memoryview(np.array(values, dtype).tobytes())


def compare(dtype: str, left: Any, right: Any, made_of: Any = None) -> tuple[str, float | None]:
    found = compare_values("w", dtype, memory(left, made_of or dtype), memory(right, made_of or dtype))
    assert found is not None
    return found.detail, found.max_abs


@pytest.mark.parametrize(
    ("dtype", "made_of"),
    [
        ("float32", None),
        ("float64", None),
        ("int8", None),
        ("bfloat16", ml_dtypes.bfloat16),
        ("float8_e5m2", ml_dtypes.float8_e5m2),
        ("complex64", None),
        ("complex128", None),
    ],
)
def test_a_difference_is_as_large_as_its_numbers_are(dtype: str, made_of: Any) -> None:
    assert compare(dtype, [1, 2, 3, 4], [1, 2, 3, 2], made_of) == ("1 of 4 elements", 2.0)


@pytest.mark.parametrize(("dtype", "half"), [("complex32", np.float16), ("bcomplex32", ml_dtypes.bfloat16)])
def test_complex_numbers_of_two_halves_are_compared_by_both(dtype: str, half: Any) -> None:
    left, right = memory([[1, 2], [3, 4]], half), memory([[1, 2], [3, 8]], half)
    found = compare_values("w", dtype, left, right)
    assert found is not None
    assert (found.detail, found.max_abs) == ("1 of 2 elements", 4.0)
    assert count_nonfinite(dtype, memory([[1, np.inf], [np.nan, 2]], half)) == 2


def test_times_and_types_that_nobody_can_read_are_compared_bit_by_bit() -> None:
    assert compare("datetime64[s]", [1, 2], [1, 3], "datetime64[s]") == ("1 of 2 elements", None)
    assert compare("float4_e2m1fn_x2", [1, 2], [3, 4], np.uint8) == ("2 of 2 elements", None)


def test_what_is_not_finite_is_counted_and_keeps_the_rest_comparable() -> None:
    detail, largest = compare("float32", [np.nan, 1, 2], [0, 1, 5])
    assert (detail, largest) == ("2 of 3 elements, 1 of them NaN or infinite", 3.0)
    assert count_nonfinite("float32", memory([np.nan, 1, -np.inf], np.float32)) == 2
    assert count_nonfinite("int32", memory([1], np.int32)) == 0


def test_a_float_type_without_ml_dtypes_is_not_said_to_be_finite(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(comparison, "numpy_dtype", lambda name: None)
    assert count_nonfinite("float8_e5m2", memory([1], np.uint8)) is None
