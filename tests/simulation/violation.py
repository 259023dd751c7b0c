"""What a world raises when a promise is broken."""

from __future__ import annotations


class ViolationError(AssertionError):
    """Something that must never happen did."""
