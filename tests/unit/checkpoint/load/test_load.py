"""Loading into other forms: other memory, types, slices, numbers of parts, and parts of the tree."""

from __future__ import annotations

import itertools
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from strata.checkpoint import CheckpointManager, Slice
from strata.checkpoint.format.manifest import StoredSlice, StoredTensor
from strata.checkpoint.load import restore
from strata.checkpoint.load.part_reader import Reader
from strata.checkpoint.load.slicing import Wanted
from strata.errors import DamagedCheckpointError, StateMismatchError
from strata.storage import MemoryStorage

if TYPE_CHECKING:
    from collections.abc import Iterator


@dataclass(frozen=True)
class Hyper:
    lr: float
    scale: Any


class Pair(NamedTuple):
    a: Any
    b: Any


STATE = {
    "model": {"w": np.arange(12.0).reshape(3, 4), "b": np.ones(3, np.float32)},
    "hyper": Hyper(0.1, np.array([2.0])),
    "pair": Pair(np.int64(7), "x"),
    "items": [np.zeros(2), 5, (None, float("inf"))],
    "raw": b"bytes",
}


class CountingStorage(MemoryStorage):
    read_bytes = 0

    async def read_into(self, path: str, buffer: Any, *, start: int = 0) -> None:
        self.read_bytes += memoryview(buffer).nbytes
        await super().read_into(path, buffer, start=start)


@pytest.fixture
def manager() -> Iterator[CheckpointManager]:
    with CheckpointManager(storage=CountingStorage()) as manager:
        manager.save(STATE, 1)
        yield manager


def test_like_gives_the_structure_and_its_memory_is_filled(manager: CheckpointManager) -> None:
    like = {
        "model": {"w": np.zeros((3, 4))},
        "hyper": Hyper(0.0, np.zeros(1)),
        "pair": Pair(np.int64(0), ""),
        "items": [np.zeros(2), 0, (None, 0.0)],
        "raw": b"",
    }
    loaded = manager.load(like=like).data
    assert loaded["model"]["w"] is like["model"]["w"]
    assert np.array_equal(loaded["model"]["w"], STATE["model"]["w"])
    assert loaded["hyper"] == Hyper(0.1, like["hyper"].scale)
    assert loaded["hyper"].scale[0] == 2.0
    assert loaded["pair"] == Pair(7, "x")
    assert loaded["items"][1:] == [5, (None, float("inf"))]
    assert loaded["raw"] == b"bytes"
    assert "b" not in loaded["model"]


def test_another_type_or_order_is_converted(manager: CheckpointManager) -> None:
    like = {"model": {"w": np.zeros((3, 4), np.float32, order="F"), "b": np.zeros(3, np.float64)}}
    loaded = manager.load(like=like).data["model"]
    assert loaded["w"].dtype == np.float32
    assert np.array_equal(loaded["w"], np.arange(12).reshape(3, 4))
    assert loaded["b"].dtype == np.float64


@pytest.mark.parametrize(
    ("like", "path", "problem"),
    [
        ({"gone": np.zeros(1)}, "gone", "does not have it"),
        ({"model": {"w": np.zeros((4, 3))}}, r"model\.w", r"shape \(4, 3\) is expected"),
        ({"model": [1]}, "model", "items"),
        ({"model": {"w": 5}}, r"model\.w", "a plain value is expected"),
        ({"items": [1, 2]}, "items", "2 items are expected, and the checkpoint has 3"),
        ({"raw": {"x": 1}}, "raw", "no dict there"),
        ({"hyper": Hyper(np.zeros(1), np.zeros(1))}, r"hyper\.\w+", "a plain value where a tensor is expected"),
        ({"items": [np.zeros(2), 0, np.zeros(2)]}, r"items\.2", "a tuple where a tensor is expected"),
        ({"model": {"w": Slice(np.zeros((2, 4)), (3, 4), (2, 0))}}, r"model\.w", "not inside"),
    ],
)
def test_what_does_not_fit_is_named(manager: CheckpointManager, like: Any, path: str, problem: str) -> None:
    with pytest.raises(StateMismatchError, match=f"{path}.*{problem}"):
        manager.load(like=like)


def test_only_selects_by_path(manager: CheckpointManager) -> None:
    loaded = manager.load(only="model.*").data
    assert list(loaded) == ["model"]
    assert list(loaded["model"]) == ["w", "b"]
    assert manager.load(only=["*.b", "items.1"]).data == {
        "model": {"b": pytest.approx(np.ones(3))},
        "items": [None, 5, None],
        "pair": {"b": "x"},
    }
    with pytest.raises(StateMismatchError, match="nothing in the checkpoint matches"):
        manager.load(only="optimizer.*")


def test_only_the_chunks_that_are_needed_are_read() -> None:
    storage = CountingStorage()
    with CheckpointManager(storage=storage) as manager:
        manager.save({"a": np.zeros(4_000_000), "b": np.ones(1000), "c": np.ones(4_000_000)}, 1)
        assert manager.load(only="b").data["b"][0] == 1
        assert storage.read_bytes <= 2 * (4 << 20)


