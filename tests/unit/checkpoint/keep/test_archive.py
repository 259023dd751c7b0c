"""Exports are whole or not there, and a comparison names what differs."""

from __future__ import annotations

import asyncio
import json
import os
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest

from strata.checkpoint import CheckpointManager, Slice
from strata.checkpoint.keep import archive as archive_module
from strata.checkpoint.keep import comparison
from strata.checkpoint.keep.archive import Archive, Deep
from strata.errors import CheckpointNotFoundError, DamagedRecordError
from strata.storage import MemoryStorage

if TYPE_CHECKING:
    from pathlib import Path


def ignore(count: int) -> None:
    pass


async def test_an_export_of_many_parts_is_one_file_with_whole_tensors(tmp_path: Path) -> None:
    storage = MemoryStorage()
    with CheckpointManager(storage=storage) as manager:
        whole = np.arange(12.0).reshape(4, 3)
        for part in range(2):
            piece = Slice(whole[part * 2 : part * 2 + 2], whole.shape, (part * 2, 0))
            await asyncio.to_thread(manager.save, {"w": piece, "b": np.ones(2)}, 1, part=part, parts=2)
        await asyncio.to_thread(manager.commit, 1)
    archive = Archive(storage, "default")
    target = tmp_path / "model.safetensors"
    await archive.export(await archive.read(1), target, ignore)
    data = target.read_bytes()
    length = int.from_bytes(data[:8], "little")
    header = json.loads(data[8 : 8 + length])
    start, end = header["w"]["data_offsets"]
    exported = np.frombuffer(data[8 + length + start : 8 + length + end], "<f8").reshape(header["w"]["shape"])
    assert np.array_equal(exported, whole)


async def test_an_export_that_is_interrupted_leaves_nothing(tmp_path: Path) -> None:
    reached = asyncio.Event()

    class StuckStorage(MemoryStorage):
        async def read_into(self, path: str, buffer: Any, *, start: int = 0) -> None:
            reached.set()
            await asyncio.Event().wait()

    storage = StuckStorage()
    with CheckpointManager(storage=storage) as manager:
        await manager.save_async({"w": np.ones(3)}, 1)
    archive = Archive(storage, "default")
    export = asyncio.create_task(archive.export(await archive.read(1), tmp_path / "x", ignore))
    await reached.wait()
    export.cancel()
    with pytest.raises(asyncio.CancelledError):
        await export
    assert os.listdir(tmp_path) == []  # noqa: PTH208 - nothing else runs here


async def test_a_comparison_names_every_difference() -> None:
    storage = MemoryStorage()
    with CheckpointManager(storage=storage) as manager:
        one = {"same": np.ones(5), "w": np.zeros(5), "t": np.ones(2), "s": np.ones(2), "gone": np.ones(1), "lr": 0.1}
        two: dict[str, Any] = {
            **one,
            "w": np.array([0, 0, 1, 0, 2.0]),
            "t": np.ones(2, int),
            "s": np.ones(3),
            "lr": 0.2,
        }
        del two["gone"]
        two["new"] = np.ones(1)
        await manager.save_async(one, 1)
        await manager.save_async(two, 2)
    archive = Archive(storage, "default")
    found = await archive.diff(await archive.read(1), await archive.read(2), ignore)
    assert [(each.name, each.change, each.detail) for each in found] == [
        ("gone", "removed", "tensor"),
        ("lr", "values", "0.1 -> 0.2"),
        ("new", "added", "tensor"),
        ("s", "shape", "[2] -> [3]"),
        ("t", "type", "float64 -> int64"),
        ("w", "values", "2 of 5 elements"),
    ]


@pytest.mark.parametrize("record", [b"[" * 100_000, b"\xff", b"{}", b'{"at_s": 1' + b"0" * 400 + b"}"])
async def test_a_record_of_a_rewind_that_cannot_be_read_is_named(record: bytes) -> None:
    storage = MemoryStorage()
    await storage.write("default/checkpoints/rewinds/00001.json", record)
    with (
        CheckpointManager(storage=storage) as manager,
        pytest.raises(DamagedRecordError, match=r"default/checkpoints/rewinds/00001\.json"),
    ):
        await manager.load_async()


