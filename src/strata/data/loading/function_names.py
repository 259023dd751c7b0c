"""Names of functions that two workers can compare: what a function does, and the values that it was made with."""

from __future__ import annotations

import functools
import re
from collections.abc import Callable, Mapping
from contextlib import suppress
from pathlib import PurePath
from types import CodeType, FunctionType, MethodType
from typing import Any, Protocol, runtime_checkable

import numpy as np
import xxhash

# Longer texts are told by their digest: a name is for people to read, and is kept in the journal.
_LONGEST_TEXT = 60
# A function may hold others, and in the end itself.
_DEEPEST = 4


@runtime_checkable
class Agreeing(Protocol):
    """A filter or transform that says by itself what all workers must have the same."""

    def agreement(self) -> Mapping[str, Any]:
        """Return the values that decide what it does, by name."""
        ...


def name_function(function: Callable[..., Any] | None) -> str | None:
    """Return a name that two workers give to the same function and, most likely, to no other.

    It holds a digest of the code, because functions of one name may differ from script to script, and the plain values
    that the function was made with: arguments of a ``partial``, attributes, defaults, what it closes over, and global
    names. Of other objects only the type is told, because what they hold may differ from process to process.
    """
    return None if function is None else _name(function, 0)


def _name(function: Callable[..., Any], depth: int) -> str:
    if isinstance(function, functools.partial):
        given = [_describe(each, depth) for each in function.args]
        return f"{_name(function.func, depth)}({', '.join([*given, *_list_values(function.keywords, depth)])})"
    home = getattr(function, "__module__", None) or type(function).__module__
    name = f"{home}.{getattr(function, '__qualname__', type(function).__qualname__)}"
    code = getattr(function, "__code__", None) or getattr(type(function).__call__, "__code__", None)
    if code is not None:
        name = f"{name}#{_digest(_describe_code(code).encode())}"
    values = _list_values(_values_of(function), depth)
    return f"{name}({', '.join(values)})" if values else name


def _values_of(function: Any) -> dict[str, Any]:
    """Return the values that decide what a function does beside its code."""
    if isinstance(function, Agreeing):
        return dict(function.agreement())
    if isinstance(function, MethodType):
        return {**_attributes_of(function.__self__), **_values_of(function.__func__)}
    if not isinstance(function, FunctionType):
        return _attributes_of(function)
    return {**_globals_of(function), **_closed_over(function), **_defaults_of(function)}


def _globals_of(function: FunctionType) -> dict[str, Any]:
    known = function.__globals__
    return {name: known[name] for name in function.__code__.co_names if name in known and _is_plain(known[name])}


def _closed_over(function: FunctionType) -> dict[str, Any]:
    values = {}
    for name, cell in zip(function.__code__.co_freevars, function.__closure__ or (), strict=True):
        with suppress(ValueError):  # a name that has no value yet
            values[name] = cell.cell_contents
    return values


def _defaults_of(function: FunctionType) -> dict[str, Any]:
    code, values = function.__code__, function.__defaults__ or ()
    names = code.co_varnames[code.co_argcount - len(values) : code.co_argcount]
    return dict(zip(names, values, strict=True)) | (function.__kwdefaults__ or {})


def _attributes_of(holder: Any) -> dict[str, Any]:
    slots = [name for kind in type(holder).__mro__ for name in _slots_of(kind)]
    return {name: getattr(holder, name) for name in slots if hasattr(holder, name)} | getattr(holder, "__dict__", {})


def _slots_of(kind: type) -> tuple[str, ...]:
    slots = kind.__dict__.get("__slots__", ())
    return (slots,) if isinstance(slots, str) else tuple(slots)


def _list_values(values: Mapping[str, Any], depth: int) -> list[str]:
    return [f"{name}={_describe(values[name], depth)}" for name in sorted(values)]


def _is_plain(value: Any) -> bool:
    if isinstance(value, tuple | list | set | frozenset):
        return all(map(_is_plain, value))
    return value is None or isinstance(value, bool | int | float | complex | str | bytes)


def _describe(value: Any, depth: int) -> str:
    if depth >= _DEEPEST:
        return "..."
    if isinstance(value, np.ndarray) and value.dtype != np.object_:
        return f"{value.dtype}{list(value.shape)}#{_digest(np.ascontiguousarray(value).tobytes())}"
    if isinstance(value, Mapping):
        items = (f"{_describe(key, depth + 1)}: {_describe(each, depth + 1)}" for key, each in value.items())
        return _shorten("{" + ", ".join(sorted(items)) + "}")
    if isinstance(value, set | frozenset):
        # Their own order is of the process: texts are hashed with a seed.
        return _shorten("{" + ", ".join(sorted(_describe(each, depth + 1) for each in value)) + "}")
    if isinstance(value, list | tuple):
        return _shorten("[" + ", ".join(_describe(each, depth + 1) for each in value) + "]")
    if _is_plain(value) or isinstance(value, np.generic | np.dtype | PurePath | re.Pattern):
        return _shorten(repr(value))
    if callable(value) and not isinstance(value, type):
        return _name(value, depth + 1)
    kind = value if isinstance(value, type) else type(value)
    return f"{kind.__module__}.{kind.__qualname__}"


def _shorten(text: str) -> str:
    return text if len(text) <= _LONGEST_TEXT else f"{text[:20]}...#{_digest(text.encode())}"


def _describe_code(code: CodeType) -> str:
    constants = [_describe_code(each) if isinstance(each, CodeType) else _describe(each, 0) for each in code.co_consts]
    return f"{code.co_code.hex()} {code.co_names} {constants}"


def _digest(data: bytes) -> str:
    return xxhash.xxh3_64_hexdigest(data)[:8]
