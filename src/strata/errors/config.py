"""Errors of settings, names and missing libraries, found before anything starts."""

from __future__ import annotations

from dataclasses import KW_ONLY, dataclass

from strata import ids
from strata.errors.base import StrataError, with_fields


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


@with_fields
class ConfigError(StrataError):
    """A setting is invalid; nothing was started."""

    problems: list[ConfigProblem]

    def message(self) -> str:
        """Return all problems in one line."""
        return "; ".join(map(str, self.problems))


@with_fields
class InvalidIdError(StrataError, ValueError):
    """A name is not allowed, because it cannot be part of a storage path."""

    kind: str
    value: object
    problem: str

    def message(self) -> str:
        """Return which name, with a long one cut."""
        shown = repr(self.value)
        if len(shown) > 60:
            shown = f"{shown[:57]}..."
        return (
            f"{self.kind} {shown} {self.problem}; "
            f"use 1 to {ids.MAX_LENGTH} characters of A-Z a-z 0-9 . _ - that do not start with a dot"
        )

    @classmethod
    def check(cls, kind: str, value: object) -> str:
        """Return the value as the id of something of this kind, or raise."""
        problem = ids.find_problem(value)
        if problem is not None:
            raise cls(kind, value, problem)
        return str(value)


@with_fields
class MissingProgramError(StrataError):
    """A program that this feature starts is not installed."""

    program: str
    _: KW_ONLY
    needed_for: str
    install: str

    template = "{needed_for} needs the program {program}: {install}"


@with_fields
class MissingExtraError(StrataError, ImportError):
    """An optional library that this feature needs is not installed."""

    extra: str
    _: KW_ONLY
    needed_for: str

    template = "{needed_for} needs an optional library: pip install 'strata-runtime[{extra}]'"
