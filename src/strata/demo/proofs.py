"""What the demonstration proves, from what lies on disk when it is over."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import numpy.typing as npt

from strata.checkpoint import CheckpointManager
from strata.checkpoint.commit.protocol import LEDGER

Ints = npt.NDArray[np.int64]


@dataclass(frozen=True, slots=True)
class Proof:
    """A claim, whether it holds, and what was looked at."""

    claim: str
    holds: bool
    evidence: str


def prove(
    folder: Path,
    *,
    job_id: str,
    epochs: int,
    num_rows: int,
    audits: Sequence[tuple[int, int]],
    checkpoints: str | Path | None = None,
) -> list[Proof]:
    """Check everything that the demonstration claims; ``audits`` are what the coordinator says of each epoch.

    ``checkpoints`` is where the run saved, by default in the folder.
    """
    if checkpoints is None:
        checkpoints = folder / "checkpoints"
    return [
        *(_prove_exactly_once(folder, epoch, num_rows) for epoch in range(epochs)),
        Proof(
            "the coordinator's own audit says the same",
            list(audits) == [(0, 0)] * epochs,
            f"{sum(missing for missing, _ in audits)} missing, {sum(repeated for _, repeated in audits)} repeated",
        ),
        _prove_ledger(checkpoints, job_id, epochs=epochs, num_rows=num_rows),
        _prove_same_weights(checkpoints, folder / "reference", job_id),
    ]


def read_seen(folder: Path) -> dict[int, list[tuple[int, Ints]]]:
    """Return, by step, the epoch and samples that each worker saw in it, in the generation that it counts in.

    A step that was discarded is done again in a later generation, so the last one counts.
    """
    by_step: dict[int, tuple[int, list[tuple[int, Ints]]]] = {}
    for path in sorted((folder / "seen").iterdir()):
        words = np.fromfile(path, dtype="<i8")
        at = 0
        while at < len(words):
            generation, step, epoch, count = words[at : at + 4].tolist()
            row = (epoch, words[at + 4 : at + 4 + count])
            known, rows = by_step.get(step, (-1, []))
            if generation > known:
                by_step[step] = generation, [row]
            elif generation == known:
                rows.append(row)
            at += 4 + count
    return {step: rows for step, (_, rows) in sorted(by_step.items())}


def _prove_exactly_once(folder: Path, epoch: int, num_rows: int) -> Proof:
    seen = [ids for rows in read_seen(folder).values() for at_epoch, ids in rows if at_epoch == epoch]
    counts = np.bincount(np.concatenate(seen), minlength=num_rows) if seen else np.zeros(num_rows, np.int64)
    missing, repeated = int((counts == 0).sum()), int((counts > 1).sum())
    return Proof(
        f"epoch {epoch}: every sample was seen exactly once",
        missing == repeated == 0,
        f"{num_rows:,} samples, {missing} missing, {repeated} repeated",
    )


def _prove_ledger(checkpoints: str | Path, job_id: str, *, epochs: int, num_rows: int) -> Proof:
    with CheckpointManager(checkpoints, job_id=job_id) as manager:
        latest = manager.latest()
    positions = [] if latest is None else [row.get("position") for row in latest.cursors.get(LEDGER, [])]
    return Proof(
        "the last checkpoint holds the end of the data, in one cut with the weights",
        positions == [num_rows] * epochs,
        f"positions {positions} at step {0 if latest is None else latest.step}",
    )


def _prove_same_weights(checkpoints: str | Path, reference_folder: Path, job_id: str) -> Proof:
    with (
        CheckpointManager(checkpoints, job_id=job_id) as disturbed,
        CheckpointManager(reference_folder, job_id=job_id) as undisturbed,
    ):
        ours, reference = disturbed.load(), undisturbed.load()
    same = ours.step == reference.step and all(
        ours.data[name].tobytes() == reference.data[name].tobytes() for name in reference.data
    )
    return Proof(
        "the weights are those of an undisturbed run of one worker, to the bit",
        same,
        f"step {ours.step} against step {reference.step}, {sum(a.nbytes for a in reference.data.values()):,} bytes",
    )
