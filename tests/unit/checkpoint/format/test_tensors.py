"""Tensors of every library and element type become bytes and come back the same."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest

from strata.checkpoint import CheckpointManager
from strata.checkpoint.format.dtypes import DTYPES
from strata.checkpoint.format.tensors import copy_values, find_tensor, view_source, view_tensor
from tests.testbed.pace import stretch

if TYPE_CHECKING:
    from pathlib import Path


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


# Types of NumPy and ml_dtypes alone, and those that torch has without kernels: test_kinds brings them back.
NOT_OF_TORCH = re.compile(r"(datetime|timedelta)64.*|u?int[1-7]|float[46]_.*|float8_(e4m3|e3m4|e4m3b11fnuz)|bcomplex32")


@pytest.mark.part("torch")
@pytest.mark.filterwarnings("ignore:ComplexHalf support")
@pytest.mark.parametrize("name", sorted(name for name in DTYPES if not NOT_OF_TORCH.fullmatch(name)))
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
    monkeypatch.setattr("strata.checkpoint.format.tensors.numpy_dtype", lambda name: None)
    array = view_tensor("numpy", "bfloat16", (3,), memoryview(bytearray(6)))
    assert array.dtype == np.uint8
    assert array.shape == (3, 2)


@pytest.mark.part("torch")
@pytest.mark.parametrize("dtype", ["float32", "bfloat16", "bool", "int64", "complex64", "float8_e4m3fn"])
def test_the_bytes_of_a_torch_tensor_are_seen_where_they_lie_whatever_its_strides(dtype: str) -> None:
    import torch

    base = torch.arange(42).reshape(6, 7).to(getattr(torch, dtype))
    one = base[2:3, ::7]
    assert one.stride() == (7, 7)
    for tensor in (base, base[1:3], base[2], base[2, 3], one, one.reshape(()), base[:0]):
        view = view_source(find_tensor(tensor))
        assert view is not None
        assert (view.dtype, view.nbytes) == (np.uint8, tensor.nbytes)
        assert not tensor.numel() or view.ctypes.data == tensor.data_ptr()
    assert view_source(find_tensor(base.T)) is None


@pytest.mark.part("torch")
def test_a_save_and_a_restore_leave_memory_that_torch_may_resize_and_free(tmp_path: Path) -> None:
    import torch

    saved, filled = torch.ones(3), torch.zeros(3)
    with CheckpointManager(tmp_path) as manager:
        manager.save({"w": saved, "half": saved.bfloat16()}, 1)
        manager.load(like={"w": filled})
    assert filled.tolist() == [1, 1, 1]
    for tensor in (saved, filled):
        # As FSDP does with what it gathered for a forward pass.
        tensor.untyped_storage().resize_(0)
        tensor.resize_(1000)


@pytest.mark.part("torch")
def test_torch_does_not_free_memory_that_a_lazy_save_still_reads(tmp_path: Path) -> None:
    import torch

    for dtype in (torch.float32, torch.bfloat16):
        weight = torch.nn.Parameter(torch.ones(1000, dtype=dtype))
        with CheckpointManager(tmp_path / str(dtype)) as manager:
            manager.watch(optimizer := torch.optim.SGD([weight]))
            handle = manager.save_background({"w": weight}, 1, lazy=True)
            with pytest.raises(RuntimeError, match="not resizable"):
                weight.untyped_storage().resize_(0)
            handle.result(stretch(60))
            assert torch.equal(manager.load().data["w"], optimizer.param_groups[0]["params"][0])
