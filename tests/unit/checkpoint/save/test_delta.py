"""Delta checkpoints write what changed, restore like full ones, and are never undone by retention."""

from __future__ import annotations

import asyncio
import random
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from strata.checkpoint import CheckpointManager, SavePolicy
from strata.checkpoint.format.delta import cut_extents, find_changes, merge_extents
from strata.checkpoint.format.digest import CHUNK_BYTES, digest_chunks, digest_part
from strata.checkpoint.format.manifest import Extent, PartRecord
from strata.errors import DamagedCheckpointError, IncompleteCheckpointError
from strata.run.randomness.generators import encode, read_state
from strata.storage import MemoryStorage

CHUNKS = 8


def base() -> np.ndarray[Any, np.dtype[np.uint8]]:
    return np.random.default_rng(0).integers(0, 255, CHUNKS * CHUNK_BYTES - 5000, np.uint8)


def written(storage: MemoryStorage, step: int) -> dict[str, int]:
    prefix = f"default/checkpoints/step_{step}/"
    return {
        path.removeprefix(prefix): len(found.data)
        for path, found in storage._objects.items()
        if path.startswith(prefix) and "metadata" not in path
    }


@given(st.lists(st.tuples(st.integers(0, 99), st.integers(1, 30)), max_size=4), st.data())
def test_merged_extents_read_as_the_new_bytes_over_the_old(changes: list[tuple[int, int]], data: st.DataObject) -> None:
    old, new = bytes(range(100)), bytearray(range(100))
    pieces, end, fresh = [], 0, bytearray()
    for start, length in sorted(changes):
        if start < end:
            continue
        end = min(100, start + length)
        content = bytes([200]) * (end - start)
        new[start:end] = content
        pieces.append((start, Extent("new", len(fresh), end - start)))
        fresh += content
    objects = {"old": old, "new": bytes(fresh)}
    merged = merge_extents([Extent("old", 0, 40), Extent("old", 40, 60)], pieces)
    low = data.draw(st.integers(0, 100))
    high = data.draw(st.integers(low, 100))
    read = b"".join(objects[e.path][e.offset : e.offset + e.length] for e in cut_extents(merged, low, high))
    assert read == new[low:high]


def test_a_dense_change_is_found_from_a_few_samples() -> None:
    before = base()
    chunks = digest_chunks(memoryview(before))
    record = PartRecord(len(before), digest_part(chunks), tuple(chunks), (Extent("x", 0, len(before)),))
    assert find_changes(memoryview(before + 1), record) is None
    assert find_changes(memoryview(before[:-1]), record) is None
    one = before.copy()
    one[CHUNK_BYTES] ^= 1
    changes = find_changes(memoryview(one), record)
    assert changes is not None
    assert changes.runs == [(1, 2)]
    one[[3 * CHUNK_BYTES, 4 * CHUNK_BYTES, 6 * CHUNK_BYTES]] ^= 1
    changes = find_changes(memoryview(one), record)
    assert changes is not None
    assert changes.runs == [(1, 2), (3, 5), (6, 7)]


def test_a_state_of_which_nearly_all_changed_is_written_in_full() -> None:
    before = base()
    chunks = digest_chunks(memoryview(before))
    record = PartRecord(len(before), digest_part(chunks), tuple(chunks), (Extent("x", 0, len(before)),))
    after = before.copy()
    for changed, is_delta in ((6, True), (7, False)):
        after[: changed * CHUNK_BYTES : CHUNK_BYTES] = before[: changed * CHUNK_BYTES : CHUNK_BYTES] + 1
        assert (find_changes(memoryview(after), record) is not None) == is_delta


def test_random_numbers_that_were_drawn_cost_a_delta_one_chunk() -> None:
    storage, weights, generator = MemoryStorage(), base()[: -CHUNK_BYTES + 5000], random.Random(1)
    with CheckpointManager(storage=storage, saving=SavePolicy(delta=True)) as manager:
        for step in range(1, 9):
            weights[-1] ^= 1
            generator.gauss()
            generator.randbytes(step)
            manager.save({"w": weights}, step, random_state=encode({"python": read_state(generator)}))
            if step > 1:
                ((name, size_bytes),) = written(storage, step).items()
                assert name.endswith(".delta")
                assert size_bytes <= CHUNK_BYTES


