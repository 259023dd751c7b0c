"""States come apart and together again, exactly; what cannot be kept is named with its path."""

from __future__ import annotations

import json
from collections import OrderedDict
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
import pytest
from hypothesis import given

from strata import Slice
from strata.checkpoint.format.tensors import view_tensor
from strata.checkpoint.format.tree import FlatState, flatten, rebuild, walk
from strata.errors import UnsavableStateError
from tests.unit.checkpoint.states import STATES, same


def bring_back(flat: FlatState) -> Any:
    def find(name: str, kind: Any) -> Any:
        tensor = flat.leaves[name].tensor
        source = np.asarray(tensor.source)
        return view_tensor(kind, tensor.dtype, tensor.shape, memoryview(bytearray(source.tobytes())))

    return rebuild(json.loads(json.dumps(flat.structure)), find)


@given(STATES)
def test_every_state_comes_back_exactly(state: Any) -> None:
    assert same(bring_back(flatten(state)), state)


@given(STATES)
def test_every_tensor_has_a_name_of_its_own(state: Any) -> None:
    flat = flatten(state)
    named = [node["tensor"] for _, node in walk(flat.structure) if isinstance(node, dict)]
    assert sorted(named) == sorted(flat.leaves)
    assert "__metadata__" not in named


def test_a_name_is_the_path_with_dots_and_a_number_where_two_paths_look_alike() -> None:
    one = np.zeros(1)
    flat = flatten({"model": {"layer.0.weight": one}, "a.b": one, "a": {"b": one}, "list": [one]})
    assert list(flat.leaves) == ["model.layer.0.weight", "a.b", "a.b#2", "list.0"]


@dataclass
class Hyper:
    lr: float
    betas: tuple[float, float]


class Point(NamedTuple):
    x: int
    y: int


def test_dataclasses_and_named_tuples_are_kept_as_dicts() -> None:
    state = {"hyper": Hyper(0.1, (0.9, 0.99)), "point": Point(1, 2), "ordered": OrderedDict(b=1, a=2)}
    assert bring_back(flatten(state)) == {
        "hyper": {"lr": 0.1, "betas": (0.9, 0.99)},
        "point": {"x": 1, "y": 2},
        "ordered": {"b": 1, "a": 2},
    }


@pytest.mark.parametrize(
    ("leaf", "kind", "problem"),
    [
        (print, "builtin_function_or_method", "cannot keep"),
        ({1, 2}, "set", "cannot keep"),
        (np.array(["text"]), "ndarray", "elements of type str"),
        (np.array([object()]), "ndarray", "elements of type object"),
        ({(1, 2): 3}, "tuple", "cannot be a key"),
        (Slice(np.zeros(3), (4,), (2,)), "Slice", "does not fit"),
    ],
)
def test_what_cannot_be_kept_is_named_with_its_path_and_type(leaf: Any, kind: str, problem: str) -> None:
    with pytest.raises(UnsavableStateError, match=problem) as caught:
        flatten({"optimizer": [0, {"hook": leaf}]})
    assert caught.value.path.startswith("optimizer.1.hook")
    assert caught.value.kind == kind


def test_a_state_that_contains_itself_is_refused() -> None:
    state: dict[str, Any] = {}
    state["again"] = state
    with pytest.raises(UnsavableStateError, match="contains itself"):
        flatten(state)


@pytest.mark.part("torch")
def test_torch_tensors_that_no_file_can_hold_are_refused() -> None:
    import torch

    for tensor in (torch.eye(2).to_sparse(), torch.empty(2, device="meta")):
        with pytest.raises(UnsavableStateError, match=r"^w is of type Tensor, which is"):
            flatten({"w": tensor})
