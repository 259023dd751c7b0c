"""Restored memory is aligned, so that the step after a restore is the step that would have been, bit for bit."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from strata.checkpoint import CheckpointManager, Slice
from strata.checkpoint.format.layout import VECTOR_BYTES
from strata.run.loop.state import put_back, to_like, to_tree
from strata.storage import MemoryStorage

SHAPES = st.lists(st.tuples(st.integers(1, 9), st.integers(1, 70)), min_size=1, max_size=8)
TYPES = st.sampled_from(["f4", "f8", "i1", "f2", "?"])


@given(shapes=SHAPES, dtype=TYPES)
def test_every_restored_array_is_aligned_whatever_its_neighbours_are(shapes: list[tuple[int, int]], dtype: str) -> None:
    state = {f"w{number}": np.ones(shape, dtype) for number, shape in enumerate(shapes)}
    with CheckpointManager(storage=MemoryStorage()) as manager:
        manager.save(state, 1)
        restored = manager.load().data
        rows = {f"w{n}": Slice(np.empty((1, shape[1]), "i8"), shape, (0, 0)) for n, shape in enumerate(shapes)}
        sliced = manager.load(like=rows).data
    for name, value in state.items():
        assert np.array_equal(restored[name], value)
        assert restored[name].ctypes.data % VECTOR_BYTES == 0
        assert np.array_equal(sliced[name], value[:1])


@pytest.mark.part("torch")
def test_arrays_whose_size_is_a_multiple_of_the_alignment_are_aligned_in_the_file_too(tmp_path: Path) -> None:
    import safetensors.numpy

    state = {"odd": np.ones(3, "f8"), "even": np.ones(16, "f4"), "byte": np.ones(1, "i1"), "half": np.ones(32, "f2")}
    with CheckpointManager(tmp_path) as manager:
        manager.save(state, 1)
    (part,) = (tmp_path / "default/checkpoints/step_1").glob("*.safetensors")
    data = part.read_bytes()
    found = safetensors.numpy.load(data)
    assert set(found) == set(state)
    assert all(np.array_equal(found[name], state[name]) for name in state)
    header = data[8 : 8 + int.from_bytes(data[:8], "little")].decode()

    offsets = {name: each["data_offsets"][0] for name, each in json.loads(header).items() if name in state}
    assert offsets["even"] % VECTOR_BYTES == offsets["half"] % VECTOR_BYTES == 0


OPTIMIZERS = {
    "SGD": {"lr": 0.1, "momentum": 0.9},
    "Adam": {"amsgrad": True},
    "AdamW": {"lr": 0.01},
    "Adamax": {},
    "NAdam": {},
    "RAdam": {},
    "RMSprop": {"momentum": 0.9, "centered": True},
    "Adagrad": {"lr": 0.1},
    "LBFGS": {"max_iter": 5, "history_size": 4},
}


def build(name: str, seed: int) -> dict[str, Any]:
    import torch
    from torch import nn

    torch.manual_seed(seed)
    model = nn.Sequential(nn.Linear(7, 13), nn.BatchNorm1d(13), nn.Tanh(), nn.Linear(13, 5), nn.BatchNorm1d(5))
    return {"model": model, "optimizer": getattr(torch.optim, name)(model.parameters(), **OPTIMIZERS[name])}


def train(state: dict[str, Any], step: int) -> None:
    import torch

    generator = torch.Generator().manual_seed(step)
    x, y = torch.randn(11, 7, generator=generator), torch.randn(11, 5, generator=generator)

    def closure() -> Any:
        state["optimizer"].zero_grad()
        loss = (state["model"](x) - y).square().mean()
        loss.backward()
        return loss

    state["optimizer"].step(closure)


def leaves(tree: Any) -> list[Any]:
    if isinstance(tree, dict):
        return [leaf for value in tree.values() for leaf in leaves(value)]
    return [leaf for value in tree for leaf in leaves(value)] if isinstance(tree, list | tuple) else [tree]


@pytest.mark.part("torch")
@pytest.mark.parametrize("name", OPTIMIZERS)
def test_the_steps_after_a_restore_are_bit_identical_to_those_without(name: str, tmp_path: Path) -> None:
    import torch

    state = build(name, 0)
    for step in range(5):
        train(state, step)
    with CheckpointManager(tmp_path) as manager:
        manager.save(to_tree(state), 5)
        in_place, loaded = build(name, 1), build(name, 2)
        put_back(in_place, manager.load(like=to_like(in_place)).data)
        put_back(loaded, manager.load().data)
    for tensor in leaves(to_tree(loaded)):
        if isinstance(tensor, torch.Tensor):
            assert tensor.data_ptr() % VECTOR_BYTES == 0
    for step in range(5, 9):
        for each in (state, in_place, loaded):
            train(each, step)
    expected = leaves(to_tree(state))
    for each in (in_place, loaded):
        found = leaves(to_tree(each))
        assert len(found) == len(expected)
        for one, other in zip(expected, found, strict=True):
            assert torch.equal(one, other) if isinstance(one, torch.Tensor) else one == other
