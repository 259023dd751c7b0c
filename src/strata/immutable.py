"""Immutable values that are checked by the type checker only, because they are created too often for run-time checks.

``@immutable(frozen=True, ...)`` is a frozen dataclass to the type checker, which refuses every change. At run time it
is one that hashes and compares in the same way and is made in less than half the time.
"""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING

__all__ = ["immutable"]

if TYPE_CHECKING:
    from dataclasses import dataclass as immutable
else:

    def immutable(*, frozen, slots, kw_only):
        """Return the decorator."""
        return dataclasses.dataclass(slots=slots, kw_only=kw_only, unsafe_hash=frozen)
