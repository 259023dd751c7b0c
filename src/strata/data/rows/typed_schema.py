"""The columns that rows are given in: those of the data, each of one type, and the masks of those that miss values."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pyarrow as pa

from strata.data.formats import tensors
from strata.data.rows.column_types import MissingValueError, Nulls, column_types, with_masks
from strata.data.rows.columns import Column, Columns
from strata.errors import DataError

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence


class TypedSchema:
    """What is stored and what is given, for one way of giving missing values."""

    def __init__(self, stored: pa.Schema, nulls: Nulls) -> None:
        self.stored = stored
        self.nulls = nulls
        self.types = column_types(stored, nulls)
        self.given = with_masks(stored, self.types)
        self._masked = {each.mask_name: name for name, each in self.types.items() if each.mask_name is not None}

    def choose(self, columns: Sequence[str] | None, within: Sequence[str] | None = None) -> tuple[str, ...]:
        """Return these of the given columns, or all; a column that misses values brings its mask along."""
        known = tuple(self.given.names) if within is None else tuple(within)
        if columns is None:
            for name in known:
                self._check_mask(name)
            return known
        chosen: dict[str, None] = {}
        for name in columns:
            if name not in known:
                raise ValueError(f"there is no column {name!r}; the columns are {', '.join(known)}")
            self._check_mask(name)
            chosen[name] = None
            # Numbers that stand where a value is missing mean nothing without their mask.
            if name in self.types and (mask := self.types[name].mask_name) is not None:
                chosen[mask] = None
        return tuple(chosen)

    def _check_mask(self, name: str) -> None:
        """Raise DataError if the mask of a column that is asked for would have the name of another."""
        mask = self.types[name].mask_name if name in self.types else None
        if mask in self.types:
            raise DataError(
                f"column {name!r} has missing values and {mask!r} is a column already; rename that one, or use "
                "nulls='nan' or nulls='raise'"
            )

    def sources(self, names: Sequence[str]) -> list[str]:
        """Return the stored columns that these are made of."""
        return list(dict.fromkeys(name if name in self.types else self._masked[name] for name in names))

    def conform(self, columns: Columns, names: Sequence[str], where: Callable[[int], str]) -> Columns:
        """Return these columns in the types of the dataset; ``where`` names a row that cannot be given so."""
        found: dict[str, Column] = {}
        for name in columns.names:
            try:
                found.update(self.types[name].apply(columns[name]))
            except MissingValueError as error:
                raise DataError(f"{where(error.row)}: {error}") from error
        return Columns(found, columns.num_rows).select(names)

    def empty(self, names: Sequence[str]) -> Columns:
        """Return no rows of these columns."""
        stored = pa.schema([self.stored.field(name) for name in self.sources(names)])
        return self.conform(tensors.decode(stored.empty_table(), self.stored), names, str)
