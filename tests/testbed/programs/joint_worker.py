"""A worker that saves step after step together with others, and kills itself or the coordinator where it is told to.

python -m tests.testbed.programs.joint_worker URL FOLDER WORKER_ID WORLD_SIZE [PHASE VICTIM]

In PHASE of step 2 it kills the process VICTIM, or itself if that is "self". It prints "committed STEP" when, and only
when, a checkpoint was announced as committed, "failed STEP REASON" when it was given up, and "done" at the end.
"""

from __future__ import annotations

import os
import signal
import sys
import threading
import time
from typing import Any

import numpy as np

from strata.checkpoint import CheckpointManager, Slice
from strata.client.client import Client
from strata.errors import CheckpointError

ROWS = 60
STEPS = 4
DEADLY_STEP = 2


def state_of(step: int, part: int, parts: int) -> dict[str, Any]:
    """This worker's rows of a weight, something of its own, and something that all have."""
    rows = ROWS // parts
    weight = np.full((rows, 1000), float(step))
    return {"w": Slice(weight, (ROWS, 1000), (part * rows, 0)), f"rng{part}": np.full(7, part), "step": step}


def main() -> None:
    url, folder, worker_id, world_size = sys.argv[1:5]
    phase, victim = (*sys.argv[5:7], "", "")[:2]
    now = 0

    def on_phase(name: str) -> None:
        nonlocal phase
        if name == phase and now == DEADLY_STEP:
            phase = ""
            os.kill(os.getpid() if victim == "self" else int(victim), signal.SIGKILL)
            if victim == "self":
                threading.Event().wait()

    with (
        Client(url, worker_id, preferred_rank=int(worker_id[1:])) as client,
        CheckpointManager(folder, keep_count=None, coordinator=client, observer=on_phase) as manager,
    ):
        client.wait_registered()
        while client.get_rank_info().world_size < int(world_size):
            time.sleep(0.01)
        say("in")
        for now in range(1, STEPS + 1):
            rank_info = client.get_rank_info()
            state = state_of(now, rank_info.rank, rank_info.world_size)
            try:
                info = manager.save(state, now, generation=rank_info.generation, timeout_s=50)
            except CheckpointError as error:
                say(f"failed {now} {error}")
            else:
                assert info.committed
                say(f"committed {now}")
        say("done")


def say(line: str) -> None:
    sys.stdout.write(line + "\n")
    sys.stdout.flush()


if __name__ == "__main__":
    main()
