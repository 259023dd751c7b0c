"""What several gloo ranks hold alike is written once, in about equal shares, and compared: with a manager alone."""

from __future__ import annotations

import subprocess
import sys
import warnings
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from strata.checkpoint import CheckpointManager
from strata.errors import ConflictingPartsError
from tests.testbed.pace import stretch
from tests.testbed.process import start

pytestmark = [pytest.mark.part("torch"), pytest.mark.timeout(300)]

LARGE = 301 * 128 * 4
SHARDED = {"hsdp": 1, "fsdp_over_tp": 2, "replicated": 3, "tp": 4, "dp": 5, "tp_bias": 6, "plain": 7}
# Every tensor once, the small ones and each rank's own.
IDEAL = len(SHARDED) * LARGE + 7 * 4 + 4 + 8 + 4 * 5 * 8


@pytest.fixture(scope="module")
def saved(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("replicated")
    command = [sys.executable, "-m", "tests.testbed.programs.replicated_worker", str(folder)]
    ranks = [start([*command, str(rank)], stderr=subprocess.PIPE, text=True) for rank in range(4)]
    try:
        said = [rank.communicate(timeout=stretch(120))[1] for rank in ranks]
    finally:
        for rank in ranks:
            rank.kill()
    failed = [text for rank, text in zip(ranks, said, strict=True) if rank.returncode != 0]
    assert not failed, "\n".join(failed)
    return folder / "run"


def test_every_byte_is_on_disk_once_and_all_ranks_write_about_equally_much(saved: Path) -> None:
    sizes = [part.stat().st_size for part in (saved / "default/checkpoints/step_1").glob("*.safetensors")]
    assert len(sizes) == 4
    # Every part has a header of a few pages.
    assert IDEAL <= sum(sizes) <= IDEAL + 4 * 3 * 4096
    assert max(sizes) <= 1.25 * IDEAL / 4


def test_what_was_shared_comes_back_whole_without_a_mesh(saved: Path) -> None:
    with CheckpointManager(saved) as manager:
        data = manager.load(1).data
    first = np.arange(301 * 128, dtype="f4").reshape(301, 128)
    for name, number in SHARDED.items():
        np.testing.assert_array_equal(np.asarray(data["model"][name]), first + number, err_msg=name)
    assert [np.asarray(data[f"rng{rank}"]).tolist() for rank in range(4)] == [[rank] * 5 for rank in range(4)]
    assert (data["epoch"], int(data["optimizer"]["step"]), float(data["model"]["scalar"])) == (2, 3, 5.0)


def test_replicas_on_meshes_are_compared_also_between_meshes(saved: Path) -> None:
    with CheckpointManager(saved) as manager:
        same, other = (manager.get_by_step(step) for step in (1, 2))
    assert same is not None
    assert same.diverged is None
    assert other is not None
    assert other.diverged is not None
    # Two hold each block: nobody knows who is right, so the one that is not the first is named.
    assert (other.diverged.ranks, other.diverged.tensors) == ((3,), 2)
    assert other.diverged.tensor == "model.hsdp"


def save(folder: Path, states: list[Any], **options: Any) -> None:
    for rank, state in enumerate(states):
        with CheckpointManager(folder) as manager:
            manager.save(state, 1, part=rank, parts=len(states), **options)


def test_what_is_not_named_is_written_by_each_as_before(tmp_path: Path) -> None:
    def state(rank: int) -> dict[str, Any]:
        return {"shared": np.ones(300_000), "each": np.zeros(300_000), f"own{rank}": np.full(300_000, rank)}

    with warnings.catch_warnings():
        warnings.simplefilter("error")
        save(tmp_path, [state(rank) for rank in range(3)], replicated="shared")
        with CheckpointManager(tmp_path) as manager:
            manager.commit(1)
            data = manager.load(1).data
    size = sum(part.stat().st_size for part in tmp_path.rglob("*.safetensors"))
    assert 7 * 2_400_000 <= size <= 7 * 2_400_000 + 3 * 4096
    assert np.array_equal(data["shared"], np.ones(300_000))
    assert [data[f"own{rank}"][5] for rank in range(3)] == [0, 1, 2]


def test_a_tensor_that_is_not_held_by_all_though_it_is_said_to_be_is_an_error_that_names_it(tmp_path: Path) -> None:
    states: list[Any] = [{"a": np.ones(300_000)}, {"a": np.ones(300_000)}, {"b": 1}]
    save(tmp_path, states, replicated="*")
    with CheckpointManager(tmp_path) as manager, pytest.raises(ConflictingPartsError, match=r"a: its slices make up"):
        manager.commit(1)


@pytest.mark.parametrize("order", [("x", "y"), ("y", "x")])
def test_workers_may_have_their_keys_in_another_order(order: tuple[str, str], tmp_path: Path) -> None:
    values = {"x": np.arange(90_000.0), "y": np.arange(50_000.0) + 7}
    save(tmp_path, [values, {key: values[key] for key in order}], replicated="*")
    with CheckpointManager(tmp_path) as manager:
        manager.commit(1)
        data = manager.load(1).data
    assert all(np.array_equal(data[key], values[key]) for key in values)
