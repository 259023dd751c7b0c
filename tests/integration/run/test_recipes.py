"""The recipes for sharded models run, are stopped, and go on at another number of ranks or devices."""

from __future__ import annotations

import os
import sys
from pathlib import Path

import pytest

from strata import CheckpointManager
from tests.testbed.coordinator import CoordinatorProcess
from tests.testbed.pace import stretch
from tests.testbed.process import run_program

pytestmark = [pytest.mark.full, pytest.mark.timeout(300)]

EXAMPLES = Path(__file__).parents[3] / "examples"
ENVIRONMENT = {**os.environ, "OMP_NUM_THREADS": "1"}


def call(*command: str | Path, **environment: str) -> str:
    done = run_program(
        [sys.executable, *map(str, command)],
        capture_output=True,
        text=True,
        timeout=stretch(200),
        check=False,
        env={**ENVIRONMENT, **environment},
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    call(EXAMPLES / "make_data.py", tmp_path)
    return tmp_path


@pytest.mark.slow
@pytest.mark.part("torch")
@pytest.mark.parametrize(("name", "counts"), [("fsdp2", (2, 3)), ("tensor_parallel", (4, 2))])
def test_sharded_torch_models_go_on_at_another_number_of_ranks(
    name: str, counts: tuple[int, int], folder: Path
) -> None:
    coordinator = CoordinatorProcess(folder)
    with coordinator.serving():
        for until, count in zip((12, 16), counts, strict=True):
            output = call(
                "-m",
                "torch.distributed.run",
                f"--nproc-per-node={count}",
                "--nnodes=1",
                "--local-addr=127.0.0.1",
                "--rdzv-backend=strata",
                f"--rdzv-id=until-{until}",
                f"--rdzv-endpoint={coordinator.url}",
                EXAMPLES / f"{name}.py",
                folder,
                str(until),
                COORDINATOR_URL=coordinator.url,
            )
            assert output.count(f"of {count}: step {until}") == count
    with CheckpointManager(folder / name) as manager:
        assert manager.list_checkpoints()[-3:] == [10, 12, 16]
        assert [info.diverged for info in manager.all_checkpoints()[-3:]] == [None] * 3
        restored = manager.load().data
    assert tuple(restored["model"]["0.weight"].shape)[1] == 64
    assert {float(each["step"]) for each in restored["optimizer"]["state"].values()} == {16.0}


@pytest.mark.part("jax")
def test_sharded_jax_arrays_go_on_at_another_number_of_devices(folder: Path) -> None:
    for until, count in ((12, 4), (16, 2), (20, 1)):
        flags = f"--xla_force_host_platform_device_count={count}"
        output = call(EXAMPLES / "jax_sharded.py", folder, str(until), XLA_FLAGS=flags, JAX_PLATFORMS="cpu")
        assert f"{count} shards: step {until}" in output
    with CheckpointManager(folder / "jax_sharded") as manager:
        assert manager.list_checkpoints()[-3:] == [12, 16, 20]
