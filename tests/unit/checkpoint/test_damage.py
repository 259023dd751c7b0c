"""Damaged checkpoints are found, never returned, and load falls back to the newest good one."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

import numpy as np
import pytest

from strata.checkpoint import CheckpointManager
from strata.checkpoint.format.manifest import seal
from strata.errors import (
    DamagedCheckpointError,
    UnknownFormatError,
)
from strata.storage import MemoryStorage

if TYPE_CHECKING:
    from collections.abc import Iterator


PART = "model-00001-of-00001.safetensors"


@pytest.fixture
def storage() -> MemoryStorage:
    return MemoryStorage()


@pytest.fixture
def manager(storage: MemoryStorage) -> Iterator[CheckpointManager]:
    with CheckpointManager(storage=storage) as manager:
        yield manager


def stored(storage: MemoryStorage, path: str) -> bytes:
    return storage._objects[f"default/checkpoints/{path}"].data


def tamper(storage: MemoryStorage, path: str, data: bytes) -> None:
    asyncio.run(MemoryStorage.write(storage, f"default/checkpoints/{path}", data))


def flip(data: bytes, position: int) -> bytes:
    return data[:position] + bytes([data[position] ^ 1]) + data[position + 1 :]


def test_damage_is_never_returned_and_load_falls_back_to_the_newest_good_one(
    manager: CheckpointManager, storage: MemoryStorage
) -> None:
    """torchtitan#4011: nothing tells a damaged checkpoint from a good one."""
    for step in (1, 2, 3):
        manager.save({"a": np.full(10, step), "b": np.full(2_000_000, step)}, step)
    good = stored(storage, f"step_3/{PART}")
    tamper(storage, f"step_3/{PART}", flip(good, len(good) - 1))
    with pytest.raises(DamagedCheckpointError) as caught:
        manager.load(3)
    error = caught.value
    assert (error.part, error.tensor) == (f"step_3/{PART}", "b")
    assert (error.start, error.end) == (12 << 20, len(good))
    restored = manager.load()
    assert restored.step == 2
    assert restored.data["b"][-1] == 2
    assert [type(each) for each in restored.skipped] == [DamagedCheckpointError]


@pytest.mark.parametrize("damage", ["cut", "gone", "swapped", "longer"])
def test_a_part_that_was_cut_lost_or_swapped_is_found(
    manager: CheckpointManager, storage: MemoryStorage, damage: str
) -> None:
    manager.save({"w": np.zeros(5000)}, 1)
    manager.save({"w": np.ones(5000)}, 2)
    path = f"step_2/{PART}"
    match damage:
        case "cut":
            tamper(storage, path, stored(storage, path)[:-1])
        case "gone":
            del storage._objects[f"default/checkpoints/{path}"]
        case "swapped":
            tamper(storage, path, stored(storage, f"step_1/{PART}"))
        case "longer":
            # More bytes than the manifest knows of are not read, and do no harm.
            tamper(storage, path, stored(storage, path) + b"x")
            assert manager.load().step == 2
            return
    with pytest.raises(DamagedCheckpointError, match=PART):
        manager.load(2)
    assert manager.load().step == 1


def test_a_manifest_that_was_cut_or_belongs_elsewhere_is_found(
    manager: CheckpointManager, storage: MemoryStorage
) -> None:
    manager.save({"w": np.zeros(5)}, 1)
    manager.save({"w": np.ones(5)}, 2)
    good = stored(storage, "step_2/metadata.json")
    tamper(storage, "step_2/metadata.json", good[:-3])
    with pytest.raises(DamagedCheckpointError, match=r"metadata\.json"):
        manager.load(2)
    assert manager.load().step == 1
    assert manager.list_checkpoints() == [1]
    tamper(storage, "step_2/metadata.json", stored(storage, "step_1/metadata.json"))
    with pytest.raises(DamagedCheckpointError, match="manifest of step 1"):
        manager.load(2)


def test_a_manifest_of_a_newer_version_is_neither_damage_nor_skipped(
    manager: CheckpointManager, storage: MemoryStorage
) -> None:
    manager.save({"w": np.zeros(5)}, 1)
    newer = seal("strata-checkpoint", 3, stored(storage, "step_1/metadata.json").partition(b"\n")[2])
    manager.save({"w": np.ones(5)}, 2)
    tamper(storage, "step_2/metadata.json", newer)
    with pytest.raises(UnknownFormatError, match="update Strata"):
        manager.load()
    assert manager.prune() == []


def test_when_all_are_damaged_the_newest_damage_is_raised(manager: CheckpointManager, storage: MemoryStorage) -> None:
    for step in (1, 2):
        manager.save({"w": np.full(5, step)}, step)
        tamper(storage, f"step_{step}/{PART}", b"")
    with pytest.raises(DamagedCheckpointError, match="step 2 is damaged"):
        manager.load()


def test_a_dead_save_of_the_same_step_does_not_get_in_the_way(
    manager: CheckpointManager, storage: MemoryStorage
) -> None:
    tamper(storage, f"step_1/{PART}", b"half of a part")
    manager.save({"w": np.ones(5)}, 1)
    assert manager.load(1).data["w"][0] == 1
    assert stored(storage, f"step_1/{PART}") == b"half of a part"
