"""A part file is a safetensors file: aligned, without holes, and the same for the same tensors."""

from __future__ import annotations

import json
from typing import Any

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from strata.checkpoint.format import layout
from strata.checkpoint.format.dtypes import DTYPES
from strata.checkpoint.format.layout import Planner, plan_part
from strata.checkpoint.format.tree import flatten
from tests.unit.checkpoint.states import STATES


@given(STATES)
def test_tensors_follow_each_other_without_holes_from_an_aligned_start(state: Any) -> None:
    flat = flatten(state)
    plan = plan_part(flat.leaves)
    assert len(plan.head) % layout.ALIGN_BYTES == 0
    end = len(plan.head)
    for place in plan.places:
        assert place.offset == end
        assert place.offset % DTYPES[flat.leaves[place.name].tensor.dtype].itemsize == 0
        end += place.nbytes
    assert end == plan.size_bytes
    assert plan == plan_part(flatten(state).leaves)


@given(st.lists(STATES, min_size=2, max_size=4))
def test_a_planner_remembers_and_is_never_wrong(states: list[Any]) -> None:
    planner = Planner()
    for state in states:
        leaves = flatten(state).leaves
        assert planner.plan(leaves) == plan_part(leaves)
        assert planner.plan(flatten(state).leaves) is planner.plan(leaves)


def test_the_header_is_json_padded_with_spaces() -> None:
    plan = plan_part(flatten({"w": np.zeros((2, 3), np.float32), "c": np.zeros(2, np.complex128)}).leaves)
    length = int.from_bytes(plan.head[:8], "little")
    assert 8 + length == len(plan.head)
    header = json.loads(plan.head[8:])
    assert header["w"] == {"dtype": "F32", "shape": [2, 3], "data_offsets": [32, 56]}
    # safetensors has no complex128: its bytes are there, with one more dimension.
    assert header["c"] == {"dtype": "U8", "shape": [2, 16], "data_offsets": [0, 32]}


def test_names_on_storage_are_those_of_the_design() -> None:
    assert layout.checkpoints_directory("run") == "run/checkpoints"
    assert layout.manifest_name(1000) == "step_1000/metadata.json"
    assert layout.part_name(1000, 2, 8) == "step_1000/model-00003-of-00008.safetensors"
    assert layout.part_name(1000, 0, 1, opaque=True) == "step_1000/model.bin"


@given(step=st.integers(0, 10**12), part=st.integers(0, 99_999))
def test_names_can_be_read_back(step: int, part: int) -> None:
    assert layout.step_of(layout.manifest_name(step)) == step
    assert layout.is_manifest(layout.manifest_name(step))
    assert layout.part_of_report(layout.report_name(step, part, part + 1)) == (part, part + 1)
    assert not layout.is_manifest(layout.part_name(step, part, part + 1))


def test_names_that_are_not_ours_are_not_taken_for_ours() -> None:
    for name in ("step_01/metadata.json", "step_x/metadata.json", "step_1/deep/metadata.json", "metadata.json"):
        assert not layout.is_manifest(name)
