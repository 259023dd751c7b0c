"""Tensors of every library and element type become bytes and come back the same."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from strata.checkpoint.dtypes import DTYPES
from strata.checkpoint.tensors import copy_values, find_tensor, view_source, view_tensor


def bytes_of(value: Any) -> bytes:
    tensor = find_tensor(value)
    assert tensor is not None
    view = view_source(tensor)
    if view is not None:
        return view.tobytes()
    target = bytearray(tensor.nbytes)
    copy_values(tensor, memoryview(target))
    return bytes(target)


def test_contiguous_arrays_are_seen_without_a_copy() -> None:
    array = np.arange(6.0)
    tensor = find_tensor(array)
    assert tensor is not None
    view = view_source(tensor)
    assert view is not None
    assert np.shares_memory(view, array)


def test_strides_and_byte_order_are_made_plain() -> None:
    array = np.arange(12, dtype=">i4").reshape(3, 4)[:, ::2]
    assert bytes_of(array) == np.ascontiguousarray(array).astype("<i4").tobytes()


@pytest.mark.part("torch")
@pytest.mark.parametrize("name", sorted(set(DTYPES) - {"float8_e4m3", "float8_e3m4", "float8_e4m3b11fnuz"}))
def test_torch_tensors_of_every_type_come_back(name: str) -> None:
    import torch

    dtype = getattr(torch, name)
    raw = torch.randint(0, 2, (3, 4, DTYPES[name].itemsize), dtype=torch.uint8)
    tensor = raw.view(dtype).reshape(3, 4) if DTYPES[name].itemsize > 1 else raw.view(dtype)[..., 0]
    for variant in (tensor, tensor.t(), tensor[1], tensor[1, 2], tensor[:0]):
        stored = bytearray(bytes_of(variant))
        back = view_tensor("torch", name, variant.shape, memoryview(stored))
        assert back.dtype == variant.dtype
        assert back.shape == variant.shape
        assert bytes_of(back) == bytes_of(variant)


@pytest.mark.part("torch")
def test_conjugates_parameters_and_shared_memory_are_values_like_any_other() -> None:
    import torch

    values = torch.tensor([1 + 2j, 3 - 1j])
    assert bytes_of(values.conj()) == torch.tensor([1 - 2j, 3 + 1j]).numpy().tobytes()
    parameter = torch.nn.Parameter(torch.ones(2))
    assert bytes_of(parameter) == np.ones(2, np.float32).tobytes()
    shared = torch.arange(4)
    assert bytes_of(shared[1:3]) == np.arange(1, 3).tobytes()


@pytest.mark.part("jax")
@pytest.mark.parametrize("name", ["float32", "bfloat16", "int32", "bool", "float8_e4m3fn", "complex64"])
def test_jax_arrays_come_back(name: str) -> None:
    import jax

    array = jax.numpy.ones((2, 3), dtype=name)
    back = view_tensor("jax", name, (2, 3), memoryview(bytearray(bytes_of(array))))
    assert isinstance(back, jax.Array)
    assert back.dtype == array.dtype
    assert (back == array).all()


def test_a_type_that_numpy_lacks_comes_back_as_raw_bytes(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("strata.checkpoint.tensors.numpy_dtype", lambda name: None)
    array = view_tensor("numpy", "bfloat16", (3,), memoryview(bytearray(6)))
    assert array.dtype == np.uint8
    assert array.shape == (3, 2)
