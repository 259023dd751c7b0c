"""The root of all errors: how an error declares its fields, its message, and what its caller may do."""

from __future__ import annotations

from dataclasses import dataclass, field, fields, is_dataclass
from enum import Enum
from string import Formatter
from typing import Any, ClassVar, TypeVar, dataclass_transform


class Recovery(Enum):
    """What a caller may do about an error."""

    RETRY = "retry"
    """The same call may succeed later, as it is."""
    REJOIN = "rejoin"
    """The worker must join again, or restore in the new generation; the same call will not succeed before that."""
    STOP = "stop"
    """The same call fails again until someone changes something."""


class StrataError(Exception):
    """The root: ``except StrataError`` catches every error that Strata raises on purpose, and no bugs."""

    recovery: ClassVar[Recovery] = Recovery.STOP
    template: ClassVar[str]
    """The message, with declared fields in braces; ``{path!p}`` shows a path, shortened if it is long or odd."""

    def __post_init__(self) -> None:
        super().__init__(self.message())

    def message(self) -> str:
        """Return what happened, to what, and what to do."""
        return _FORMATTER.vformat(self.template, (), fields_of(self))

    def __reduce__(self) -> tuple[Any, ...]:
        # An error crosses process boundaries with its fields; the default would call the constructor
        # with the finished message and fail.
        return revive, (type(self), self.args, vars(self))


E = TypeVar("E", bound=StrataError)


@dataclass_transform(eq_default=False, field_specifiers=(field,))
def with_fields(kind: type[E]) -> type[E]:
    """Give an error a constructor that takes its annotated fields and builds the message.

    A class without it is a group: it is there to be caught, and made with a text if nothing below it fits.
    """
    # Errors are compared and hashed by identity, and shown by their message, as all exceptions are.
    return dataclass(eq=False, repr=False, match_args=False)(kind)


def field_names(kind: type[StrataError]) -> list[str]:
    """Return the names of the fields that an error declares; a group declares none."""
    declared: Any = kind
    return [each.name for each in fields(declared)] if is_dataclass(declared) else []


def fields_of(error: StrataError) -> dict[str, Any]:
    """Return the declared fields of an error by name."""
    return {name: getattr(error, name) for name in field_names(type(error))}


def revive(kind: type[StrataError], args: tuple[Any, ...], state: dict[str, Any]) -> StrataError:
    """Make an error again from its message and fields, on the other side of a process boundary."""
    error = kind.__new__(kind, *args)
    error.args = args
    vars(error).update(state)
    return error


def choices(known: list[str], *, shown: int = 5) -> str:
    """Say what there is to choose from."""
    if not known:
        return "none is registered yet"
    more = f" and {len(known) - shown} more" if len(known) > shown else ""
    return f"there are {', '.join(known[:shown])}{more}"


def shorten(text: str) -> str:
    """Show a path as it is, and one that is long or has odd characters as a bounded literal."""
    if len(text) <= 300 and text.isprintable() and text:
        return text
    return repr(text) if len(text) <= 300 else f"{text[:200]!r}... ({len(text)} characters)"


class _Formatter(Formatter):
    def convert_field(self, value: Any, conversion: Any) -> Any:
        return shorten(value) if conversion == "p" else super().convert_field(value, conversion)


_FORMATTER = _Formatter()


class StrataWarning(UserWarning):
    """The root of what Strata warns of."""
