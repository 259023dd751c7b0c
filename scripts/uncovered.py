"""Fail when a line of src/ is executed by no test and is not listed in tests/uncovered.toml, or when an entry is stale.

``make coverage`` runs it after the tests. It combines what the processes measured, prints the unexecuted lines of each
file, and writes build/coverage/html, which also has the branches. An entry of tests/uncovered.toml has these keys:

file       its path below src/
function   the qualified name of a function; without it, code outside of functions is meant
lines      the unexecuted lines, as they are written; without it, no line of the function (or of the file) is executed
reason     why no test executes them
sometimes  true if chance decides whether a test executes them; such an entry is stale only if its code is gone
"""

from __future__ import annotations

import ast
import sys
import tomllib
from dataclasses import dataclass
from pathlib import Path

from coverage import Coverage
from coverage.exceptions import NoDataError

ROOT = Path(__file__).resolve().parent.parent
SOURCE = ROOT / "src"
LISTED = ROOT / "tests" / "uncovered.toml"
HTML = "build/coverage/html/index.html"


@dataclass(frozen=True, kw_only=True)
class Entry:
    """Code that no test executes, and why."""

    file: str
    reason: str
    function: str = ""
    lines: tuple[str, ...] = ()
    sometimes: bool = False

    def __str__(self) -> str:
        return " ".join(part for part in (self.file, self.function) if part)


@dataclass(frozen=True, kw_only=True)
class Line:
    """A statement of a file: its first line, and the function that it belongs to ("" outside of functions)."""

    number: int
    text: str
    function: str
    is_executed: bool


def read_entries(text: str) -> list[Entry]:
    """Return the entries of tests/uncovered.toml; raise a TypeError for a key that is unknown or missing."""
    return [
        Entry(**{**table, "lines": tuple(table.get("lines", ()))}) for table in tomllib.loads(text).get("uncovered", [])
    ]


def read_lines(source: str, *, statements: set[int], missing: set[int]) -> list[Line]:
    """Return the statements of a file whose first lines are given by number."""
    functions: dict[int, str] = {}
    _name_functions(ast.parse(source), "", functions)
    texts = source.splitlines()
    return [
        Line(
            number=number,
            text=texts[number - 1].strip(),
            function=functions.get(number, ""),
            is_executed=number not in missing,
        )
        for number in sorted(statements)
    ]


def _name_functions(node: ast.AST, scope: str, functions: dict[int, str]) -> None:
    for child in ast.iter_child_nodes(node):
        name = scope
        if isinstance(child, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
            name = f"{scope}.{child.name}" if scope else child.name
        if isinstance(child, ast.FunctionDef | ast.AsyncFunctionDef):
            # The line of def itself runs when the code around it does.
            for number in range(child.body[0].lineno, (child.end_lineno or child.lineno) + 1):
                functions[number] = name
        _name_functions(child, name, functions)


def judge(files: dict[str, list[Line]], entries: list[Entry]) -> list[str]:
    """Return a sentence for each unexecuted line that is not listed, and for each entry that is stale."""
    problems = []
    listed: set[tuple[str, int]] = set()
    for entry in entries:
        lines = files.get(entry.file, [])
        own = [line for line in lines if line.function == entry.function] if entry.function or entry.lines else lines
        if not own:
            problems.append(f"{entry}: is listed, and does not exist")
        for text in entry.lines:
            same = [line for line in own if line.text == text]
            unexecuted = [line for line in same if not line.is_executed]
            listed.update((entry.file, line.number) for line in unexecuted)
            if own and not same:
                problems.append(f"{entry}: is listed with a line that does not exist: {text}")
            elif own and not unexecuted and not entry.sometimes:
                problems.append(f"{entry}: is listed with a line that a test executes: {text}")
        if not entry.lines:
            listed.update((entry.file, line.number) for line in own if not line.is_executed)
            executed = [line for line in own if line.is_executed]
            if executed and not entry.sometimes:
                problems.append(
                    f"{entry}: is listed, and a test executes line {executed[0].number}: {executed[0].text}"
                )
    problems += [
        f"{file}:{line.number}: no test executes this line of {line.function or 'the module'}: {line.text}"
        for file, lines in files.items()
        for line in lines
        if not line.is_executed and (file, line.number) not in listed
    ]
    return problems


def measured(coverage: Coverage) -> dict[str, list[Line]]:
    """Return the statements of every file of src/, by its path below src/."""
    files = {}
    for path in sorted(coverage.get_data().measured_files()):
        _, statements, _, missing, _ = coverage.analysis2(path)
        source = Path(path).read_text()
        name = Path(path).relative_to(SOURCE).as_posix()
        files[name] = read_lines(source, statements=set(statements), missing=set(missing))
    return files


def main() -> int:
    """Combine the measurements, report them, and return 1 if src/ and the list disagree."""
    coverage = Coverage(config_file=str(ROOT / "pyproject.toml"))
    try:
        coverage.combine(strict=True)  # also what an earlier call has combined
    except NoDataError:
        coverage.load()
    coverage.save()
    coverage.report()
    coverage.html_report()
    print(f"Wrote {HTML}")
    problems = judge(measured(coverage), read_entries(LISTED.read_text()))
    for problem in problems:
        print(problem)
    if problems:
        print(f"{len(problems)} problems: write a test, or list the line with a reason in {LISTED.relative_to(ROOT)}")
    return 1 if problems else 0


if __name__ == "__main__":
    sys.exit(main())
