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


# In a process of its own: how many devices the processor counts as is said once, before JAX begins.
ALONE = """
import sys
import jax, numpy as np
from jax.sharding import Mesh, NamedSharding, PartitionSpec
from strata.checkpoint import CheckpointManager
from strata.checkpoint.format.sharded import Sharding, count_processes
from strata.checkpoint.load import fitting
from strata.errors import UnsavableStateError

rows = NamedSharding(Mesh(np.array(jax.devices()), ("a",)), PartitionSpec("a"))
weight = jax.device_put(np.arange(8, dtype=np.float32), rows)
print("processes", count_processes(weight), count_processes(np.ones(3)))
with CheckpointManager(sys.argv[1]) as manager:
    for dtype in (np.float32, jax.dtypes.float0):
        try:
            manager.save({"w": jax.ShapeDtypeStruct((8,), dtype, sharding=rows)}, 1)
        except UnsavableStateError as error:
            print("refused", error)
    moments = {"mean": np.arange(8.0), "bits": np.ones(8, np.uint8), "count": 3, "short": np.ones(2, np.float32)}
    manager.save({"state": {0: moments}}, 1)
    found = manager.load(like={"state": Sharding({0: weight})}).data["state"][0]
    # As of a type that only torch has.
    known, fitting.numpy_dtype = fitting.numpy_dtype, lambda name: None if name == "uint8" else known(name)
    unknown = manager.load(like={"state": Sharding({0: weight})}).data["state"][0]
for name in ("mean", "bits"):
    print(name, found[name].sharding == rows, found[name].dtype, np.array_equal(found[name], moments[name]))
print("short", type(found["short"]).__name__, "count", found["count"])
print("unknown", type(unknown["bits"]).__name__, unknown["mean"].sharding == rows)
"""


def test_a_dict_is_sharded_by_example_and_what_has_no_values_is_refused(tmp_path: Path) -> None:
    environment = {**os.environ, "XLA_FLAGS": "--xla_force_host_platform_device_count=4", "JAX_PLATFORMS": "cpu"}
    command = [sys.executable, "-c", ALONE, str(tmp_path)]
    with start(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=environment) as process:
        said, complaints = process.communicate(timeout=stretch(200))
    assert process.returncode == 0, complaints
    processes, abstract, untyped, *found = said.splitlines()
    assert processes == "processes 1 1"
    assert abstract.startswith("refused w is of type ShapeDtypeStruct")
    assert "has no values" in abstract
    assert "which a file cannot hold" in untyped
    assert found == ["mean True float64 True", "bits True uint8 True", "short ndarray count 3", "unknown ndarray True"]
