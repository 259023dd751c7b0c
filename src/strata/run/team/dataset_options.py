"""What all workers of a job must have opened a dataset with: whatever decides who gets which sample."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

from strata.errors import DatasetChangedError, DatasetOptionsError

if TYPE_CHECKING:
    from strata.data.dataset import Dataset

# Of what is registered; it grows when workers compare more, or in another way.
OPTIONS_VERSION = 2


def describe_options(dataset: Dataset, *, block_size: int) -> dict[str, Any]:
    """Return what is registered with a dataset, as values that JSON can hold."""
    decided = dataset.plan.agreement()
    # Named before the files, which differ because the split does.
    options = {"split": decided["split"], "files": dataset.plan.files, **decided}
    if dataset.plan.layout.is_global:
        options["block_size"] = block_size
    # No part of the dataset, and of no known number of rows; an audit names them.
    if left_out := sorted(rows.file for rows in dataset.skipped() if not rows.num_rows):
        options["left_out"] = left_out
    return options


def compare_options(
    dataset_id: str,
    mine: Mapping[str, Any],
    first: Mapping[str, Any],
    *,
    url: str,
    job_id: str,
    is_present: Callable[[str, str], bool],
) -> None:
    """Raise an error that names the first option in which a worker differs from the one that registered first.

    ``is_present`` says whether a process of a worker is in the job now.
    """
    here, known = mine["options"], first["options"]
    # A release that registered less can be compared in what it knew; it named functions in another way.
    is_older = first.get("version", 1) < OPTIONS_VERSION
    compared = [each for each in here if each in known and each != "filter"] if is_older else {**here, **known}
    for option in compared:
        if here.get(option) == known.get(option):
            continue
        if option == "files":
            raise DatasetChangedError(dataset_id, url=url)
        process, opened_s = first.get("process", ""), first.get("opened_s")  # an older release registered neither
        is_replaced = first["worker"] == mine["worker"] and process != mine["process"]
        raise DatasetOptionsError(
            dataset_id,
            option,
            job_id=job_id,
            worker_id=mine["worker"],
            given=here.get(option),
            first=first["worker"],
            registered=known.get(option),
            is_earlier_run=is_replaced or not is_present(first["worker"], process),
            opened="" if opened_s is None else f"{datetime.fromtimestamp(opened_s, UTC):%Y-%m-%d %H:%M:%S} UTC",
        )
