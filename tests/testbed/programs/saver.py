"""A program that saves step after step and dies where it is told to, as by a power cut.

python -m tests.testbed.programs.saver URL PHASE STEP DELTA

It is killed in phase PHASE of step STEP. A phase is one of the manager's, or "inside-part" or "inside-manifest": in
the middle of the writing itself. Every step is printed when, and only when, it was announced as committed.
"""

from __future__ import annotations

import os
import signal
import sys
import threading
from typing import Any

import numpy as np

from strata.checkpoint import CheckpointManager, SavePolicy
from strata.storage import open_storage
from strata.storage.local import direct

SIZE = 1_500_000


def state_of(step: int) -> dict[str, Any]:
    """A state that can be told from those of all other steps; its second half changes every step."""
    weights = np.zeros(SIZE)
    weights[SIZE // 2 :] = step
    return {"w": weights, "step": step}


def die() -> None:
    os.kill(os.getpid(), signal.SIGKILL)
    threading.Event().wait()


def main() -> None:
    url, phase, step, delta = sys.argv[1], sys.argv[2], int(sys.argv[3]), sys.argv[4] == "delta"
    now = 0

    def on_phase(name: str) -> None:
        if name == phase and now == step:
            die()

    write_all = direct.FileSink._write_all
    state = {"written": 0}

    def write_half(self: Any, view: memoryview, offset: int) -> None:
        state["written"] += len(view)
        if now == step and phase == "inside-part" and state["written"] > 4 << 20:
            os.pwrite(self._fd, view[:4096], offset)
            die()
        if now == step and phase == "inside-manifest" and len(view) < 1 << 20 and bytes(view[:10]) == b'{"format":':
            os.pwrite(self._fd, view[: len(view) // 2], offset)
            die()
        write_all(self, view, offset)

    direct.FileSink._write_all = write_half
    manager = CheckpointManager(
        storage=open_storage(url), keep_count=2, saving=SavePolicy(delta=delta), observer=on_phase
    )
    for now in range(1, step + 2):
        state["written"] = 0
        manager.save(state_of(now), now)
        sys.stdout.write(f"{now}\n")
        sys.stdout.flush()
        manager.wait_pending()
    manager.close()


if __name__ == "__main__":
    main()