async def saved(*states: Any) -> Archive:
    """An archive with one step for each state, from 1 on."""
    storage = MemoryStorage()
    with CheckpointManager(storage=storage) as manager:
        for step, state in enumerate(states, start=1):
            await manager.save_async(state, step)
    return Archive(storage, "default")


async def differences(left: Any, right: Any) -> list[tuple[str, str, str]]:
    archive = await saved(left, right)
    found = await archive.diff(await archive.read(1), await archive.read(2), ignore)
    return [(each.name, each.change, each.detail) for each in found]


@pytest.mark.parametrize(
    ("left", "right", "expected"),
    [
        (b"one", b"three", [("model.bin", "values", "3 -> 5 bytes")]),
        (b"one", b"one", []),
        (b"one", {"lr": 1}, [("(state)", "type", "bytes and a tree")]),
        ({"lr": 1, "old": 2}, {"lr": 1}, [("old", "removed", "plain value")]),
        ({"lr": 1}, {"lr": 1, "new": 2}, [("new", "added", "plain value")]),
        ({"x": [1]}, {"x": (1,)}, [("(state)", "type", "kinds of containers, keys or tensors, or empty containers")]),
    ],
)
@pytest.mark.filterwarnings("ignore:.*bit-identical")
async def test_a_comparison_tells_bytes_trees_and_plain_values_apart(
    left: Any, right: Any, expected: list[tuple[str, str, str]]
) -> None:
    assert await differences(left, right) == expected


async def test_bytes_are_exported_as_they_were(tmp_path: Path) -> None:
    archive, sizes = await saved(b"raw bytes"), []
    await archive.export(await archive.read(1), tmp_path / "model.bin", sizes.append)
    assert (tmp_path / "model.bin").read_bytes() == b"raw bytes"
    assert sizes == [9]


async def test_many_tensors_are_read_in_groups_and_none_is_left_out(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    state = {f"t{number}": np.full(number + 1, number, np.float32) for number in range(7)}
    archive = await saved(state, {name: each + (name in ("t2", "t6")) for name, each in state.items()})
    whole = tmp_path / "whole"
    await archive.export(await archive.read(1), whole, ignore)
    monkeypatch.setattr(archive_module, "GROUP_BYTES", 20)
    found = await archive.diff(await archive.read(1), await archive.read(2), ignore)
    assert [each.name for each in found] == ["t2", "t6"]
    await archive.export(await archive.read(1), tmp_path / "grouped", ignore)
    assert (tmp_path / "grouped").read_bytes() == whole.read_bytes()


async def test_a_deep_check_names_what_is_not_finite_and_what_it_cannot_read(monkeypatch: pytest.MonkeyPatch) -> None:
    odd = np.array([1, np.nan, np.inf], np.float32)
    archive = await saved({"good": np.ones(3), "odd": odd, "unknown": np.ones(2, np.float16)})
    manifest = await archive.read(1)
    assert await archive.verify_deeply(manifest, ignore) == Deep(3, {"odd": 2}, [])
    known = comparison.numpy_dtype
    monkeypatch.setattr(comparison, "numpy_dtype", lambda name: None if name == "float16" else known(name))
    assert await archive.verify_deeply(manifest, ignore) == Deep(3, {"odd": 2}, ["unknown"])


async def test_a_job_that_is_not_there_is_told_from_a_path_that_is_wrong(monkeypatch: pytest.MonkeyPatch) -> None:
    storage = MemoryStorage()
    with pytest.raises(CheckpointNotFoundError, match="there is nothing at this path"):
        await Archive(storage, "run").require()
    await storage.write("a/other", b"")
    with pytest.raises(CheckpointNotFoundError, match=r"there are no checkpoints; is the path right\?"):
        await Archive(storage, "run").scan()
    await storage.write("b/checkpoints/step_1/x", b"")
    with pytest.raises(CheckpointNotFoundError, match="there is no job 'run'; choose with --job: b"):
        await Archive(storage, "run").require()
    # In a bucket full of other things, not all of them are looked at.
    monkeypatch.setattr(archive_module, "LOOK_OBJECTS", 1)
    with pytest.raises(CheckpointNotFoundError, match=r"there are no checkpoints; is the path right\?"):
        await Archive(storage, "run").require()
