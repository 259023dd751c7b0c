"""Columns that stand in the names of directories, as Hive and Spark write them: ``year=2024/part-0.parquet``."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any
from urllib.parse import unquote

import numpy as np
import pyarrow as pa

if TYPE_CHECKING:
    from collections.abc import Sequence

    from strata.data.rows.columns import Column

_MARK = b"strata.partition"
# What Hive and Spark write where the value is missing.
_MISSING = "__HIVE_DEFAULT_PARTITION__"


def is_partition(field: pa.Field) -> bool:
    """Whether the column's values are in the names of directories, not in the files."""
    return bool(field.metadata) and _MARK in field.metadata


def keys_of(path: str) -> dict[str, str | None]:
    """Return what the directories of a path say, by name."""
    found: dict[str, str | None] = {}
    for segment in path.split("/")[:-1]:
        name, equals, value = segment.partition("=")
        if equals and name:
            found[unquote(name)] = None if value == _MISSING else unquote(value)
    return found


def partition_fields(paths: Sequence[str], taken: Sequence[str]) -> list[pa.Field]:
    """Return the columns that the directories add; a name that the files have already stays the files'.

    Whole numbers if all values are, else strings.
    """
    values: dict[str, list[str | None]] = {}
    for number, path in enumerate(paths):
        keys = keys_of(path)
        for name in keys.keys() - values.keys():
            values[name] = [None] * number
        for name, known in values.items():
            known.append(keys.get(name))
    return [
        pa.field(name, _type_of(found), nullable=None in found, metadata={_MARK: b"1"})
        for name, found in sorted(values.items(), key=lambda each: _depth(paths, each[0]))
        if name not in taken
    ]


def build(field: pa.Field, path: str, num_rows: int) -> Column:
    """Return the column for the rows of one file."""
    value: Any = keys_of(path).get(field.name)
    if value is None or not pa.types.is_integer(field.type):
        return pa.repeat(pa.scalar(value, field.type), num_rows)
    return np.full(num_rows, int(value), np.int64)


def _depth(paths: Sequence[str], name: str) -> int:
    return min(list(keys).index(name) for keys in map(keys_of, paths) if name in keys)


def _type_of(values: Sequence[str | None]) -> pa.DataType:
    return pa.int64() if all(value is None or _is_whole(value) for value in values) and any(values) else pa.string()


def _is_whole(text: str) -> bool:
    digits = text.removeprefix("-")
    # A leading zero would be lost, as in month=01; only what comes back as it was is a number.
    return digits.isascii() and digits.isdigit() and str(int(text)) == text and abs(int(text)) < 2**63
