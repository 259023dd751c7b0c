"""From what a user names as a dataset to its rows: an address, a list of these, or an object of another library."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from types import UnionType
from typing import Any, TypeAlias, TypedDict

from strata.data.files.cache import Cache
from strata.data.option_checks import check_choice, check_whole
from strata.data.rows.column_types import NULLS, Nulls
from strata.data.rows.in_memory import check_files_of, format_of, rows_of
from strata.data.rows.index import Index
from strata.data.rows.row_sequence import Rows, open_rows
from strata.storage import Storage

# A path, a URL, a list of these, rows, or what another library holds: see docs/data.md, "Addresses".
DataSource: TypeAlias = Any


class Reading(TypedDict, total=False):
    """How a path or URL is read; see :func:`strata.data.rows.row_sequence.open_rows`."""

    format: str | None
    options: Mapping[str, Any] | None
    split: str | None
    index: Index | None
    storage: Storage | None
    cache: Cache | str | os.PathLike[str] | None
    memory_bytes: int
    nulls: Nulls


def open_source_rows(source: DataSource, columns: Sequence[str] | None, reading: Reading, *, skip_bad: bool) -> Rows:
    """Return the rows of whatever the source is, or raise an error that says what it could be."""
    _check_reading(reading)
    nulls = reading.get("nulls", "mask")
    if nulls == "arrow":
        raise ValueError("nulls='arrow' is for open_rows; batches are NumPy, so use 'mask', 'nan' or 'raise'")
    if isinstance(source, str | os.PathLike | list | tuple):
        return open_rows(source, columns=columns, skip_bad=skip_bad, **reading)
    found = rows_of(source, columns, nulls)
    if isinstance(found, list):
        named: Reading = {"format": format_of(source), **reading}
        rows_of_files = open_rows(found, columns=columns, skip_bad=skip_bad, **named)
        check_files_of(source, list(rows_of_files.types), columns)
        return rows_of_files
    if for_files := reading.keys() - {"nulls"}:
        raise TypeError(f"{min(for_files)!r} is for paths and URLs, not for rows that are open already")
    if found is not None:
        return found  # type: ignore[return-value]  # a sequence of paths was a list
    if not hasattr(source, "read") or not hasattr(source, "num_rows"):
        raise TypeError(
            f"a {type(source).__name__} is no dataset; give a path, a URL, a list of these, an Arrow table or dataset, "
            "a datasets.Dataset, a NumPy array, a dict of arrays, or an object with rows"
        )
    rows: Rows = source
    return rows


def _check_reading(reading: Mapping[str, Any]) -> None:
    """Raise an error that names an option of reading which there is not, or which cannot be what it is."""
    known = Reading.__annotations__
    if unknown := [name for name in reading if name not in known]:
        raise TypeError(f"there is no option {unknown[0]!r}; for reading files there are {', '.join(known)}")
    kinds: dict[str, tuple[type | UnionType, str]] = {
        "format": (str, "the name of a format"),
        "options": (Mapping, "a dict of the format's options"),
        "split": (str, "the name of a split, such as 'train'"),
        "index": (Index, "an Index"),
        "storage": (Storage, "a storage, such as open_storage() returns"),
        "cache": (str | os.PathLike | Cache, "a directory or a Cache"),
    }
    for name, (kind, wanted) in kinds.items():
        if not isinstance(value := reading.get(name), kind) and value is not None:
            raise TypeError(f"{name} is {value!r}; use {wanted}")
    check_whole("memory_bytes", reading.get("memory_bytes", 0), least=0)
    check_choice("nulls", reading.get("nulls", "mask"), NULLS)
