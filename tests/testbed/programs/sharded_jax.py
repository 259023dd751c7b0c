"""One process of a JAX job: it saves arrays that are sharded over all devices, and restores them sharded otherwise.

python -m tests.testbed.programs.sharded_jax FOLDER PROCESS PROCESSES PORT
"""

from __future__ import annotations

import sys
import time
from contextlib import suppress
from pathlib import Path
from typing import Any

import jax
import numpy as np
from jax.sharding import Mesh, NamedSharding, PartitionSpec

from strata.checkpoint import CheckpointManager
from strata.errors import IncompleteCheckpointError

VALUES = {
    "rows": np.arange(8 * 6, dtype=np.float32).reshape(8, 6),
    "columns": np.arange(4 * 8, dtype=np.int32).reshape(4, 8),
    "both": np.arange(8 * 4, dtype=np.float32).reshape(8, 4) / 3,
    "replicated": np.arange(50_000, dtype=np.float32),
    "scalar": np.float32(7),
    "empty": np.zeros((0, 4), np.float32),
}
BEFORE = {
    "rows": ("a",),
    "columns": (None, ("a", "b")),
    "both": ("a", "b"),
    "replicated": (),
    "scalar": (),
    "empty": ("a",),
}
AFTER = {
    "rows": (None, "b"),
    "columns": ("a",),
    "both": ("b",),
    "replicated": (("a", "b"),),
    "scalar": (),
    "empty": (None, "b"),
}


def shard(name: str, axes: dict[str, tuple[Any, ...]]) -> NamedSharding:
    """How an array lies on a mesh of two rows."""
    mesh = Mesh(np.array(jax.devices()).reshape(2, -1), ("a", "b"))
    return NamedSharding(mesh, PartitionSpec(*axes[name]))


def main(folder: Path, process: int, processes: int, port: int) -> None:
    """Save, commit and restore."""
    if processes > 1:
        jax.distributed.initialize(f"127.0.0.1:{port}", processes, process)
    state = {
        name: jax.make_array_from_callback(value.shape, shard(name, BEFORE), lambda index, value=value: value[index])
        for name, value in VALUES.items()
    }
    with CheckpointManager(folder) as manager:
        manager.save(state, 1, part=process, parts=processes)
        while manager.latest() is None:
            if process == 0:
                with suppress(IncompleteCheckpointError):
                    manager.commit(1)
            time.sleep(0.1)
        shapes = {
            name: jax.ShapeDtypeStruct(value.shape, value.dtype, sharding=shard(name, AFTER))
            for name, value in VALUES.items()
        }
        for like in (shapes, state):
            restored = manager.load(1, like=like).data
            for name, value in VALUES.items():
                assert restored[name].sharding.is_equivalent_to(like[name].sharding, value.ndim), name
                for piece in restored[name].addressable_shards:
                    assert np.array_equal(np.asarray(piece.data), value[piece.index]), name


if __name__ == "__main__":
    main(Path(sys.argv[1]), int(sys.argv[2]), int(sys.argv[3]), int(sys.argv[4]))
