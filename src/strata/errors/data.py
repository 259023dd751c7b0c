"""Errors of datasets."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import KW_ONLY
from typing import Any

from strata.errors.base import Recovery, StrataError, shorten, with_fields


class DataError(StrataError):
    """A dataset cannot be found, understood or read as asked."""


@with_fields
class DatasetNotFoundError(DataError, LookupError):
    """There are no files to read at this place."""

    url: str
    problem: str
    _: KW_ONLY
    hint: str

    template = "{url!p}: {problem}; {hint}"


@with_fields
class DatasetExistsError(DataError):
    """The target of a new dataset is not empty; it was not changed."""

    url: str
    problem: str

    template = "{url!p}: {problem}; choose another target, or empty this one yourself"


@with_fields
class UnknownDataFormatError(DataError):
    """No reader supports these files, or the given format cannot read them."""

    path: str
    problem: str
    _: KW_ONLY
    known: Collection[str]

    def __post_init__(self) -> None:
        self.known = sorted(self.known)
        super().__post_init__()

    def message(self) -> str:
        """Return which file, and all formats that there are."""
        return f"{shorten(self.path)}: {self.problem}; name one of these formats: {', '.join(self.known)}"


@with_fields
class MixedFormatsError(DataError):
    """The place holds files of several formats, so it is not clear which of them are the dataset."""

    url: str
    examples: dict[str, str]

    def message(self) -> str:
        """Return one file of each format."""
        found = ", ".join(f"{kind} ({shorten(path)})" for kind, path in sorted(self.examples.items()))
        return (
            f"{shorten(self.url)}: it holds files of several formats: {found}; "
            "name the format to use, or give a pattern such as data/*.parquet"
        )


@with_fields
class SeveralSplitsError(DataError):
    """The place holds several splits, such as training and test files; reading them as one would mix them."""

    url: str
    splits: list[str]

    def message(self) -> str:
        """Return the names of the splits, and how to choose one."""
        return (
            f"{shorten(self.url)}: it holds the splits {', '.join(self.splits)}; choose one, as in "
            f"split={self.splits[0]!r} (--split {self.splits[0]}), or read them as one dataset with split='all'"
        )


@with_fields
class SchemaMismatchError(DataError):
    """Two files of one dataset have different columns, so their rows do not fit together."""

    first: str
    second: str
    problem: str

    template = (
        "{first!p} and {second!p} differ in their columns: {problem}; "
        "write them with one schema, or read them as two datasets"
    )


@with_fields
class CorruptFileError(DataError):
    """A file is damaged or not of its format; ``part`` and ``offset`` say where, if that is known."""

    path: str
    problem: str
    _: KW_ONLY
    kind: str
    part: str | None = None
    offset: int | None = None
    hint: str = ""

    def __post_init__(self) -> None:
        self.hint = self.hint or "replace it with a good copy, or remove it from the dataset and index again"
        super().__post_init__()

    def message(self) -> str:
        """Return which place of which file."""
        where = [each for each in (self.part, None if self.offset is None else f"byte {self.offset}") if each]
        place = f" ({', '.join(where)})" if where else ""
        return f"{shorten(self.path)}{place} is not a valid {self.kind} file: {self.problem}; {self.hint}"


@with_fields
class StaleIndexError(DataError):
    """Files changed since the index was made, so row numbers may point to other rows."""

    url: str
    path: str
    problem: str

    template = (
        "{path!p} {problem} since {url!p} was indexed; restore the old file, or run "
        "'strata data index' again: data positions that were saved before belong to the old files"
    )


@with_fields
class PositionMismatchError(DataError):
    """A saved data position is not valid here: the dataset or its options changed."""

    saved: dict[str, Any]
    here: dict[str, Any]
    _: KW_ONLY
    hint: str = ""

    def message(self) -> str:
        """Return what differs, with both values."""
        names = {**self.here, **self.saved}
        differ = [name for name in names if self.saved.get(name) != self.here.get(name)]
        told = ", ".join(f"{name} was {self.saved.get(name)!r} and is {self.here.get(name)!r}" for name in differ)
        hint = self.hint or "open the dataset with the options of the save, or start over"
        return f"the data position cannot be loaded: {told}; {hint}"


@with_fields
class RayUnavailableError(DataError):
    """No Ray cluster could be reached or started."""

    address: str
    problem: str

    recovery = Recovery.RETRY

    def message(self) -> str:
        """Return which cluster was tried, and what to do."""
        if self.address:
            return (
                f"the Ray cluster at {shorten(self.address)} (RAY_ADDRESS) cannot be reached: {self.problem}; check "
                "that it runs and has this version of Ray, or use --engine local"
            )
        return (
            f"Ray cannot be started on this machine: {self.problem}; its logs are in /tmp/ray/session_latest/logs; "
            "run it again while the machine is less busy, set RAY_ADDRESS, or use --engine local. If Ray looks for a "
            "cluster that is gone, run 'ray stop' first"
        )


@with_fields
class TransformProcessError(DataError):
    """A process that transforms batches died, and its batches are lost."""

    processes: int

    # Iterating again starts new processes and goes on from the last batch that was delivered.
    recovery = Recovery.RETRY
    template = (
        "one of the {processes} processes that transform batches died: it was killed (is there enough memory?), "
        "the transform ended it, or the main script has no 'if __name__ == \"__main__\":'; iterate again to go on "
        "from the last batch that was delivered"
    )
