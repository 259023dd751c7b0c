"""Sharded jax.Arrays over several devices and processes: saved as they are, restored with another sharding."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from strata.checkpoint import CheckpointManager
from tests.testbed.pace import stretch
from tests.testbed.process import free_ports, start

pytestmark = [pytest.mark.part("jax"), pytest.mark.timeout(240)]


@pytest.mark.parametrize("processes", [1, 2])
def test_sharded_arrays_come_back_with_another_sharding_and_without_one(tmp_path: Path, processes: int) -> None:
    from tests.testbed.programs.sharded_jax import VALUES

    devices = f"--xla_force_host_platform_device_count={4 // processes}"
    environment = {**os.environ, "XLA_FLAGS": devices, "JAX_PLATFORMS": "cpu"}
    command = [sys.executable, "-m", "tests.testbed.programs.sharded_jax", str(tmp_path)]
    (port,) = free_ports(1)
    workers = [
        start(
            [*command, str(process), str(processes), str(port)],
            stderr=subprocess.PIPE,
            text=True,
            env=environment,
        )
        for process in range(processes)
    ]
    try:
        said = [worker.communicate(timeout=stretch(200))[1] for worker in workers]
    finally:
        for worker in workers:
            worker.kill()
    assert [worker.returncode for worker in workers] == [0] * processes, "\n".join(said)
    with CheckpointManager(tmp_path) as manager:
        restored = manager.load().data
        manifest = manager._call(manager._engine.catalog.read(1), "the manifest", None)
    for name, value in VALUES.items():
        assert np.array_equal(np.asarray(restored[name]), value), name
    total = sum(value.nbytes for value in VALUES.values())
    written = [0] * processes
    for tensor in manifest.tensors.values():
        for stored in tensor.slices:
            written[stored.part] += int(np.prod(stored.shape, dtype=int)) * np.dtype(tensor.dtype).itemsize
    assert sum(written) == total
    assert max(written) < 0.6 * total or processes == 1
