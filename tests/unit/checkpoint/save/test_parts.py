"""Several writers: parts become a checkpoint only together, only of one generation, only if they agree."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
import pytest

from strata.checkpoint import CheckpointManager, Slice
from strata.errors import (
    CheckpointExistsError,
    CheckpointNotFoundError,
    ConflictingPartsError,
    IncompleteCheckpointError,
)
from strata.storage import MemoryStorage

if TYPE_CHECKING:
    from collections.abc import Iterator


@pytest.fixture
def storage() -> MemoryStorage:
    return MemoryStorage()


@pytest.fixture
def manager(storage: MemoryStorage) -> Iterator[CheckpointManager]:
    with CheckpointManager(storage=storage) as manager:
        yield manager


def test_parts_are_no_checkpoint_until_they_are_committed(manager: CheckpointManager, storage: MemoryStorage) -> None:
    info = manager.save({"a": np.ones(2)}, 5, part=0, parts=2)
    assert not info.committed
    with pytest.raises(CheckpointNotFoundError):
        manager.load()
    with pytest.raises(IncompleteCheckpointError, match="these are missing: 1") as caught:
        manager.commit(5)
    assert caught.value.missing == [1]
    manager.save({"b": np.zeros(2)}, 5, part=1, parts=2)
    assert manager.commit(5).committed
    assert set(manager.load().data) == {"a", "b"}
    names = {path.rpartition("/")[2] for path in storage._objects}
    assert names == {
        "metadata.json",
        "model-00001-of-00002.safetensors",
        "model-00002-of-00002.safetensors",
    }


def test_committing_again_is_harmless_and_another_generation_is_refused(manager: CheckpointManager) -> None:
    manager.save({"a": np.ones(2)}, 5, part=0, parts=2, generation=3)
    manager.save({"b": np.ones(2)}, 5, part=1, parts=2, generation=3)
    first = manager.commit(5, generation=3)
    assert manager.commit(5, generation=3) == first
    with pytest.raises(CheckpointExistsError):
        manager.commit(5, generation=4)
    with pytest.raises(IncompleteCheckpointError, match="no part of generation 0"):
        manager.commit(6)


def test_a_part_of_a_dead_generation_is_never_mixed_in(manager: CheckpointManager) -> None:
    manager.save({"a": np.ones(2)}, 5, part=0, parts=2, generation=1)
    manager.save({"b": np.ones(2)}, 5, part=1, parts=2, generation=1)
    manager.save({"a": np.zeros(2)}, 5, part=0, parts=2, generation=2)
    with pytest.raises(IncompleteCheckpointError) as caught:
        manager.commit(5, generation=2)
    assert caught.value.missing == [1]
    manager.save({"b": np.zeros(2)}, 5, part=1, parts=2, generation=2)
    manager.commit(5, generation=2)
    data = manager.load().data
    assert data["a"][0] == data["b"][0] == 0


@pytest.mark.parametrize(
    ("left", "right", "problem"),
    [
        ({"lr": 0.1}, {"lr": 0.2}, "lr: two parts have different values"),
        ({"lr": 1}, {"lr": 1.0}, "lr: two parts have different values"),
        ({"x": [1]}, {"x": [1, 2]}, "x: two parts have different values"),
        ({"w": np.ones(2)}, {"w": np.ones(3)}, "w: two parts have it with different types or shapes"),
        (
            {"w": Slice(np.ones(2), (4,), (0,))},
            {"w": Slice(np.ones(1), (4,), (2,))},
            "w: its slices make up 3 of 4 elements",
        ),
        (
            {"w": Slice(np.ones(3), (4,), (0,))},
            {"w": Slice(np.ones(3), (4,), (1,))},
            "w: its slices make up 6 of 4 elements",
        ),
    ],
)
def test_parts_that_disagree_are_not_committed(manager: CheckpointManager, left: Any, right: Any, problem: str) -> None:
    manager.save(left, 5, part=0, parts=2)
    manager.save(right, 5, part=1, parts=2)
    with pytest.raises(ConflictingPartsError, match=problem):
        manager.commit(5)
    assert manager.latest() is None


def test_parts_of_two_numbers_of_workers_are_never_one_checkpoint(manager: CheckpointManager) -> None:
    manager.save({"a": np.ones(2)}, 5, part=0, parts=2)
    manager.save({"b": np.ones(2)}, 5, part=1, parts=3)
    with pytest.raises(IncompleteCheckpointError, match="parts were saved as of 2 and 3 in one generation"):
        manager.commit(5)
    assert manager.latest() is None


def test_a_piece_of_a_tensor_is_not_taken_for_a_tensor_that_has_its_name(manager: CheckpointManager) -> None:
    # One writes the row that cannot be cut, and so the other one both pieces of w: as "w" and as "w@1,0".
    state = {"row": np.full((1, 20_000), 3.0), "w": np.arange(16_384.0).reshape(2, 8_192), "w@1,0": np.full(3, 7.0)}
    for part in range(2):
        manager.save(state, 5, part=part, parts=2, replicated=["row", "w"])
    manager.commit(5)
    restored = manager.load().data
    assert {name: each.tolist() for name, each in restored.items()} == {
        name: each.tolist() for name, each in state.items()
    }


def test_names_that_look_alike_in_two_parts_stay_apart(manager: CheckpointManager) -> None:
    manager.save({"a.b": np.full(2, 1)}, 5, part=0, parts=2)
    manager.save({"a": {"b": np.full(2, 2)}}, 5, part=1, parts=2)
    manager.commit(5)
    data = manager.load().data
    assert data["a.b"][0] == 1
    assert data["a"]["b"][0] == 2


def test_bytes_and_lonely_slices_are_refused(manager: CheckpointManager) -> None:
    with pytest.raises(ValueError, match="bytes are saved by one writer"):
        manager.save(b"x", 5, part=0, parts=2)
    with pytest.raises(ConflictingPartsError, match="make up 2 of 4"):
        manager.save({"w": Slice(np.ones(2), (4,), (0,))}, 5)


def test_slices_that_overlap_and_leave_a_hole_are_refused_although_they_add_up(manager: CheckpointManager) -> None:
    first, second = np.ones((2, 2)), np.ones((2, 2))
    manager.save({"w": Slice(first, (4, 2), (0, 0))}, 5, part=0, parts=2)
    manager.save({"w": Slice(second, (4, 2), (1, 0))}, 5, part=1, parts=2)
    with pytest.raises(ConflictingPartsError, match="its slices overlap, so that they leave a hole"):
        manager.commit(5)
