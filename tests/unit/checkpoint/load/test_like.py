"""What ``like`` asks for is given exactly, or refused with its path; a wrong question is never taken for damage."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
import pytest

from strata.checkpoint import CheckpointManager, Slice
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
