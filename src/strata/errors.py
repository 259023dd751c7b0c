"""Every error that Strata raises on purpose.

    StrataError
    ├── ConfigError         a setting has a value that cannot be used
    ├── InvalidIdError      a name that cannot become a storage path   (also a ValueError)
    └── MissingExtraError   an optional library is not installed       (also an ImportError)

Each constructor takes typed fields and builds the message: what happened, to what, and what to do.
The fields stay on the error, so that code can act on them and a process boundary can carry them.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any


class StrataError(Exception):
    """The root: ``except StrataError`` catches all that Strata raises on purpose, and no bug."""

    def __reduce__(self) -> tuple[Any, ...]:
        # An error crosses process boundaries with its fields; the default would call the constructor
        # with the finished message and fail.
        return _revive, (type(self), self.args, vars(self))


def _revive(kind: type[StrataError], args: tuple[Any, ...], fields: dict[str, Any]) -> StrataError:
    error = kind.__new__(kind, *args)
    error.args = args
    vars(error).update(fields)
    return error


@dataclass(frozen=True, slots=True)
class ConfigProblem:
    """One wrong setting: its name, where it was set, the value as given, and what would be right."""

    name: str
    source: str
    value: str | None
    expected: str

    def __str__(self) -> str:
        given = self.name if self.value is None else f"{self.name}={self.value!r}"
        return f"{given} ({self.source}): expected {self.expected}"


class ConfigError(StrataError):
    """Settings that cannot be used; nothing was started with them."""

    def __init__(self, problems: list[ConfigProblem]) -> None:
        self.problems = problems
        super().__init__("; ".join(map(str, problems)))


class InvalidIdError(StrataError, ValueError):
    """A name that cannot become a storage path."""

    def __init__(self, kind: str, value: object, problem: str) -> None:
        self.kind = kind
        self.value = value
        self.problem = problem
        shown = repr(value)
        if len(shown) > 60:
            shown = f"{shown[:57]}..."
        super().__init__(
            f"{kind} {shown} {problem}; "
            "use 1 to 128 characters of A-Z a-z 0-9 . _ - that do not start with a dot"
        )


class MissingExtraError(StrataError, ImportError):
    """An optional library that this feature needs is not installed."""

    def __init__(self, extra: str, *, needed_for: str) -> None:
        self.extra = extra
        self.needed_for = needed_for
        super().__init__(f"{needed_for} needs an optional library: pip install 'strata-runtime[{extra}]'")
