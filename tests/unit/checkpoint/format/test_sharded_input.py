"""Sharded tensors that cannot be kept or filled are refused with their path, before anything is written."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from strata.checkpoint import CheckpointManager, Slice
from strata.checkpoint.format.sharded import Replica, Sharding, count_processes
from strata.errors import StateMismatchError, UnsavableStateError
from tests.testbed.parts import LazyModule

torch: Any = LazyModule("torch")
pytestmark = pytest.mark.part("torch")


@pytest.fixture
def mesh(tmp_path: Path) -> Iterator[Any]:
    import torch.distributed as dist
    from torch.distributed.device_mesh import DeviceMesh

    dist.init_process_group("gloo", init_method=f"file://{tmp_path}/meet", rank=0, world_size=1)
    yield DeviceMesh("cpu", [0])
    dist.destroy_process_group()


def test_what_has_no_values_or_only_a_part_of_a_sum_is_refused(mesh: Any, tmp_path: Path) -> None:
    from torch.distributed.tensor import DTensor, Partial, Shard

    whole = DTensor.from_local(torch.ones(4, 3), mesh, [Shard(0)])
    bad = {
        "partial sum": DTensor.from_local(torch.ones(4), mesh, [Partial()]),
        "meta device": DTensor.from_local(torch.ones(4, device="meta"), mesh, [Shard(0)]),
        "without strata.checkpoint.Slice": Slice(whole, (4, 3), (0, 0)),
    }
    with CheckpointManager(tmp_path / "run") as manager:
        for problem, value in bad.items():
            with pytest.raises(UnsavableStateError, match=f"model.w .*{problem}"):
                manager.save({"model": {"w": value}}, 1)
        assert manager.list_checkpoints() == []


def test_a_dtensor_is_filled_in_place_or_made_and_a_wrong_shape_is_named(mesh: Any, tmp_path: Path) -> None:
    from torch.distributed.tensor import DTensor, Shard

    def shard(values: Any) -> Any:
        return DTensor.from_local(values, mesh, [Shard(1)])

    values = torch.arange(12.0).reshape(4, 3)
    with CheckpointManager(tmp_path / "run") as manager:
        manager.save({"w": shard(values)}, 1)
        assert torch.equal(manager.load().data["w"], values)
        there = shard(torch.zeros(4, 3))
        assert manager.load(like={"w": there}).data["w"] is there
        assert torch.equal(there.to_local(), values)
        made = manager.load(like={"w": shard(torch.zeros(4, 3, device="meta", dtype=torch.float64))}).data["w"]
        assert torch.equal(made.to_local(), values.double())
        with pytest.raises(StateMismatchError, match=r"w.*shape \(4, 4\) is expected"):
            manager.load(like={"w": shard(torch.zeros(4, 4))})


@contextmanager
def ranked(rank: int, world_size: int) -> Iterator[None]:
    """Make this process one of several ranks, of which the others are not there: layouts need no communication."""
    import torch.distributed as dist
    from torch.testing._internal.distributed.fake_pg import FakeStore

    dist.init_process_group("fake", store=FakeStore(), rank=rank, world_size=world_size)
    try:
        yield
    finally:
        dist.destroy_process_group()


def lay_out(local: Any, ranks: Any, *placements: Any, shape: tuple[int, ...] | None = None) -> Any:
    from torch.distributed.device_mesh import DeviceMesh
    from torch.distributed.tensor import DTensor

    more = {} if shape is None else {"shape": torch.Size(shape), "stride": torch.empty(shape, device="meta").stride()}
    return DTensor.from_local(local, DeviceMesh("cpu", ranks), placements, run_check=False, **more)


def test_a_tensor_of_which_a_rank_holds_several_blocks_comes_back_whole_and_is_filled_in_place(tmp_path: Path) -> None:
    """The layout that sharded data parallel leaves on top of tensor parallel once the latter is gathered."""
    from torch.distributed.tensor import Replicate
    from torch.distributed.tensor.placement_types import _StridedShard

    whole, strided = torch.arange(24.0).reshape(8, 3), _StridedShard(0, split_factor=2)
    pieces, _ = strided._split_tensor(whole, 2, with_padding=False)
    assert pieces[0][:, 0].tolist() == [0, 3, 12, 15]

    def shard(local: Any) -> Any:
        return lay_out(local, torch.arange(4).reshape(2, 2), strided, Replicate(), shape=(8, 3))

    with CheckpointManager(tmp_path / "run") as manager:
        for rank in range(4):
            with ranked(rank, 4):
                tensor = shard(pieces[rank // 2].clone())
                assert count_processes(tensor) == 4
                manager.save({"w": tensor}, 1, part=rank, parts=4)
        manager.commit(1)
        assert torch.equal(manager.load().data["w"], whole)
        for rank in range(4):
            with ranked(rank, 4):
                there = shard(torch.zeros(4, 3))
                assert manager.load(like={"w": there}).data["w"] is there
                assert torch.equal(there.to_local(), pieces[rank // 2])


def test_a_rank_that_is_not_in_the_mesh_of_a_tensor_saves_nothing_of_it(tmp_path: Path) -> None:
    from torch.distributed.tensor import Replicate, Shard

    values = torch.arange(4.0)
    with CheckpointManager(tmp_path / "run") as manager:
        for rank in range(3):
            with ranked(rank, 3):
                local = values[2 * rank - 2 : 2 * rank] if rank else torch.zeros(2)
                state = {
                    "halves": lay_out(local, [1, 2], Shard(0)),
                    "both": lay_out(values.clone(), [1, 2], Replicate()),
                }
                manager.save(state, 1, part=rank, parts=3)
        manager.commit(1)
        restored = manager.load().data
    assert restored["halves"].tolist() == restored["both"].tolist() == values.tolist()


@pytest.mark.parametrize("meshes", [[[0, 1], [2, 3]], [[0, 1, 2, 3]]], ids=["two meshes alike", "one mesh of all"])
def test_what_several_meshes_hold_alike_is_written_once(tmp_path: Path, meshes: list[list[int]]) -> None:
    from torch.distributed.tensor import Shard

    values = torch.arange(40_000.0)
    with CheckpointManager(tmp_path / "run") as manager:
        for rank in range(4):
            (mesh,) = [ranks for ranks in meshes if rank in ranks]
            local = values.chunk(len(mesh))[mesh.index(rank)].clone()
            with ranked(rank, 4):
                manager.save({"w": lay_out(local, mesh, Shard(0))}, 1, part=rank, parts=4, replicated="w")
        manager.commit(1)
        assert torch.equal(manager.load().data["w"], values)
    written = sum(path.stat().st_size for path in (tmp_path / "run").rglob("*.safetensors"))
    assert values.nbytes <= written < 1.5 * values.nbytes


def test_a_mesh_that_does_not_divide_the_ranks_is_saved_as_it_is(tmp_path: Path) -> None:
    from torch.distributed.tensor import Replicate

    values = torch.arange(4.0)
    with CheckpointManager(tmp_path / "run") as manager:
        for rank in range(3):
            with ranked(rank, 3):
                state = {"w": lay_out(values.clone(), [0, 1], Replicate())} if rank < 2 else {"rest": 1}
                manager.save(state, 1, part=rank, parts=3, replicated="w")
        manager.commit(1)
        assert manager.load().data["w"].tolist() == values.tolist()


def test_a_sharded_tensor_that_is_not_what_its_layout_says_is_refused_with_its_path(tmp_path: Path) -> None:
    from torch.distributed.tensor import Shard

    with ranked(0, 2), CheckpointManager(tmp_path / "run") as manager:
        bad = {
            "elements of type bits8": lay_out(torch.empty(2, dtype=torch.bits8), [0, 1], Shard(0)),
            "conjugate or negative view": lay_out(torch.ones(2, dtype=torch.complex64).conj(), [0, 1], Shard(0)),
            "has 3 elements here, and its placements .* say 2": lay_out(torch.ones(3), [0, 1], Shard(0), shape=(4,)),
            "is a DTensor: give it as it is": Replica(lay_out(torch.ones(2), [0, 1], Shard(0)), 0, 2),
            "of type object": Replica(object(), 0, 2),
        }
        for problem, value in bad.items():
            with pytest.raises(UnsavableStateError, match=f"model.w .*{problem}"):
                manager.save({"model": {"w": value}}, 1, part=0, parts=2)


def test_a_sharded_tensor_that_cannot_be_filled_is_refused_with_its_path(mesh: Any, tmp_path: Path) -> None:
    from torch.distributed.tensor import DTensor, Partial, Shard

    there = DTensor.from_local(torch.zeros(4), mesh, [Shard(0)])
    bad = {
        "spread over ranks already: give it as it is, without Slice": Slice(there, (4,), (0,)),
        "a DTensor that is a partial sum": DTensor.from_local(torch.zeros(4), mesh, [Partial()]),
        "the checkpoint has no dict there": Sharding({0: there}),
    }
    with CheckpointManager(tmp_path / "run") as manager:
        manager.save({"w": torch.ones(4)}, 1)
        for problem, value in bad.items():
            with pytest.raises(StateMismatchError, match=f"w: .*{problem}"):
                manager.load(like={"w": value})


def test_a_dict_is_sharded_by_example_where_torch_has_the_type(mesh: Any, tmp_path: Path) -> None:
    from torch.distributed.tensor import DTensor, Shard

    template = DTensor.from_local(torch.zeros(4), mesh, [Shard(0)])
    state = {"moment": torch.arange(4.0), "days": np.zeros(4, "M8[D]"), "step": torch.tensor(3)}
    with CheckpointManager(tmp_path / "run") as manager:
        manager.save({"state": {0: state, 1: {"step": 5}}}, 1)
        found = manager.load(like={"state": Sharding({0: template})}).data["state"]
    assert isinstance(found[0]["moment"], DTensor)
    assert found[0]["moment"].to_local().tolist() == [0, 1, 2, 3]
    assert found[0]["days"].dtype == "M8[D]"
    assert (found[0]["step"].item(), found[1]) == (3, {"step": 5})
