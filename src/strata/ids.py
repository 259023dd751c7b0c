"""Names of jobs, workers and datasets.

They become storage paths, so they are 1 to 128 characters of ``[A-Za-z0-9._-]`` and do not start with a
dot: no name can leave its directory, hide in it, or mean two things on two file systems.
"""

from __future__ import annotations

import re
from typing import NewType

from strata.errors import InvalidIdError

JobId = NewType("JobId", str)
WorkerId = NewType("WorkerId", str)
DatasetId = NewType("DatasetId", str)

MAX_LENGTH = 128
_FOREIGN = re.compile(r"[^A-Za-z0-9._-]")


def job_id(value: str) -> JobId:
    """Return ``value`` as a job id, or raise InvalidIdError."""
    return JobId(_checked("job id", value))


def worker_id(value: str) -> WorkerId:
    """Return ``value`` as a worker id, or raise InvalidIdError."""
    return WorkerId(_checked("worker id", value))


def dataset_id(value: str) -> DatasetId:
    """Return ``value`` as a dataset id, or raise InvalidIdError."""
    return DatasetId(_checked("dataset id", value))


def make_name(text: str, *, default: str) -> str:
    """Return ``text`` in characters that an id may have, or ``default`` if nothing of it is left."""
    return _FOREIGN.sub("-", text).lstrip(".") or default


def _checked(kind: str, value: object) -> str:
    if not isinstance(value, str):
        raise InvalidIdError(kind, value, f"is of type {type(value).__name__}, not a string")
    if not value:
        raise InvalidIdError(kind, value, "is empty")
    if len(value) > MAX_LENGTH:
        raise InvalidIdError(kind, value, f"has {len(value)} characters")
    if value.startswith("."):
        raise InvalidIdError(kind, value, "starts with a dot")
    if found := _FOREIGN.search(value):
        raise InvalidIdError(kind, value, f"contains {found[0]!r}")
    return value
