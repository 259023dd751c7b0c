"""A process with one replica of a state, which restores it, and saves more steps together with the others.

python -m tests.testbed.programs.replica_worker FOLDER RANK WORLD_SIZE STEPS [CORRUPT] [URL]

CORRUPT is a list like "2:1,3:1": before step 2 and before step 3, a bit of the replica of rank 1 flips. It prints "at
STEP" when it has restored a step (0 for none), "saved STEP" when its part is durable or committed, and "done".
With URL it saves through that coordinator; without one nobody commits what it saves.
"""

from __future__ import annotations

import sys
import time
from contextlib import ExitStack

import numpy as np

from strata.checkpoint import CheckpointManager
from strata.client.client import Client
from strata.errors import CheckpointNotFoundError

SIZE = 400_000


def weights(step: int) -> np.ndarray[tuple[int], np.dtype[np.float64]]:
    """The tensor as all replicas should hold it."""
    return np.arange(SIZE, dtype=np.float64) + 1_000 * step


def main() -> None:
    folder, rank, world_size, steps, corrupt, url = (*sys.argv[1:7], "", "")[:6]
    flips = {each for each in corrupt.split(",") if each}
    with ExitStack() as stack:
        client = None
        if url:
            client = stack.enter_context(Client(url, f"w{rank}", preferred_rank=int(rank)))
            client.wait_registered()
            while client.get_rank_info().world_size < int(world_size):
                time.sleep(0.01)
        manager = stack.enter_context(CheckpointManager(folder, keep_count=None, coordinator=client))
        place = {} if client else {"part": int(rank), "parts": int(world_size)}
        try:
            began = manager.load().step
        except CheckpointNotFoundError:
            began = 0
        say(f"at {began}")
        for step in range(began + 1, int(steps) + 1):
            state = {"w": weights(step), "b": np.full(7, float(step)), "step": step}
            if f"{step}:{rank}" in flips:
                # In every chunk, and so in whatever this rank writes of it.
                state["w"][::1_000] += 1
            manager.save_background(state, step, replicated="*", **place).result(50)
            say(f"saved {step}")
        say("done")


def say(line: str) -> None:
    sys.stdout.write(line + "\n")
    sys.stdout.flush()


if __name__ == "__main__":
    main()
