"""Sharded models over real gloo processes: saved as they are, restored on other meshes and numbers of ranks."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from strata.checkpoint import CheckpointManager
from tests.testbed.pace import stretch
from tests.testbed.process import start

pytestmark = [pytest.mark.part("torch"), pytest.mark.timeout(300)]


PHASES = ["fsdp:2", "fsdp:3", "none:1", "fsdp:4", "tp-fsdp:4", "hsdp:4", "tp:2", "fsdp:2", "tp-fsdp:4", "none:1"]
WORLD_SIZE = 4


@pytest.fixture(scope="module")
def saved(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """What four ranks saved in all phases; they compare every bit themselves, and this shows what they said."""
    folder = tmp_path_factory.mktemp("sharded")
    command = [sys.executable, "-m", "tests.testbed.programs.sharded_worker", str(folder)]
    ranks = [
        start([*command, str(rank), str(WORLD_SIZE), *PHASES], stderr=subprocess.PIPE, text=True)
        for rank in range(WORLD_SIZE)
    ]
    try:
        said = [rank.communicate(timeout=stretch(250))[1] for rank in ranks]
    finally:
        for rank in ranks:
            rank.kill()
    failed = [text for rank, text in zip(ranks, said, strict=True) if rank.returncode != 0]
    assert not failed, "\n".join(failed)
    return folder


def check_whole(folder: Path, step: int) -> None:
    """Compare a checkpoint, restored without a mesh, with the whole tensors that were written down."""
    import torch

    def flatten(tree: Any, path: str = "") -> dict[str, Any]:
        if isinstance(tree, dict):
            return {name: each for key, value in tree.items() for name, each in flatten(value, f"{path}/{key}").items()}
        return {path: tree.numpy()} if isinstance(tree, torch.Tensor) else {}

    with CheckpointManager(folder / "run") as manager:
        found, expected = flatten(manager.load(step).data), np.load(folder / "whole.npz")
    assert set(found) == set(expected)
    assert [name for name in expected if not np.array_equal(found[name], expected[name])] == []


def bytes_of(folder: Path, step: int) -> tuple[int, list[int]]:
    """How many bytes the tensors of a checkpoint have, and how many each rank wrote of them."""
    with CheckpointManager(folder / "run") as manager:
        manifest = manager._call(manager._engine.catalog.read(step), "the manifest", None)
    written = [0] * len(manifest.parts)
    total = 0
    for tensor in manifest.tensors.values():
        itemsize = np.dtype(tensor.dtype).itemsize
        total += int(np.prod(tensor.shape)) * itemsize
        for stored in tensor.slices:
            written[stored.part] += int(np.prod(stored.shape)) * itemsize
    return total, written


@pytest.mark.parametrize("step", range(1, len(PHASES) + 1), ids=PHASES)
def test_a_sharded_state_goes_from_mesh_to_mesh_with_every_bit_and_comes_back_without_one(
    saved: Path, step: int
) -> None:
    check_whole(saved, step)


@pytest.mark.parametrize("step", range(1, len(PHASES) + 1), ids=PHASES)
def test_each_byte_is_written_by_one_rank_and_all_write_about_equally_much(saved: Path, step: int) -> None:
    total, written = bytes_of(saved, step)
    size = sum(part.stat().st_size for part in (saved / f"run/default/checkpoints/step_{step}").glob("*.safetensors"))
    assert sum(written) == total
    # Every part has a header of whole pages.
    assert size <= total + len(written) * 3 * 4096
    assert max(written) <= 2 * total / len(written)
