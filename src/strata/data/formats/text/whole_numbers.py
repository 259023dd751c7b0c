"""Whole numbers in text that int64 does not hold: uint64 where that holds all of them, else strings, never rounded."""

from __future__ import annotations

from collections.abc import Iterable

import pyarrow as pa
import pyarrow.compute as pc

# Set where a column of int64 has a number below zero, which uint64 could not hold.
_NEGATIVE = {b"strata.negative": b"1"}
_LARGEST = 2**64 - 1
_WHOLE = r"^[+-]?[0-9]+$"
_DIGITS = r"^[0-9]+$"
# From here on, float64 does not hold every whole number.
ROUNDED = 2.0**53


def is_suspect(column: pa.ChunkedArray, least: float = 2.0**63) -> bool:
    """Whether Arrow took whole numbers beyond int64 for floats, as far as the floats tell."""
    if not pa.types.is_floating(column.type):
        return False
    found = pc.max(pc.abs(column)).as_py()
    return found is not None and found >= least


def field_of(name: str, column: pa.ChunkedArray) -> pa.Field:
    """Return the column's type, with a note of what matters when it meets larger numbers."""
    metadata = None
    if pa.types.is_integer(column.type):
        lowest = pc.min(column).as_py()
        metadata = _NEGATIVE if lowest is not None and lowest < 0 else None
    return pa.field(name, column.type, nullable=column.null_count > 0, metadata=metadata)


def field_of_text(name: str, column: pa.ChunkedArray, guessed: pa.ChunkedArray) -> pa.Field:
    """Return the type that holds these texts, which Arrow took for floats; where it saw no value, there is none."""
    there = pc.utf8_trim_whitespace(column.filter(guessed.is_valid()))
    nullable = guessed.null_count > 0
    if not pc.all(pc.match_substring_regex(there, _WHOLE)).as_py():
        return pa.field(name, pa.float64(), nullable=nullable)
    if not pc.all(pc.match_substring_regex(there, _DIGITS)).as_py():
        # Some have a sign, which Arrow refuses where the type is unsigned, or a plus, which it always does.
        return pa.field(name, pa.string(), nullable=nullable)
    return field_of_numbers(name, (int(each) for each in there.to_pylist()), nullable=nullable)


def field_of_numbers(name: str, numbers: Iterable[int], *, nullable: bool) -> pa.Field:
    """Return the type that holds all of these whole numbers."""
    found = list(numbers)
    is_unsigned = min(found, default=0) >= 0 and max(found, default=0) <= _LARGEST
    return pa.field(name, pa.uint64() if is_unsigned else pa.string(), nullable=nullable)


def merge(first: pa.Field, second: pa.Field) -> pa.Field | None:
    """Return the type that holds both, if one has whole numbers and the other has, too, or none at all."""
    kinds = (first.type, second.type)
    if not all(pa.types.is_integer(kind) or pa.types.is_null(kind) for kind in kinds):
        return None
    is_negative = any((field.metadata or {}).keys() & _NEGATIVE.keys() for field in (first, second))
    nullable = first.nullable or second.nullable or pa.types.is_null(first.type) or pa.types.is_null(second.type)
    if pa.uint64() in kinds and is_negative:
        return pa.field(first.name, pa.string(), nullable=nullable)
    kind = pa.uint64() if pa.uint64() in kinds else next((k for k in kinds if pa.types.is_integer(k)), pa.null())
    return pa.field(first.name, kind, nullable=nullable, metadata=_NEGATIVE if is_negative else None)