@pytest.mark.part("torch")
def test_torch_states_are_filled_in_place_and_meta_tensors_get_memory() -> None:
    import torch

    model = torch.nn.Linear(4, 3)
    with CheckpointManager(storage=MemoryStorage()) as manager:
        manager.save({"model": model.state_dict(), "half": torch.ones(2, dtype=torch.bfloat16)}, 1)
        other = torch.nn.Linear(4, 3)
        manager.load(like={"model": other.state_dict()})
        assert torch.equal(other.weight, model.weight)
        meta = torch.nn.Linear(4, 3, device="meta")
        loaded = manager.load(like={"model": meta.state_dict(), "half": torch.zeros(2)}).data
        assert torch.equal(loaded["model"]["weight"], model.weight)
        assert loaded["half"].dtype == torch.float32
        transposed = torch.zeros(4, 3).t()
        manager.load(like={"model": {"weight": transposed}})
        assert torch.equal(transposed, model.weight)


@pytest.mark.part("jax")
def test_jax_arrays_come_back_as_such_and_like_may_be_abstract() -> None:
    import jax

    state = {"w": jax.numpy.arange(6.0).reshape(2, 3), "b": jax.numpy.ones(2, jax.numpy.bfloat16)}
    with CheckpointManager(storage=MemoryStorage()) as manager:
        manager.save(state, 1)
        plain = manager.load().data
        like = jax.tree.map(lambda x: jax.ShapeDtypeStruct(x.shape, jax.numpy.float32), state)
        cast = manager.load(like=like).data
    for name in state:
        assert isinstance(plain[name], jax.Array)
        assert plain[name].dtype == state[name].dtype
        assert (plain[name] == state[name]).all()
        assert cast[name].dtype == jax.numpy.float32
        assert (cast[name] == state[name]).all()


def cut(data: st.DataObject, length: int) -> list[tuple[int, int]]:
    """Cut a length into pieces."""
    inner = data.draw(st.sets(st.integers(1, length - 1), max_size=3)) if length > 1 else set()
    edges = [0, *sorted(inner), length]
    return list(itertools.pairwise(edges))


@given(st.data())
def test_any_slicing_can_be_loaded_as_any_other(data: st.DataObject) -> None:
    shape = data.draw(st.tuples(st.integers(1, 6), st.integers(1, 5), st.integers(1, 4)))
    whole = np.arange(np.prod(shape), dtype=np.int32).reshape(shape)
    grid = [cut(data, length) for length in shape]
    blocks = [(a, b, c) for a in grid[0] for b in grid[1] for c in grid[2]]
    with CheckpointManager(storage=MemoryStorage()) as manager:
        for part, block in enumerate(blocks):
            piece = whole[tuple(slice(low, high) for low, high in block)]
            state = {"w": Slice(piece, shape, [low for low, _ in block]), "same": np.ones(2), f"rank{part}": part}
            manager.save(state, 1, part=part, parts=len(blocks))
        info = manager.commit(1)
        assert info.parts == len(blocks)
        loaded = manager.load().data
        assert np.array_equal(loaded["w"], whole)
        assert [loaded[f"rank{part}"] for part in range(len(blocks))] == list(range(len(blocks)))
        low = [data.draw(st.integers(0, length - 1)) for length in shape]
        high = [data.draw(st.integers(a + 1, length)) for a, length in zip(low, shape, strict=True)]
        wanted = tuple(slice(a, b) for a, b in zip(low, high, strict=True))
        target = np.zeros([b - a for a, b in zip(low, high, strict=True)], np.int32)
        got = manager.load(like={"w": Slice(target, shape, low)}).data["w"]
        assert got is target
        assert np.array_equal(got, whole[wanted])


def test_blocks_with_gaps_are_copied_in_batches_of_bounded_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    whole = np.arange(60.0).reshape(6, 10)
    monkeypatch.setattr(restore, "BATCH_BYTES", 100)
    with CheckpointManager(storage=MemoryStorage()) as manager:
        manager.save({name: whole + number for number, name in enumerate("abc")}, 1)
        like = {name: Slice(np.zeros((6, 3)), (6, 10), (0, 4)) for name in "abc"}
        restored = manager.load(like=like).data
    for number, name in enumerate("abc"):
        assert np.array_equal(restored[name], whole[:, 4:7] + number)


async def test_slices_that_leave_a_hole_are_damage_and_not_memory_without_values() -> None:
    storage = MemoryStorage()
    with CheckpointManager(storage=storage) as manager:
        await manager.save_async({"w": np.arange(8.0)}, 1)
        manifest = await manager._engine.catalog.read(1)
    whole = manifest.tensors["w"].slices[0]
    half = StoredTensor("float64", (8,), (StoredSlice(whole.part, whole.offset, (0,), (4,)),))
    holed = replace(manifest, tensors={"w": half})
    reader = Reader(storage, "default/checkpoints", holed)
    with pytest.raises(DamagedCheckpointError, match="the stored slices do not make up the tensor") as caught:
        await restore.read_blocks(holed, reader, [Wanted("w", (0,), (8,))])
    assert caught.value.tensor == "w"


def test_bytes_are_not_restored_into_a_tree() -> None:
    with CheckpointManager(storage=MemoryStorage()) as manager:
        manager.save(b"model", 1)
        assert manager.load(like=b"").data == b"model"
        with pytest.raises(StateMismatchError, match="it holds bytes, and a dict is expected"):
            manager.load(like={"w": np.zeros(3)})


def test_a_restore_says_how_far_it_is() -> None:
    seen: list[tuple[int, int]] = []
    with CheckpointManager(storage=MemoryStorage(), on_read=lambda *progress: seen.append(progress)) as manager:
        size_bytes = manager.save({"w": np.arange(3_000_000.0)}, 1).size_bytes
        manager.load()
    assert seen[-1] == (size_bytes, size_bytes)
    assert [done for done, _ in seen] == sorted({done for done, _ in seen})
