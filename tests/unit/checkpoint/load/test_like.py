"""What ``like`` asks for is given exactly, or refused with its path; a wrong question is never taken for damage."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Any

import ml_dtypes
import numpy as np
import pytest

from strata.checkpoint import CheckpointManager, Slice
from strata.checkpoint.format.tensors import RefusedError
from strata.checkpoint.load import conversion
from strata.checkpoint.load.conversion import check_values, make_numpy
from strata.errors import StateMismatchError, UnsavableStateError
from strata.storage import MemoryStorage

if TYPE_CHECKING:
    from collections.abc import Iterator


@pytest.fixture
def manager() -> Iterator[CheckpointManager]:
    with CheckpointManager(storage=MemoryStorage()) as manager:
        yield manager


def refuse(manager: CheckpointManager, like: Any, problem: str) -> StateMismatchError:
    with pytest.raises(StateMismatchError, match=problem) as caught:
        manager.load(like=like)
    return caught.value


@pytest.mark.parametrize(
    "start", [(-1,), (-4,), (3,), (0, 0), (), (1.0,), ("1",), None, 1], ids=lambda start: repr(start)
)
def test_a_slice_that_is_none_of_the_tensor_is_a_mistake_and_no_damage(manager: CheckpointManager, start: Any) -> None:
    manager.save({"model": {"w": np.arange(4.0)}}, 1)
    manager.save({"model": {"w": np.arange(1.0, 5.0)}}, 2)
    error = refuse(manager, {"model": {"w": Slice(np.zeros(2), (4,), start)}}, "the Slice")
    assert (error.step, error.path) == (2, "model.w")
    with pytest.raises(UnsavableStateError, match="nothing was written"):
        manager.save({"model": {"w": Slice(np.zeros(2), (4,), start)}}, 3, part=0, parts=2)


def test_the_numbers_of_a_slice_may_be_of_any_kind_of_integer(manager: CheckpointManager) -> None:
    manager.save({"w": np.arange(4.0)}, 1)
    found = manager.load(like={"w": Slice(np.zeros(2), np.array([4]), (np.int32(1),))}).data["w"]
    assert found.tolist() == [1, 2]


def _torch(values: Any, dtype: str) -> Any:
    import torch

    return torch.tensor(values, dtype=getattr(torch, dtype))


@pytest.mark.part("torch")
@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("like", [_torch, np.array], ids=["torch", "numpy"])
@pytest.mark.parametrize(
    ("saved", "stored", "wanted", "problem"),
    [
        ([1 + 2j], "complex64", "float32", "complex numbers"),
        ([1 + 2j], "complex128", "int64", "complex numbers"),
        ([complex(1, float("nan"))], "complex64", "float64", "complex numbers"),
        ([0.5], "float32", "int64", "fractions"),
        ([float("nan")], "float64", "int32", "fractions"),
        ([float("inf")], "float16", "bool", "fractions"),
        ([2.0], "float32", "bool", "from 2 to 2"),
        ([300], "int64", "int8", "from 300 to 300"),
        ([-1], "int8", "uint8", "from -1 to -1"),
        ([7], "uint8", "bool", "from 7 to 7"),
        ([2.0**40], "float64", "int32", "from 1099511627776"),
    ],
)
def test_a_type_that_would_change_the_values_is_refused(
    manager: CheckpointManager, like: Any, saved: Any, stored: str, wanted: str, problem: str
) -> None:
    manager.save({"w": _torch(saved, stored)}, 1)
    error = refuse(manager, {"w": like([0], dtype=wanted)}, problem)
    assert error.path == "w"


@pytest.mark.part("torch")
@pytest.mark.parametrize("like", [_torch, np.array], ids=["torch", "numpy"])
@pytest.mark.parametrize(
    ("saved", "stored", "wanted"),
    [
        ([1.5], "float64", "float16"),
        ([3.0, -4.0], "float32", "int8"),
        ([1, 0], "int64", "bool"),
        ([2 + 0j], "complex64", "float32"),
        ([1.5], "float32", "complex64"),
        ([127, -128], "int64", "int8"),
        ([True], "bool", "int32"),
        ([], "complex64", "bool"),
    ],
)
def test_a_type_that_holds_the_values_is_converted_to(
    manager: CheckpointManager, like: Any, saved: Any, stored: str, wanted: str
) -> None:
    manager.save({"w": _torch(saved, stored)}, 1)
    into = like([0] * len(saved), dtype=wanted)
    assert manager.load(like={"w": into}).data["w"] is into
    assert into.tolist() == saved


@pytest.mark.part("torch")
@pytest.mark.parametrize(
    ("saved", "stored", "wanted", "problem"),
    [
        ([0.5], "bfloat16", "int64", "fractions"),
        ([300.0], "bfloat16", "int8", "from 300 to 300"),
        ([1 + 2j], "complex32", "float32", "complex numbers"),
        ([2.0], "bfloat16", "int64", None),
        ([2 + 0j], "complex32", "float32", None),
    ],
)
@pytest.mark.filterwarnings("ignore:ComplexHalf support is experimental")
def test_types_that_only_torch_knows_are_checked_by_torch(
    manager: CheckpointManager,
    monkeypatch: pytest.MonkeyPatch,
    saved: Any,
    stored: str,
    wanted: str,
    problem: str | None,
) -> None:
    known = conversion.numpy_dtype
    monkeypatch.setattr(conversion, "numpy_dtype", lambda name: None if name == stored else known(name))
    manager.save({"w": _torch(saved, stored)}, 1)
    if problem is not None:
        refuse(manager, {"w": _torch([0], wanted)}, problem)
    else:
        assert manager.load(like={"w": _torch([0], wanted)}).data["w"].tolist() == [2]


def test_values_of_a_type_that_no_library_here_knows_are_refused_by_the_conversion(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setitem(sys.modules, "torch", None)
    memory = memoryview(bytes(2))
    check_values("float4_e2m1fn_x2", "int8", memory)
    with pytest.raises(RefusedError, match="is an array, and NumPy has no type float4_e2m1fn_x2 here"):
        make_numpy("float4_e2m1fn_x2", (2,), memory, np.dtype("int8"))


def test_types_that_numpy_cannot_convert_are_named(manager: CheckpointManager) -> None:
    manager.save({"w": np.ones(2, ml_dtypes.float8_e4m3fn)}, 1)
    problem = "has elements of type float8_e8m0fnu, and NumPy cannot make them of float8_e4m3fn"
    assert refuse(manager, {"w": np.ones(2, ml_dtypes.float8_e8m0fnu)}, problem).path == "w"


@pytest.mark.part("torch")
def test_a_conjugate_view_is_filled_with_its_own_values_and_a_type_that_torch_lacks_is_named(
    manager: CheckpointManager,
) -> None:
    import torch

    manager.save({"w": np.array([1 + 2j, 3 - 4j]), "day": np.zeros(1, "M8[D]")}, 1)
    there = torch.zeros(2, dtype=torch.complex128)
    restored = manager.load(like={"w": there.conj()}).data["w"]
    assert restored.tolist() == [1 + 2j, 3 - 4j]
    assert there.tolist() == [1 - 2j, 3 + 4j]
    refuse(manager, {"day": torch.zeros(1)}, r"torch has no type datetime64\[D\]")


@pytest.mark.part("torch")
def test_types_that_a_library_cannot_convert_are_named(manager: CheckpointManager) -> None:
    import torch

    pairs = torch.zeros(2, dtype=torch.uint8).view(torch.float4_e2m1fn_x2)
    manager.save({"pairs": pairs, "day": np.array(["2020-01-01"], "M8[D]"), "size": ["a"]}, 1)
    refuse(manager, {"pairs": torch.zeros(2)}, "torch cannot make them of float4_e2m1fn_x2")
    refuse(manager, {"pairs": np.zeros(2)}, "NumPy has no type float4_e2m1fn_x2")
    refuse(manager, {"day": np.zeros(1)}, r"the checkpoint has datetime64\[D\]")
    refuse(manager, {"day": np.zeros(1, "m8[D]")}, r"the checkpoint has datetime64\[D\]")
    assert refuse(manager, {"size": torch.Size([0])}, "whole numbers").path == "size"
    assert manager.load(like={"day": np.zeros(1, "M8[s]")}).data["day"] == np.datetime64("2020-01-01", "s")


@pytest.mark.part("torch")
@pytest.mark.parametrize("kind", ["torch", "numpy", "both"])
def test_tensors_of_like_that_share_memory_get_the_values_of_all_or_are_refused(
    manager: CheckpointManager, kind: str
) -> None:
    """A checkpoint of a model with untied weights does not silently become one of them in a model that ties them."""
    import torch

    def views() -> dict[str, Any]:
        array = np.zeros(6, np.float32)
        base = torch.from_numpy(array)
        first, second = (array, array) if kind == "numpy" else (base, base if kind == "torch" else array)
        return {"first": first, "again": second, "head": first[:4], "tail": second[2:], "rest": second[4:]}

    def state(**other: float) -> dict[str, Any]:
        whole = np.arange(6, dtype=np.float32)
        made = {"first": whole, "again": whole, "head": whole[:4], "tail": whole[2:], "rest": whole[4:]}
        return {name: each + np.float32(other.get(name, 0)) for name, each in made.items()}

    manager.save(state(), 1)
    for names in (["first", "again"], ["head", "tail"], ["tail", "head", "first"], ["rest", "head"], [*state()]):
        like = {name: each for name, each in views().items() if name in names}
        found = manager.load(like={name: like[name] for name in names}).data
        for name in names:
            assert found[name] is like[name]
            assert np.array_equal(np.asarray(found[name]), state()[name])
    manager.save(state(again=1.0), 2)
    for names in (["first", "again"], ["again", "first"], ["again", "head"], ["tail", "again"]):
        like = views()
        error = refuse(manager, {name: like[name] for name in names}, "shares memory with")
        assert error.path in names
    like = views()
    assert manager.load(like={name: like[name] for name in ("first", "head", "tail", "rest")}).step == 2


@pytest.mark.part("torch")
def test_shared_memory_is_compared_after_a_conversion_too(manager: CheckpointManager) -> None:
    import torch

    both = torch.zeros(3, dtype=torch.float64)
    manager.save({"a": torch.ones(3), "b": torch.ones(3)}, 1)
    assert manager.load(like={"a": both, "b": both}).data["b"].tolist() == [1, 1, 1]
    manager.save({"a": torch.ones(3), "b": torch.zeros(3)}, 2)
    refuse(manager, {"a": both, "b": both}, "b: it shares memory with a")
    apart = torch.zeros(6)
    assert manager.load(like={"a": apart[::2], "b": apart[1::2]}).step == 2
    assert apart.tolist() == [1, 0, 1, 0, 1, 0]
