"""The training script of the demonstration.

    python -m strata.demo.worker FOLDER EPOCHS PACE_S [--local]

It writes one JSON object a line to stdout, and which samples it saw in which step to a file: the proofs read that, and
rely on no other record.
"""

from __future__ import annotations

import json
import os
import sys
import time
from pathlib import Path
from typing import IO, Any

import numpy as np

import strata
from strata.checkpoint import SaveHandle
from strata.demo.model import BATCH_SIZE, BLOCK_SIZE, apply_gradients, block_gradients, make_state
from strata.run.loop.run import Run

DATASET = "demo"
SAVE_EVERY_STEPS = 10
# While a file of this name is in the folder, steps take their time: as many seconds as it says, or SLOW_S.
SLOW = "slow"
SLOW_S = 0.2


def main() -> None:
    """Train with what the command line says."""
    train(Path(sys.argv[1]), epochs=int(sys.argv[2]), pace_s=float(sys.argv[3]), is_local="--local" in sys.argv)


def train(folder: Path, *, epochs: int, pace_s: float, is_local: bool, checkpoints: str | Path | None = None) -> None:
    """Train, as any script would; ``checkpoints`` is where they go, by default into the folder."""
    if checkpoints is None:
        checkpoints = folder / ("reference" if is_local else "checkpoints")
    state = make_state()
    with (
        strata.join(
            checkpoints=checkpoints,
            save_every=f"{SAVE_EVERY_STEPS} steps",
            local=is_local,
            checkpoint_options={"keep_count": None},
        ) as run,
        _open_seen(folder / ("reference-seen" if is_local else "seen"), run.worker_id) as seen,
    ):
        data = run.dataset(
            str(folder / "data"),
            name=DATASET,
            order="global",
            global_batch_size=BATCH_SIZE,
            block_size=BLOCK_SIZE,
            seed=7,
        )
        saves = _Saves()
        for step in run.steps(state, data, epochs=epochs):
            with step:
                assert step.batch is not None
                gradients, loss = block_gradients(state, step.batch["x"], step.batch["y"])
                everyone = run.exchange(f"gradients/{step.number}", gradients.tobytes())
                apply_gradients(state, everyone)
                _write_seen(seen, run, step.number, step.epoch, step.batch["id"])
                step.report(loss=loss)
                time.sleep(_pause_s(folder, pace_s))
                saves.follow(run)
                _say(
                    rank=run.rank,
                    world_size=run.world_size,
                    generation=run.generation,
                    step=step.number,
                    epoch=step.epoch,
                    loss=loss / max(1, len(step.batch["id"])),
                )
        saves.follow(run)


def _pause_s(folder: Path, pace_s: float) -> float:
    try:
        return float((folder / SLOW).read_text() or SLOW_S)
    except FileNotFoundError:
        return pace_s


class _Saves:
    """Says how each save went, once it has ended."""

    def __init__(self) -> None:
        self._under_way: list[SaveHandle] = []
        self._last: SaveHandle | None = None

    def follow(self, run: Run) -> None:
        if run.last_save is not None and run.last_save is not self._last:
            self._last = run.last_save
            self._under_way.append(run.last_save)
        ended = [each for each in self._under_way if each.done()]
        self._under_way = [each for each in self._under_way if each not in ended]
        for each in ended:
            if each.took_s is not None:
                _say(saved=each.step, size_bytes=each.bytes_total, took_s=each.took_s, blocked_s=each.blocked_s)


def _say(**fields: Any) -> None:
    sys.stdout.write(json.dumps(fields) + "\n")
    sys.stdout.flush()


def _open_seen(folder: Path, worker_id: str) -> IO[bytes]:
    folder.mkdir(exist_ok=True)
    return (folder / f"{worker_id}-{os.getpid()}").open("ab", buffering=0)


def _write_seen(seen: IO[bytes], run: Run, step: int, epoch: int, ids: Any) -> None:
    # One write for one record: a kill leaves all of it or none.
    record = np.concatenate(([run.generation, step, epoch, len(ids)], np.asarray(ids, np.int64)))
    seen.write(record.astype("<i8").tobytes())


if __name__ == "__main__":
    main()
