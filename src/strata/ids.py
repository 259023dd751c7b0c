"""Which names a job, a worker or a dataset may have.

They become storage paths, so they are 1 to 128 characters of ``[A-Za-z0-9._-]`` and do not start with a
dot: no name can leave its directory, hide in it, or mean two things on two file systems.
"""

from __future__ import annotations

import re

MAX_LENGTH = 128
_FOREIGN = re.compile(r"[^A-Za-z0-9._-]")


def find_problem(value: object) -> str | None:
    """Return why something cannot be an id, or None if it can. :class:`strata.errors.InvalidIdError` checks with it."""
    if not isinstance(value, str):
        return f"is of type {type(value).__name__}, not a string"
    if not value:
        return "is empty"
    if len(value) > MAX_LENGTH:
        return f"has {len(value)} characters"
    if value.startswith("."):
        return "starts with a dot"
    if found := _FOREIGN.search(value):
        return f"contains {found[0]!r}"
    return None


def make_name(text: str, *, default: str) -> str:
    """Return ``text`` in characters that an id may have, or ``default`` if nothing of it is left."""
    return _FOREIGN.sub("-", text).lstrip(".")[:MAX_LENGTH] or default
