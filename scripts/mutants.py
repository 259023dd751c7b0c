"""Mutants as values: where code may be mutated, how a mutant is named, and which survivors are explained. Pure."""

from __future__ import annotations

import ast
import random
import tomllib
from collections.abc import Hashable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TypeVar

Place = TypeVar("Place", bound=Hashable)
Change = TypeVar("Change")
# A position as parso and ast count it: the line from one, the column from zero.
Position = tuple[int, int]


@dataclass(frozen=True, order=True)
class MutantKey:
    """The name of a mutant: it stays the same when lines above it come or go."""

    file: str
    function: str
    before: str
    after: str


@dataclass(frozen=True)
class Function:
    """A function of a module or a method of a class, with all functions inside it."""

    name: str
    first_line: int
    """The line of its first decorator, or of its ``def``: what its code object calls ``co_firstlineno``."""
    node: ast.FunctionDef | ast.AsyncFunctionDef


class Source:
    """One file: the functions in it, and which of their code is worth a mutant.

    Only the bodies of functions are mutated. In them are left out: docstrings, annotations, wording (f-strings, notes
    of errors, ``__repr__`` and ``__str__``), and what cannot happen (assertions and the ``strict`` of a ``zip``).
    """

    def __init__(self, text: str) -> None:
        self._functions = list(_functions(ast.parse(text), ""))
        self._bytes_before = [line.encode() for line in text.splitlines()]

    def function_at(self, position: Position) -> Function | None:
        """Return the function whose code at this position may be mutated, or None if it must stay as it is."""
        for function in self._functions:
            body = function.node.body
            if (body[0].lineno, body[0].col_offset) <= self._in_bytes(position) < _end(body[-1]):
                return None if self._is_left_out(function, position) else function
        return None

    def statement_lines(self, function: Function, line: int) -> range:
        """Return the lines of the smallest statement around a line; of one with a body, only those before the body."""
        found = range(line, line + 1)
        for node in ast.walk(function.node):
            if isinstance(node, ast.stmt) and node is not function.node:
                body = getattr(node, "body", None)
                last = max(node.lineno, body[0].lineno - 1) if body else node.end_lineno or node.lineno
                # What is deeper comes later.
                if node.lineno <= line <= last:
                    found = range(node.lineno, last + 1)
        return found

    def _is_left_out(self, function: Function, position: Position) -> bool:
        if function.node.name in ("__repr__", "__str__"):
            return True
        place = self._in_bytes(position)
        return any(
            (part.lineno, part.col_offset) <= place < _end(part)
            for node in ast.walk(function.node)
            for part in _parts_left_out(node)
        )

    def _in_bytes(self, position: Position) -> Position:
        """ast counts columns in bytes, parso in characters."""
        line, column = position
        return line, len(self._bytes_before[line - 1].decode()[:column].encode())


def _functions(node: ast.Module | ast.ClassDef, prefix: str) -> Iterator[Function]:
    for child in node.body:
        if isinstance(child, ast.ClassDef):
            yield from _functions(child, f"{prefix}{child.name}.")
        elif isinstance(child, ast.FunctionDef | ast.AsyncFunctionDef):
            first_line = min([child.lineno, *(each.lineno for each in child.decorator_list)])
            yield Function(prefix + child.name, first_line, child)


def _parts_left_out(node: ast.AST) -> Iterator[ast.expr | ast.stmt]:
    if isinstance(node, ast.JoinedStr | ast.Assert):
        yield node
    elif isinstance(node, ast.Expr):
        if isinstance(node.value, ast.Constant):
            yield node  # a docstring
    elif isinstance(node, ast.Call):
        if isinstance(node.func, ast.Attribute) and node.func.attr == "add_note":
            yield node
    elif isinstance(node, ast.keyword) and node.arg == "strict":
        yield node.value
    elif isinstance(node, ast.AnnAssign):
        yield node.annotation
    elif isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
        arguments = node.args
        annotated = [*arguments.posonlyargs, *arguments.args, *arguments.kwonlyargs, arguments.vararg, arguments.kwarg]
        yield from (each.annotation for each in annotated if each and each.annotation)
        if node.returns:
            yield node.returns


def _end(node: ast.expr | ast.stmt) -> Position:
    return node.end_lineno or node.lineno, node.end_col_offset or node.col_offset


def changed_lines(before: str, after: str) -> tuple[int, str, str]:
    """Return the first line that differs, and the lines that differ in both texts, each as one line."""
    old, new = before.splitlines(), after.splitlines()
    start = 0
    while start < min(len(old), len(new)) and old[start] == new[start]:
        start += 1
    end = 0
    while end < min(len(old), len(new)) - start and old[-1 - end] == new[-1 - end]:
        end += 1
    return start + 1, _one_line(old[start : len(old) - end]), _one_line(new[start : len(new) - end])


def _one_line(lines: Iterable[str]) -> str:
    return " ".join(" ".join(lines).split())


def sample(
    changes: Mapping[Place, Sequence[Change]], *, count: int, chance: random.Random
) -> Iterator[tuple[Place, Change]]:
    """Yield up to ``count`` places in a random order, with one change for each.

    A place is drawn before its change: an operator with ten replacements is drawn as often as one with a single one.
    """
    places = list(changes)
    for place in chance.sample(places, min(count, len(places))):
        yield place, chance.choice(changes[place])


def explained(text: str) -> dict[MutantKey, str]:
    """Return the reason for each mutant that may survive, from the text of tests/mutants.toml."""
    reasons: dict[MutantKey, str] = {}
    for entry in tomllib.loads(text).get("mutant", []):
        reason = entry.pop("reason")
        key = MutantKey(**entry)
        if not reason or key in reasons:
            raise ValueError(f"needs one reason: {key}")
        reasons[key] = reason
    return reasons


def is_stale(key: MutantKey, text: str | None) -> bool:
    """Whether an explanation is about code that is not in its file any more."""
    if text is None:
        return True
    lines = text.splitlines()
    for function in _functions(ast.parse(text), ""):
        if function.name == key.function:
            body = _one_line(lines[function.node.lineno - 1 : function.node.end_lineno])
            if key.before in body:
                return False
    return True
