"""A training script whose model is a sum, so that every sample that is lost or seen twice shows in its state.

python -m tests.testbed.programs.run_worker FOLDER ORDER SAVE_EVERY EPOCHS PACE_S [--local] [--by-hand]
                                            [--packed=STRATEGY]
"""

from __future__ import annotations

import json
import sys
import time
from pathlib import Path
from typing import Any

import numpy as np

import strata
from strata.data import open_dataset
from strata.data.text.assembled import AssembledDataset, bucket_dataset, pack_dataset


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
        packing = next((each.partition("=")[2] for each in sys.argv if each.startswith("--packed=")), None)
        if packing is None:
            data = run.dataset(folder / "data", name="d", order=order, seed=3, **sizes)
        else:
            data = run.dataset(open_packed(folder / "data", packing, order), name="d")
        try:
            (train_by_hand if "--by-hand" in sys.argv else train)(run, state, data, epochs, pace_s)
        except strata.Stopped as stopped:
            say(left=True, saved=stopped.is_saved)
            raise
    say(left=False, total=int(state["total"][0]), count=int(state["count"][0]))


def train(run: strata.Run, state: dict[str, Any], data: strata.RunDataset, epochs: int, pace_s: float) -> None:
    for step in run.steps(state, data, epochs=epochs):
        with step:
            learn(run, state, step.number, step.batch, pace_s)


def train_by_hand(run: strata.Run, state: dict[str, Any], data: strata.RunDataset, epochs: int, pace_s: float) -> None:
    """Do what ``run.steps`` does, as docs/run.md shows it."""
    step = run.restore(state)
    while data.epoch < epochs:
        try:
            for batch in data:
                learn(run, state, step + 1, batch, pace_s)
                step += 1
                run.step(step)
                if run.should_save():
                    run.save(state)
                if run.should_stop():
                    run.stop()
        except strata.Reconfigure:
            step = run.restore(state)
    if step > run.restored_step:
        run.save(state).result()


def open_packed(folder: Path, strategy: str, order: str) -> AssembledDataset:
    """Open documents of one to seven tokens, all of them the number of the row."""
    documents = open_dataset(folder, batch_size=8, shard_size=50, order=order, seed=3, transform=make_documents)
    size = 8 if order == "global" else 3
    if strategy == "buckets":
        return bucket_dataset(documents, boundaries=[3, 7], batch_size=2 * size)
    return pack_dataset(documents, sequence_length=16, batch_size=size, strategy=strategy, bins=4)


def make_documents(batch: dict[str, Any]) -> dict[str, Any]:
    made = np.empty(len(batch["id"]), object)
    for row, number in enumerate(batch["id"].tolist()):
        made[row] = np.full(1 + number % 7, number, np.int64)
    return {"tokens": made}


def take_ids(batch: dict[str, Any]) -> Any:
    if "id" in batch:
        return batch["id"]
    real = batch["document_ids"] >= 0 if "document_ids" in batch else batch["attention_mask"]
    return batch["tokens"][real]


def learn(run: strata.Run, state: dict[str, Any], step: int, batch: Any, pace_s: float) -> None:
    mine = np.empty(0, np.int64) if batch is None else take_ids(batch)
    for payload in run.exchange(f"ids/{step}", mine.astype("<i8").tobytes()):
        ids = np.frombuffer(payload, "<i8")
        state["total"] += (ids * ids).sum()
        state["count"] += len(ids)
    time.sleep(pace_s)
    say(rank=run.rank, world_size=run.world_size, generation=run.generation, step=step)


if __name__ == "__main__":
    main()
