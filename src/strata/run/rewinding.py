"""Rewinding a job: whether it would be exact is decided here, before anything is changed."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from typing import Any

from strata.checkpoint import CheckpointManager
from strata.checkpoint.format.rewind_record import BatchRange, Rewind
from strata.errors import RewindError
from strata.run.data.batch_numbers import read_numbers

_RANGE = re.compile(r"([0-9]{1,18})(?:\.\.([0-9]{1,18}))?")


def parse_batches(text: str) -> BatchRange:
    """Return the range of ``FIRST..LAST``, both included, or of one number; raise ValueError."""
    found = _RANGE.fullmatch(text.strip())
    if found is None:
        raise ValueError(f"{text!r} is no range of batches; write FIRST..LAST, both included, such as 1200..1210")
    first, last = int(found[1]), int(found[2] or found[1])
    if not 1 <= first <= last:
        raise ValueError(f"{text!r} is no range of batches: they are counted from 1 on, and FIRST is not above LAST")
    return first, last


def rewind_job(
    manager: CheckpointManager, job_id: str, to_step: int, skips: Iterable[BatchRange] = (), dataset: str | None = None
) -> Rewind:
    """Have the next start of a job go on from the checkpoint of ``to_step``, and pass over batches of its dataset.

    Raises RewindError, and changes nothing, where that would not be exact. Nobody may work on the job.
    """
    skips = tuple(sorted(skips))
    name = ""
    if skips and (checkpoint := manager.get_by_step(to_step)) is not None:
        name = _find_dataset(job_id, to_step, checkpoint.cursors, dataset)
    return manager.rewind(to_step, skips, name)


def _find_dataset(job_id: str, step: int, cursors: Mapping[str, Any], dataset: str | None) -> str:
    """Return the dataset whose batches are meant by the numbers of steps; raise RewindError if there is none."""
    numbers = read_numbers(cursors)
    if not numbers:
        raise RewindError(
            job_id,
            f"the checkpoint of step {step} does not say how its data is cut into batches, so none can be skipped",
        )
    if dataset is None and len(numbers) > 1:
        raise RewindError(
            job_id, f"it has {len(numbers)} datasets, {', '.join(sorted(numbers))}; say which with --dataset"
        )
    name = dataset or next(iter(numbers))
    if name not in numbers:
        raise RewindError(job_id, f"it has no dataset {name!r}; it has {', '.join(sorted(numbers))}")
    found = numbers[name]
    if found is None:
        raise RewindError(
            job_id,
            f"dataset {name!r} is not in global order: each worker reads shards of its own, so a batch has no number "
            "that means the same for all workers; rewind without --skip-batches, or open the dataset with "
            "order='global' in the next run",
        )
    behind = found.count(cursors, name)
    if behind != step:
        raise RewindError(
            job_id,
            f"step {step} comes after {'a part of a batch' if behind is None else f'{behind} batches'} of dataset "
            f"{name!r}: where a step is not one batch, the numbers of steps do not say which batches are meant",
        )
    return name
