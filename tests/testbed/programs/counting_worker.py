"""A worker whose model counts how often it has seen each sample, and nothing else.

python -m tests.testbed.programs.counting_worker FOLDER ORDER EPOCHS PACE_S

The counts are exchanged at every step like gradients, so all workers hold the same ones, and a checkpoint holds them:
what it says about the samples is proof, whatever the data position says.
"""

from __future__ import annotations

import sys
import time
from pathlib import Path

import numpy as np

import strata

SAMPLES = 1_200
BATCH = 4


def main() -> None:
    folder, order, epochs, pace_s = Path(sys.argv[1]), sys.argv[2], int(sys.argv[3]), float(sys.argv[4])
    state = {"seen": np.zeros((epochs, SAMPLES), np.int64)}
    size = {"global_batch_size": 4 * BATCH} if order == "global" else {"batch_size": BATCH}
    with strata.join(checkpoints=folder / "checkpoints", save_every="5 steps") as run:
        data = run.dataset(folder / "data", name="numbers", order=order, shard_size=40, seed=5, **size)
        for step in run.steps(state, data, epochs=epochs):
            with step:
                ids = np.empty(0, np.int64) if step.batch is None else np.asarray(step.batch["id"], np.int64)
                everyone = run.exchange(f"ids/{step.number}", np.append(ids, step.epoch).tobytes())
                for each in everyone:
                    *seen, epoch = np.frombuffer(each, np.int64)
                    np.add.at(state["seen"], (epoch, np.array(seen, np.int64)), 1)
                sys.stdout.write(f"{step.number}\n")
                sys.stdout.flush()
                time.sleep(pace_s)


if __name__ == "__main__":
    main()
