"""Metadata never ends training: NaN and numbers of any library are kept, and what JSON cannot hold is left out."""

from __future__ import annotations

import enum
import logging
import math
from decimal import Decimal
from types import MappingProxyType
from typing import Any

import ml_dtypes
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from strata.checkpoint import Best, CheckpointManager, RetentionPolicy
from strata.checkpoint.save.metadata import plain_metadata
from strata.storage import MemoryStorage

FLOATS = st.floats(width=64)
PLAIN = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**70), 2**70) | FLOATS | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3),
    max_leaves=10,
)


class Phase(enum.StrEnum):
    WARM = "warm"


def save_and_load(metadata: Any) -> dict[str, Any]:
    with CheckpointManager(storage=MemoryStorage()) as manager:
        info = manager.save({"w": np.ones(2)}, 1, metadata=metadata)
        found = manager.load().metadata
        listed = manager.latest()
        assert listed is not None
        assert repr(found) == repr(info.metadata) == repr(listed.metadata)
    return found


@given(metadata=st.dictionaries(st.text(max_size=5), PLAIN, max_size=4))
def test_plain_metadata_comes_back_exactly_nan_and_infinity_included(metadata: dict[str, Any]) -> None:
    kept, left_out = plain_metadata(metadata)
    if not left_out:
        assert repr(kept) == repr(metadata)
    assert repr(save_and_load(metadata)) == repr(kept)


@pytest.mark.parametrize(
    ("value", "kept"),
    [
        (float("nan"), math.nan),
        (float("-inf"), -math.inf),
        (np.float32(0.5), 0.5),
        (np.float64("nan"), math.nan),
        (np.longdouble(2), 2.0),
        (np.int64(7), 7),
        (np.bool_(True), True),
        (np.str_("a"), "a"),
        (np.array(3.0), 3.0),
        (np.array([[4]]), 4),
        (ml_dtypes.bfloat16(0.5), 0.5),
        (Decimal("0.25"), 0.25),
        (Phase.WARM, "warm"),
        ((1, np.float16(2)), [1, 2.0]),
        (MappingProxyType({np.int32(1): {None: float("inf")}}), {"1": {"null": math.inf}}),
    ],
)
def test_numbers_of_any_library_become_plain_ones(value: Any, kept: Any) -> None:
    found = save_and_load({"value": value})
    assert repr(found) == repr({"value": kept})
    assert [type(each) for each in found.values()] == [type(kept)]


@pytest.mark.part("torch")
def test_tensors_with_one_element_become_numbers() -> None:
    import torch

    values = {"a": torch.tensor(0.5, requires_grad=True), "b": torch.tensor([3]), "c": torch.tensor(math.nan)}
    assert repr(save_and_load(values)) == repr({"a": 0.5, "b": 3, "c": math.nan})


class Unhelpful:
    @property
    def item(self) -> Any:
        raise RuntimeError("not today")


@pytest.mark.parametrize(
    ("value", "problem"),
    [
        (object(), "is of type object"),
        (np.ones(3), "is of type ndarray"),
        (np.datetime64("2026-01-01", "ns"), "is of type datetime64"),
        (np.complex128(1j), "is of type complex128"),
        (1j, "is of type complex"),
        (b"raw", "is of type bytes"),
        ({1, 2}, "is of type set"),
        (Unhelpful(), "is of type Unhelpful"),
        ("\ud83d\ude00", "two surrogates"),
        pytest.param(1 << 100_000, "an integer of 100001 bits", id="int"),
    ],
)
def test_what_json_cannot_hold_is_left_out_and_named_once(
    value: Any, problem: str, caplog: pytest.LogCaptureFixture
) -> None:
    metadata = {"good": 1, "run": {"bad": value, "also": [value, 2]}}
    with CheckpointManager(storage=MemoryStorage()) as manager, caplog.at_level(logging.WARNING):
        for step in (1, 2):
            manager.save({"w": np.full(2, step)}, step, metadata=metadata)
        assert manager.load().metadata == {"good": 1, "run": {"also": [None, 2]}}
    warnings = [record.getMessage() for record in caplog.records if problem in record.getMessage()]
    assert [each.partition(", which")[0] for each in warnings] == [
        "the checkpoint of step 1 is saved without metadata 'run.bad'",
        "the checkpoint of step 1 is saved without metadata 'run.also.0'",
    ]


def test_metadata_that_contains_itself_or_never_ends_is_cut() -> None:
    loop: dict[str, Any] = {"loss": 1.0}
    loop["self"] = [loop, loop]
    assert save_and_load(loop) == {"loss": 1.0, "self": [None, None]}
    deep: dict[str, Any] = {}
    for _ in range(300):
        deep = {"loss": 0.5, "in": deep}
    found = save_and_load(deep)
    assert found["loss"] == found["in"]["in"]["loss"] == 0.5


def test_keys_of_other_types_are_left_out() -> None:
    assert save_and_load({("a", 1): 1, "b": 2, 1 << 100_000: 3, 1 << 70: 4}) == {"b": 2, str(1 << 70): 4}


def test_retention_by_a_metric_works_with_what_scripts_pass() -> None:
    losses = [np.float32("nan"), np.array([0.1]), np.float32(0.7), float("inf"), 0.9]
    policy = RetentionPolicy(keep_count=1, best=Best("loss", "min", 2))
    with CheckpointManager(storage=MemoryStorage(), retention=policy) as manager:
        for step, loss in enumerate(losses):
            manager.save({"w": np.full(2, step)}, step, metadata={"loss": loss})
        manager.wait_pending()
        assert manager.list_checkpoints() == [1, 2, 4]
