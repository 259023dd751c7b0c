"""A user's metadata as JSON: what it can hold is kept, and whatever else there is, is left out and never raises."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from strata.checkpoint.format import kinds
from strata.checkpoint.format.tensors import RefusedError
from strata.checkpoint.format.tree import MAX_DEPTH, show_path
from strata.reported_numbers import plain_number

# Python reads and writes integers of up to 4300 decimal digits.
_MAX_INT_BITS = 14_000
_NAMES = {None: "null", True: "true", False: "false"}


class _LeftOutError(Exception):
    """A value that JSON cannot hold; the text says what it is."""


def plain_metadata(metadata: Mapping[str, Any] | None) -> tuple[dict[str, Any], list[str]]:
    """Return a copy as it will come back, and what was left out, each with its place and the reason.

    NaN and infinity are kept, and so are numbers of NumPy and tensors with one element. In a list, null stands for what
    is left out, so that the others keep their places. Raises ValueError if it is no mapping at all.
    """
    if metadata is None:
        return {}, []
    if not isinstance(metadata, Mapping):
        raise ValueError(  # noqa: TRY004 - as for other arguments
            f"metadata must be a dict, not {type(metadata).__name__}"
        )
    cleaning = _Cleaning()
    kept: dict[str, Any] = cleaning.clean_container(metadata, ())
    return kept, cleaning.left_out


class _Cleaning:
    """One pass through metadata, with what it leaves out."""

    def __init__(self) -> None:
        self.left_out: list[str] = []
        self._around: set[int] = set()

    def _clean_dict(self, value: Mapping[Any, Any], path: tuple[str | int, ...]) -> dict[str, Any]:
        found: dict[str, Any] = {}
        for key, child in value.items():
            try:
                name = _plain_key(key)
            except _LeftOutError as error:
                self.left_out.append(f"a key of {_show(path)}, which {error}")
                continue
            try:
                found[name] = self._clean(child, (*path, name))
            except _LeftOutError as error:
                self.left_out.append(f"{_show((*path, name))}, which {error}")
        return found

    def _clean(self, value: Any, path: tuple[str | int, ...]) -> Any:
        if value is None:
            return None
        if isinstance(value, str):
            return _plain_text(value)
        if isinstance(value, Mapping | list | tuple):
            return self.clean_container(value, path)
        return _plain_number(value)

    def clean_container(
        self, value: Mapping[Any, Any] | list[Any] | tuple[Any, ...], path: tuple[str | int, ...]
    ) -> Any:
        """Return what can be kept of a dict or a list."""
        if len(path) >= MAX_DEPTH:
            raise _LeftOutError(f"is more than {MAX_DEPTH} levels deep")
        if id(value) in self._around:
            raise _LeftOutError("contains itself")
        self._around.add(id(value))
        try:
            if isinstance(value, Mapping):
                return self._clean_dict(value, path)
            return [self._clean_item(child, (*path, index)) for index, child in enumerate(value)]
        finally:
            self._around.discard(id(value))

    def _clean_item(self, value: Any, path: tuple[str | int, ...]) -> Any:
        try:
            return self._clean(value, path)
        except _LeftOutError as error:
            self.left_out.append(f"{_show(path)}, which {error}")
            return None


def _plain_key(key: Any) -> str:
    if isinstance(key, str):
        return _plain_text(key)
    if key is None or isinstance(key, bool):
        return _NAMES[key]
    return str(_plain_number(key))


def _plain_number(value: Any) -> bool | int | float:
    number = plain_number(value)
    if number is None:
        raise _LeftOutError(f"is of type {type(value).__name__}: save a number, text, or a list or dict of them")
    if isinstance(number, int) and number.bit_length() > _MAX_INT_BITS:
        raise _LeftOutError(f"is an integer of {number.bit_length()} bits: save it as text")
    return number


def _plain_text(value: str) -> str:
    try:
        kinds.check_text(value)
    except RefusedError as error:
        raise _LeftOutError(str(error)) from None
    # Of a class made of str, such as an enum, str() may be another text.
    return str.__str__(value)


def _show(path: tuple[str | int, ...]) -> str:
    return f"metadata {show_path(path)!r:.200}" if path else "metadata"
