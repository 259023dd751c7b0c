"""Between values and protobuf messages of the same name, field by field, chosen by the type of each field.

A message has the fields of its value, by name. A field whose default is not the zero of its type is ``optional`` in
the contract, so that a zero that was sent is a zero, and only what was left out gets the default.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import MISSING, fields, is_dataclass
from enum import StrEnum
from operator import attrgetter
from types import NoneType, UnionType
from typing import Any, Union, get_args, get_origin, get_type_hints

import numpy as np

from strata.errors import StrataError
from strata.wire._generated import coordinator_pb2 as pb
from strata.wire.errors import from_error, to_error

Write = Callable[[Any, Any], None]
Read = Callable[[Any], Any]
Field = tuple[str, Write, Read]

_fields: dict[type[Any], tuple[Field, ...]] = {}


def fill(message: Any, value: Any) -> None:
    """Write the fields of a value into its message."""
    for name, write, _ in fields_of(type(value)):
        content = getattr(value, name)
        if content is not None:
            write(message, content)


def read(kind: type[Any], message: Any) -> Any:
    """Return the value of a message; raise ValueError for a word that the field does not know."""
    return kind(**{name: take(message) for name, _, take in fields_of(kind)})


def fields_of(kind: type[Any]) -> tuple[Field, ...]:
    """Return how each field of a value is written to and read from its message; worked out once for each kind."""
    found = _fields.get(kind)
    if found is None:
        hints, defaults = get_type_hints(kind), _defaults(kind)
        descriptor = pb.DESCRIPTOR.message_types_by_name[kind.__name__]
        names = [field.name for field in fields(kind)] if is_dataclass(kind) else list(kind._fields)
        found = _fields[kind] = tuple(
            _field(name, hints[name], descriptor.fields_by_name[name], defaults.get(name)) for name in names
        )
    return found


def _defaults(kind: type[Any]) -> dict[str, Any]:
    if not is_dataclass(kind):
        return dict(kind._field_defaults)
    return {field.name: field.default for field in fields(kind) if field.default is not MISSING}


def _field(name: str, hint: Any, field: Any, default: Any) -> Field:
    if get_origin(hint) in (Union, UnionType):
        (hint,) = (option for option in get_args(hint) if option is not NoneType)
    if get_origin(hint) is dict:
        return name, lambda m, content: getattr(m, name).update(content), lambda m: dict(getattr(m, name))
    if is_array(hint):
        return _array_field(name, field)
    if get_origin(hint) is tuple:
        return _repeated_field(name, get_args(hint)[0])
    if isinstance(hint, type) and issubclass(hint, StrataError):
        return (
            name,
            lambda m, content: getattr(m, name).CopyFrom(to_error(content)),
            lambda m: from_error(getattr(m, name)),
        )
    if isinstance(hint, type) and issubclass(hint, StrEnum):
        return _present_field(name, default, str, hint)
    if field.message_type is not None:
        return (
            name,
            lambda m, content: _fill_present(getattr(m, name), content),
            lambda m: read(hint, getattr(m, name)) if m.HasField(name) else default,
        )
    if field.has_presence:
        return _present_field(name, default, None, None)
    assert not default, f"{name} has the default {default!r}: make it optional in the contract"
    return name, lambda m, content: setattr(m, name, content), attrgetter(name)


def is_array(hint: Any) -> bool:
    """Whether a type is that of arrays; since NumPy 2.5 NDArray is an alias that stands for the class."""
    origin = get_origin(hint)
    value = getattr(origin, "__value__", origin)
    return (get_origin(value) or value) is np.ndarray


def _fill_present(message: Any, value: Any) -> None:
    fill(message, value)
    # One that holds nothing but zeros is there all the same.
    message.SetInParent()


def _present_field(name: str, default: Any, to_wire: Any, from_wire: Any) -> Field:
    if from_wire is None:
        return (
            name,
            lambda m, content: setattr(m, name, content),
            lambda m: getattr(m, name) if m.HasField(name) else default,
        )
    return (
        name,
        lambda m, content: setattr(m, name, to_wire(content)),
        lambda m: from_wire(getattr(m, name)) if m.HasField(name) else default,
    )


def _repeated_field(name: str, item: Any) -> Field:
    if item in (str, int, bytes):
        return name, lambda m, content: getattr(m, name).extend(content), lambda m: tuple(getattr(m, name))
    columns = item._fields
    message = getattr(pb, item.__name__)
    if any(column.has_presence for column in message.DESCRIPTOR.fields):
        return _nested_rows_field(name, item)

    def write_rows(m: Any, content: Any) -> None:
        getattr(m, name).extend(message(**dict(zip(columns, row, strict=True))) for row in content)

    def read_rows(m: Any) -> Any:
        return tuple(item(*(getattr(row, column) for column in columns)) for row in getattr(m, name))

    return name, write_rows, read_rows


def _nested_rows_field(name: str, item: Any) -> Field:
    """Rows that have values of their own in them, or columns that may be left out."""

    def write_rows(m: Any, content: Any) -> None:
        for row in content:
            fill(getattr(m, name).add(), row)

    return name, write_rows, lambda m: tuple(read(item, row) for row in getattr(m, name))


def _array_field(name: str, field: Any) -> Field:
    """Rows of an array as messages with one field a column."""
    columns = [column.name for column in field.message_type.fields]
    message = getattr(pb, field.message_type.name)

    def write_rows(m: Any, content: Any) -> None:
        getattr(m, name).extend(message(**dict(zip(columns, row, strict=True))) for row in content.tolist())

    def read_rows(m: Any) -> Any:
        rows = [tuple(getattr(row, column) for column in columns) for row in getattr(m, name)]
        return np.array(rows, dtype=np.int64).reshape(-1, len(columns))

    return name, write_rows, read_rows