def test_only_changed_chunks_are_written_and_never_a_chain() -> None:
    storage = MemoryStorage()
    with CheckpointManager(storage=storage, saving=SavePolicy(delta=True)) as manager:
        weights = base()
        manager.save({"w": weights}, 1)
        for step in range(2, 6):
            weights[step * CHUNK_BYTES] ^= 1
            manager.save({"w": weights}, step)
            (size,) = written(storage, step).values()
            assert size == CHUNK_BYTES
            assert np.array_equal(manager.load(step).data["w"], weights)
        manager.save({"w": weights + 1}, 6)
        assert written(storage, 6).keys() == {"model-00001-of-00001.safetensors"}
        info = manager.latest()
        assert info is not None
        assert info.parent is None


def test_every_nth_save_is_full() -> None:
    storage = MemoryStorage()
    with CheckpointManager(storage=storage, keep_count=None, saving=SavePolicy(delta=True, full_every=3)) as manager:
        weights = base()
        for step in range(7):
            weights[0] = step
            manager.save({"w": weights}, step)
    full = [step for step in range(7) if "model-00001-of-00001.safetensors" in written(storage, step)]
    assert full == [0, 3, 6]


def test_retention_keeps_the_chunks_that_a_kept_delta_points_at_and_no_longer() -> None:
    storage = MemoryStorage()
    with CheckpointManager(storage=storage, keep_count=1, saving=SavePolicy(delta=True, full_every=100)) as manager:
        weights = base()
        for step in range(1, 5):
            weights[step * CHUNK_BYTES] ^= 1
            manager.save({"w": weights}, step)
            manager.wait_pending(30)
        assert manager.list_checkpoints() == [4]
        assert written(storage, 1)
        assert np.array_equal(manager.load().data["w"], weights)
        manager.save({"w": weights + 1}, 5)
        manager.wait_pending(30)
        assert manager.list_checkpoints() == [5]
        assert {path.split("/")[2] for path in storage._objects} == {"step_5"}


def test_a_restarted_manager_goes_on_from_the_newest_checkpoint() -> None:
    storage = MemoryStorage()
    weights = base()
    with CheckpointManager(storage=storage, saving=SavePolicy(delta=True)) as manager:
        manager.save({"w": weights}, 1)
    weights[0] ^= 1
    with CheckpointManager(storage=storage, saving=SavePolicy(delta=True)) as manager:
        manager.save({"w": weights}, 2)
        assert written(storage, 2) == {"model-00001-of-00001.delta": CHUNK_BYTES}


def test_a_parent_that_is_pruned_by_another_process_meanwhile_makes_the_save_full() -> None:
    storage = MemoryStorage()

    def prune(name: str) -> None:
        if name == "committing" and pruning:
            for path in [path for path in storage._objects if "step_1/" in path]:
                del storage._objects[path]

    pruning = False
    with CheckpointManager(storage=storage, saving=SavePolicy(delta=True), observer=prune) as manager:
        weights = base()
        manager.save({"w": weights}, 1)
        pruning = True
        weights[0] ^= 1
        manager.save({"w": weights}, 2)
        assert manager.list_checkpoints() == [2]
        assert np.array_equal(manager.load().data["w"], weights)


@pytest.mark.parametrize("victim", ["step_1/model-00001-of-00001.safetensors", "step_2/model-00001-of-00001.delta"])
def test_damage_in_either_file_of_a_delta_is_found(victim: str) -> None:
    storage = MemoryStorage()
    with CheckpointManager(storage=storage, saving=SavePolicy(delta=True)) as manager:
        weights = base()
        manager.save({"w": weights}, 1)
        weights[0] ^= 1
        manager.save({"w": weights}, 2)
        path = f"default/checkpoints/{victim}"
        data = bytearray(storage._objects[path].data)
        data[-1] ^= 1
        asyncio.run(storage.write(path, data))
        with pytest.raises(DamagedCheckpointError, match=victim):
            manager.load(2)


