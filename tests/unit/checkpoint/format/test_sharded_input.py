"""Sharded tensors that cannot be kept or filled are refused with their path, before anything is written."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from strata.checkpoint import CheckpointManager, Slice
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
