"""A training script whose model is a sum, so that every sample that is lost or seen twice shows in its state.

python -m tests.testbed.run_worker FOLDER ORDER SAVE_EVERY EPOCHS PACE_S [--local]
"""

from __future__ import annotations

import json
import sys
import time
from pathlib import Path
from typing import Any

import numpy as np

import strata


def say(**fields: Any) -> None:
    sys.stdout.write(json.dumps(fields) + "\n")
    sys.stdout.flush()


def main() -> None:
    folder, order, save_every = Path(sys.argv[1]), sys.argv[2], sys.argv[3]
    epochs, pace_s = int(sys.argv[4]), float(sys.argv[5])
    state = {"total": np.zeros(1, np.int64), "count": np.zeros(1, np.int64)}
    sizes = {"global_batch_size": 32} if order == "global" else {"batch_size": 8, "shard_size": 50}
    is_local = "--local" in sys.argv
    with strata.join(checkpoints=folder / "checkpoints", save_every=save_every, local=is_local) as run:
        data = run.dataset(folder / "data", name="d", order=order, seed=3, **sizes)
        for step in run.steps(state, data, epochs=epochs):
            with step:
                mine = np.empty(0, np.int64) if step.batch is None else step.batch["id"]
                for payload in run.exchange(f"ids/{step.number}", mine.astype("<i8").tobytes()):
                    ids = np.frombuffer(payload, "<i8")
                    state["total"] += (ids * ids).sum()
                    state["count"] += len(ids)
                time.sleep(pace_s)
                say(rank=run.rank, world_size=run.world_size, generation=run.generation, step=step.number)
        is_left = run.should_stop()
    say(left=is_left, total=int(state["total"][0]), count=int(state["count"][0]))


if __name__ == "__main__":
    main()
