"""The columns of many files as those of one dataset; a column that cannot be one is refused when it is asked for."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

import pyarrow as pa

from strata.errors import CorruptFileError, SchemaMismatchError

if TYPE_CHECKING:
    from collections.abc import Iterable

    from strata.data.formats.protocol import Format

_CONFLICT = b"strata.conflict"


class SchemaMerge:
    """The columns of the files seen so far, each with a type that holds the values of all of them."""

    def __init__(self, made: Format) -> None:
        self._format = made
        self._schema: pa.Schema | None = None
        self._first = ""
        # Most files have the schema of another one; comparing is much faster than merging.
        self._seen: list[pa.Schema] = []

    def add(self, name: str, own: pa.Schema) -> None:
        """Take in the columns of one file."""
        if any(own.equals(seen, check_metadata=True) for seen in self._seen):
            return
        self._seen.append(own)
        if repeated := [each for place, each in enumerate(own.names) if each in own.names[:place]]:
            problem, hint = f"it has two columns {repeated[0]!r}", "write it with a name of its own for each column"
            raise CorruptFileError(name, problem, kind=self._format.kind, hint=hint)
        if self._schema is None:
            self._schema, self._first = own, name
            return
        before = self._schema
        names = dict.fromkeys([*before.names, *own.names])
        self._schema = pa.schema([self._merge(_pick(before, each), _pick(own, each), name) for each in names])

    def schema(self) -> pa.Schema:
        """Return the columns of all files."""
        return self._schema if self._schema is not None else pa.schema([])

    def _merge(self, first: pa.Schema, second: pa.Schema, name: str) -> pa.Field:
        field = (first or second).field(0)
        if _conflict_of(field) is not None:
            return field
        try:
            return self._format.merge(first, second).field(0)
        except ValueError as error:
            note = json.dumps([self._first, name, str(error)]).encode()
            return field.with_metadata({**(field.metadata or {}), _CONFLICT: note})


def check_columns(schema: pa.Schema, names: Iterable[str]) -> None:
    """Raise SchemaMismatchError if files disagree on one of these columns."""
    for name in names:
        if (found := _conflict_of(schema.field(name))) is not None:
            raise SchemaMismatchError(*found)


def _pick(schema: pa.Schema, name: str) -> pa.Schema:
    return pa.schema([schema.field(name)] if name in schema.names else [])


def _conflict_of(field: pa.Field) -> tuple[str, str, str] | None:
    if not field.metadata or _CONFLICT not in field.metadata:
        return None
    first, second, problem = json.loads(field.metadata[_CONFLICT])
    return first, second, problem
