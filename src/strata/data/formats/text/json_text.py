"""Columns of JSON lines that are given as text: because the user says so, or because no number type holds them."""

from __future__ import annotations

import json
import re
from typing import TYPE_CHECKING, Any, Self

import pyarrow as pa

from strata.data.formats.text import whole_numbers

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

_MARK = {b"strata.json": b"text"}
# Whole numbers that int64 may not hold, wherever they stand; who finds one looks closer.
_LONG_NUMBER = re.compile(rb"[0-9]{19}")


class _Number(float):
    """A number with a fraction or an exponent, which keeps how it was written."""

    text: str

    def __new__(cls, text: str) -> Self:
        made = super().__new__(cls, text)
        made.text = text
        return made


def mark(name: str, *, nullable: bool) -> pa.Field:
    """Return the field of a column whose values are given as text."""
    return pa.field(name, pa.string(), nullable=nullable, metadata=_MARK)


def is_marked(field: pa.Field) -> bool:
    """Whether values of the column that are no strings are given as their JSON text."""
    return bool(field.metadata) and b"strata.json" in field.metadata


def quote(data: bytes, names: Sequence[str]) -> bytes:
    """Return the same lines, in which the values of these keys are strings: themselves, or their JSON text."""
    try:
        records = list(_values_of(data))
    except ValueError:
        # Whoever parses all lines says what is wrong with them.
        return data
    for record in records:
        for name in names if isinstance(record, dict) else ():
            value = record.get(name)
            if value is not None and not isinstance(value, str):
                record[name] = value.text if isinstance(value, _Number) else json.dumps(value, ensure_ascii=False)
    return b"\n".join(json.dumps(record).encode() for record in records)


def has_objects_only(data: bytes) -> bool:
    """Whether all that stands one after the other are objects, or something that is no JSON."""
    try:
        return all(isinstance(value, dict) for value in _values_of(data))
    except ValueError:
        return True


def _values_of(data: bytes) -> Iterator[Any]:
    """Yield the values that stand one after the other, wherever lines end."""
    text, decoder, at = data.decode("utf-8-sig"), json.JSONDecoder(parse_float=_Number), 0
    while True:
        while at < len(text) and text[at] in " \t\r\n":
            at += 1
        if at == len(text):
            return
        value, at = decoder.raw_decode(text, at)
        yield value


def refine(field: pa.Field, column: pa.ChunkedArray, data: bytes) -> pa.Field:
    """Return the column's type, where Arrow made floats of whole numbers that int64 does not hold."""
    nullable = column.null_count > 0
    is_plain = pa.types.is_floating(field.type)
    if is_plain and not whole_numbers.is_suspect(column):
        return pa.field(field.name, field.type, nullable=nullable)
    if not (is_plain or _has_floats(field.type)) or not _LONG_NUMBER.search(data):
        return (
            whole_numbers.field_of(field.name, column)
            if pa.types.is_integer(field.type)
            else field.with_nullable(nullable)
        )
    numbers = list(_numbers_of(field.name, data))
    if not all(isinstance(number, int) for number in numbers) or max(map(abs, numbers), default=0) < 2**63:
        return pa.field(field.name, field.type, nullable=nullable)
    found = whole_numbers.field_of_numbers(field.name, numbers, nullable=nullable)
    return found if is_plain and pa.types.is_uint64(found.type) else mark(field.name, nullable=nullable)


def _has_floats(kind: pa.DataType) -> bool:
    return any(
        pa.types.is_floating(kind.field(number).type) or _has_floats(kind.field(number).type)
        for number in range(kind.num_fields)
    )


def _numbers_of(name: str, data: bytes) -> Iterator[Any]:
    pending = [record.get(name) for record in _values_of(data) if isinstance(record, dict)]
    while pending:
        value = pending.pop()
        if isinstance(value, dict):
            pending.extend(value.values())
        elif isinstance(value, list):
            pending.extend(value)
        elif isinstance(value, int | float) and not isinstance(value, bool):
            yield value
