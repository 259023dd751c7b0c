"""Generated states, and equality that looks at types and bits."""

from __future__ import annotations

import math
from collections import deque
from typing import Any

import numpy as np
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

# What NumPy knows by itself.
ELEMENTS = ["bool", "float16", "float32", "float64", "complex64", "complex128", "datetime64[ns]", "timedelta64[s]"]
ELEMENTS += [f"{sign}int{bits}" for sign in ("", "u") for bits in (8, 16, 32, 64)]
KEYS = st.one_of(
    st.text(max_size=8),
    st.sampled_from(["a.b", "a", "b", "a/b", "", "__metadata__", "ключ", "\ud800", "a.b#2", "\x00"]),
    st.integers(-3, 3),
)
SHAPES = hnp.array_shapes(min_dims=0, max_dims=3, min_side=0, max_side=4)
ARRAYS = st.sampled_from(ELEMENTS).flatmap(lambda name: hnp.arrays(name, SHAPES))
PLAIN = st.one_of(st.none(), st.booleans(), st.integers(), st.floats(), st.text(max_size=8), st.binary(max_size=16))
STATES = st.recursive(
    st.one_of(PLAIN, ARRAYS),
    lambda inner: st.one_of(
        st.dictionaries(KEYS, inner, max_size=4),
        st.lists(inner, max_size=3),
        st.lists(inner, max_size=3).map(tuple),
    ),
    max_leaves=12,
)


def same(left: Any, right: Any) -> bool:
    """Whether two states are equal in type, structure and every bit."""
    if type(left) is not type(right):
        return False
    if isinstance(left, dict):
        factories = getattr(left, "default_factory", None) is getattr(right, "default_factory", None)
        return factories and list(left) == list(right) and all(same(left[key], right[key]) for key in left)
    if isinstance(left, list | tuple | deque):
        lengths = getattr(left, "maxlen", None) == getattr(right, "maxlen", None) and len(left) == len(right)
        return lengths and all(map(same, left, right))
    if isinstance(left, np.ndarray | np.generic):
        return left.dtype == right.dtype and left.shape == right.shape and left.tobytes() == right.tobytes()
    if type(left).__module__.startswith("torch"):
        return _same_torch(left, right)
    if isinstance(left, complex):
        return same(left.real, right.real) and same(left.imag, right.imag)
    if isinstance(left, float):
        return (math.isnan(left) and math.isnan(right)) or (
            left == right and math.copysign(1, left) == math.copysign(1, right)
        )
    return bool((left == right).all() if hasattr(left, "shape") else left == right)


def _same_torch(left: Any, right: Any) -> bool:
    import torch

    alike: bool = left.dtype == right.dtype and left.shape == right.shape and left.requires_grad == right.requires_grad
    pair = [each.detach().resolve_conj().resolve_neg().contiguous().reshape(-1) for each in (left, right)]
    return alike and torch.equal(pair[0].view(torch.uint8), pair[1].view(torch.uint8))
