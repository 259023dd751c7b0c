"""Errors of handing out data."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import KW_ONLY

from strata.errors.base import StrataError, choices, with_fields


class ShardingError(StrataError):
    """Data cannot be assigned as requested; nothing was changed."""


@with_fields
class NoWorkersError(ShardingError):
    """There are no workers to assign the data to."""

    wanted_for: str

    template = "{wanted_for} cannot be assigned: there are no workers; register one first"


@with_fields
class UnknownDatasetError(ShardingError, LookupError):
    """No dataset of that name is registered."""

    dataset_id: str
    _: KW_ONLY
    known: Collection[str]

    def __post_init__(self) -> None:
        self.known = sorted(self.known)
        super().__post_init__()

    def message(self) -> str:
        """Return which dataset, and some that there are."""
        return f"dataset {self.dataset_id!r} is not registered; {choices(list(self.known))}"


@with_fields
class DatasetConflictError(ShardingError):
    """The dataset is already registered with other parameters, and running jobs depend on those."""

    dataset_id: str
    _: KW_ONLY
    registered: str
    given: str

    template = (
        "dataset {dataset_id!r} is already registered with {registered}, but was given {given}; "
        "use the same parameters, or another dataset id; if an earlier run of this job registered it, another job id "
        "will do, or 'strata job rm', with which the coordinator forgets that run"
    )


@with_fields
class SavedDatasetError(ShardingError):
    """The checkpoint to continue from was saved with other parameters of a dataset."""

    dataset_id: str
    _: KW_ONLY
    registered: str
    saved: str

    template = (
        "dataset {dataset_id!r} has {registered}, but the checkpoint to continue from was saved with {saved}; open it "
        "with the parameters of the save, or start over under another job id or with another checkpoint directory"
    )


@with_fields
class DamagedRecordError(ShardingError):
    """A record is damaged or incomplete; nothing of it was used."""

    kind: str
    problem: str

    template = "this is not a valid {kind}: {problem}; fetch it again from its source"