def test_parts_of_several_writers_are_deltas_too() -> None:
    storage = MemoryStorage()
    weights = [base(), base()]
    with (
        CheckpointManager(storage=storage, saving=SavePolicy(delta=True)) as one,
        CheckpointManager(storage=storage, saving=SavePolicy(delta=True)) as two,
    ):
        for step in (1, 2, 3):
            weights[0][0] = step
            for part, manager in enumerate((one, two)):
                manager.save({f"w{part}": weights[part]}, step, part=part, parts=2)
            one.commit(step)
        assert written(storage, 3) == {"model-00001-of-00002.delta": CHUNK_BYTES}
        data = two.load(3).data
        assert np.array_equal(data["w0"], weights[0])
        assert np.array_equal(data["w1"], weights[1])
        weights[1][0] ^= 1
        for part, manager in enumerate((one, two)):
            manager.save({f"w{part}": weights[part]}, 4, part=part, parts=2)
        one.delete(3)
        with pytest.raises(IncompleteCheckpointError, match="was deleted meanwhile"):
            one.commit(4)
        assert one.list_checkpoints() == [1, 2]


@pytest.mark.parametrize("harm", ["lost", "cut", "changed"])
def test_no_delta_is_made_of_a_checkpoint_that_cannot_be_restored(harm: str) -> None:
    storage, saving, weights = MemoryStorage(), SavePolicy(delta=True), base()
    with CheckpointManager(storage=storage, saving=saving) as manager:
        for step in (1, 2):
            weights[0] = step
            manager.save({"w": weights}, step)
    path = "default/checkpoints/step_1/model-00001-of-00001.safetensors"
    data = storage._objects[path].data
    asyncio.run(storage.delete(path))
    if harm != "lost":
        changed = data[:-1] if harm == "cut" else data[:-1] + bytes([data[-1] ^ 1])
        asyncio.run(storage.write(path, changed))
    with CheckpointManager(storage=storage, saving=saving) as manager:
        if harm == "changed":
            # Nobody knows of a flipped bit before it is read.
            with pytest.raises(DamagedCheckpointError):
                manager.load()
        weights[0] = 3
        assert manager.save({"w": weights}, 3).parent is None
        assert np.array_equal(manager.load(3).data["w"], weights)
        weights[0] = 4
        assert manager.save({"w": weights}, 4).parent == 3


def test_a_manifest_that_cannot_be_read_is_no_parent_and_the_save_is_full() -> None:
    storage, saving, weights = MemoryStorage(), SavePolicy(delta=True), base()[: 2 * CHUNK_BYTES]
    with CheckpointManager(storage=storage, saving=saving) as manager:
        for step in (1, 2):
            weights[0] = step
            manager.save({"w": weights}, step)
    asyncio.run(storage.write("default/checkpoints/step_2/metadata.json", b"cut off"))
    with CheckpointManager(storage=storage, saving=saving) as manager:
        weights[0] = 3
        assert manager.save({"w": weights}, 3).parent is None
        assert np.array_equal(manager.load(3).data["w"], weights)


def test_damage_that_a_restore_finds_makes_the_next_save_full() -> None:
    storage, weights = MemoryStorage(), base()
    with CheckpointManager(storage=storage, saving=SavePolicy(delta=True)) as manager:
        for step in (1, 2, 3):
            weights[0] = step
            manager.save({"w": weights}, step)
        path = "default/checkpoints/step_1/model-00001-of-00001.safetensors"
        data = storage._objects[path].data
        asyncio.run(storage.write(path, data[:-1] + bytes([data[-1] ^ 1])))
        with pytest.raises(DamagedCheckpointError):
            manager.load(2)
        weights[0] = 4
        assert manager.save({"w": weights}, 4).parent is None
        assert np.array_equal(manager.load().data["w"], weights)
