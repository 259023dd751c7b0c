"""Staging memory is bounded, reused, and given back in the right order."""

from __future__ import annotations

import sys
import threading
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from strata.checkpoint.format.layout import plan_part
from strata.checkpoint.format.tree import flatten
from strata.checkpoint.save import staging
from strata.checkpoint.save.staging import StagingPool
from strata.errors import CheckpointError

MIB = 1 << 20


def buffers(pool: StagingPool) -> list[int]:
    return sorted(len(each.memory) for each in pool._free)


def test_buffers_are_reused_and_never_more_than_the_limit() -> None:
    pool = StagingPool(2)
    images = [pool.lend(3 * MIB), pool.lend(5 * MIB)]
    for image in images:
        image.release()
        image.release()
    assert buffers(pool) == [4 * MIB, 6 * MIB]
    small = pool.lend(MIB)
    assert buffers(pool) == [6 * MIB]
    small.release()
    # A state that grew: what is too small goes, so that there are never three.
    large = pool.lend(20 * MIB)
    assert buffers(pool) == [6 * MIB]
    large.release()
    assert buffers(pool) == [6 * MIB, 20 * MIB]
    pool.close()
    assert buffers(pool) == []


def test_the_image_of_a_state_is_its_part_file() -> None:
    flat = flatten({"a": np.arange(5), "t": np.arange(6).reshape(2, 3).T, "n": np.zeros((0, 3))})
    plan = plan_part(flat.leaves)
    pool = StagingPool(1)
    image = pool.lend(plan.size_bytes)
    pool.fill_state(image, plan, flat.leaves)
    image.wait_ready(image.size_bytes)
    assert image.view[: len(plan.head)] == plan.head
    for place in plan.places:
        expected = np.ascontiguousarray(flat.leaves[place.name].tensor.source).tobytes()
        assert image.view[place.offset : place.offset + place.nbytes] == expected
    pool.close()


def test_who_writes_may_follow_who_fills() -> None:
    pool = StagingPool(1)
    data = np.random.default_rng(0).integers(0, 255, 3 * staging.SPAN_BYTES // 2, np.uint8)
    image = pool.lend_bytes(bytearray(data))
    filler = threading.Thread(target=pool.fill_bytes, args=(image, bytearray(data)))
    filler.start()
    for end in range(MIB, image.size_bytes + 1, MIB):
        image.wait_ready(end)
        assert image.view[end - MIB : end] == data[end - MIB : end].data
    filler.join()
    pool.close()


def test_who_waits_learns_of_a_failure_and_is_not_stopped_by_ctrl_c() -> None:
    image = StagingPool(1).lend(MIB)
    image.publish(0, ended=True, failure=MemoryError("none left"))
    with pytest.raises(MemoryError):
        image.wait_ready(1)
    image.publish(0, ended=True, failure=KeyboardInterrupt())
    with pytest.raises(CheckpointError, match="staging was stopped by KeyboardInterrupt"):
        image.wait_ready(1)


def test_memory_that_was_locked_for_a_device_is_unlocked_before_it_goes(monkeypatch: pytest.MonkeyPatch) -> None:
    calls: list[tuple[str, int]] = []
    cudart = SimpleNamespace(
        cudaHostRegister=lambda address, size, flags: calls.append(("lock", address)),
        cudaHostUnregister=lambda address: calls.append(("unlock", address)),
    )
    fake: Any = SimpleNamespace(cuda=SimpleNamespace(cudart=lambda: cudart))
    monkeypatch.setitem(sys.modules, "torch", fake)
    pool = StagingPool(1)
    image = pool.lend(MIB)
    image.pin()
    image.pin()
    image.release()
    pool.lend(10 * MIB).release()
    assert [name for name, _ in calls] == ["lock", "unlock"]
    assert len({address for _, address in calls}) == 1
    pool.close()
    assert len(calls) == 2


def test_a_buffer_that_is_used_again_gets_huge_pages(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(staging, "HUGE_BYTES", MIB)
    pool = StagingPool(1)
    for uses in (1, 2):
        image = pool.lend(4 * MIB)
        image.view[:] = bytes([uses]) * len(image.view)
        image.release()
        pool.improve()
        assert pool._free[0].is_huge == (uses == 2)
    assert memoryview(pool._free[0].memory)[: 4 * MIB] == bytes([2]) * 4 * MIB
    pool.close()
