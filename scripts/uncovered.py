"""Fail when a line of src/ is executed by no test and is not listed in tests/uncovered.toml, or when an entry is stale.

``make coverage`` runs it after the tests. It combines what the processes measured, prints the unexecuted lines of each
file, and writes build/coverage/html, which also has the branches. With ``--entries`` it prints entries for all lines
that are not listed, to be put into tests/uncovered.toml with a reason each. An entry has these keys:

file       its path below src/
function   the qualified name of a function; without it, code outside of functions is meant
lines      the unexecuted lines, as they are written; without it, no line of the function (or of the file) is executed
reason     why no test executes them
sometimes  true if chance decides whether a test executes them; such an entry is stale only if its code is gone
"""

from __future__ import annotations

import argparse
import ast
import json
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
    """Return a sentence for each entry that is stale, and for each unexecuted line that is not listed."""
    problems = [f"{entry}: is listed{problem}" for entry in entries for problem in _find_stale(files, entry)]
    return problems + [
        f"{file}:{line.number}: no test executes this line of {line.function or 'the module'}: {line.text}"
        for file, lines in find_unlisted(files, entries).items()
        for line in lines
    ]


def find_unlisted(files: dict[str, list[Line]], entries: list[Entry]) -> dict[str, list[Line]]:
    """Return the lines of each file that no test executes and no entry names."""
    listed = {(entry.file, line.number) for entry in entries for line in _named_by(files, entry)}
    return {
        file: [line for line in lines if not line.is_executed and (file, line.number) not in listed]
        for file, lines in files.items()
    }


def _named_by(files: dict[str, list[Line]], entry: Entry) -> list[Line]:
    lines = files.get(entry.file, [])
    if entry.function or entry.lines:
        lines = [line for line in lines if line.function == entry.function]
    return [line for line in lines if not entry.lines or line.text in entry.lines]


def _find_stale(files: dict[str, list[Line]], entry: Entry) -> list[str]:
    named = _named_by(files, entry)
    if not named:
        return [", and does not exist"]
    if not entry.lines:
        executed = [line for line in named if line.is_executed and not entry.sometimes]
        return [f", and a test executes line {line.number}: {line.text}" for line in executed[:1]]
    problems = []
    for text in entry.lines:
        same = [line for line in named if line.text == text]
        if not same:
            problems.append(f" with a line that does not exist: {text}")
        elif all(line.is_executed for line in same) and not entry.sometimes:
            problems.append(f" with a line that a test executes: {text}")
    return problems


def write_entries(files: dict[str, list[Line]], entries: list[Entry]) -> str:
    """Return entries, without reasons, for all lines that no test executes and no entry names."""
    written = []
    for file, unlisted in find_unlisted(files, entries).items():
        if len(unlisted) == len(files[file]):
            written += [_write_entry(file, "", [])] if unlisted else []
            continue
        for function in dict.fromkeys(line.function for line in unlisted):
            own = [line for line in unlisted if line.function == function]
            is_whole = function and len(own) == sum(line.function == function for line in files[file])
            written.append(_write_entry(file, function, [] if is_whole else [line.text for line in own]))
    return "\n".join(written)


def _write_entry(file: str, function: str, lines: list[str]) -> str:
    # A string of JSON is one of TOML.
    rows = [f"file = {json.dumps(file)}"]
    rows += [f"function = {json.dumps(function)}"] if function else []
    rows += [f"lines = {json.dumps(list(dict.fromkeys(lines)), ensure_ascii=False)}"] if lines else []
    return "\n".join(("[[uncovered]]", *rows, 'reason = ""', ""))


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
    parser = argparse.ArgumentParser(description="Compare the lines that no test executes with tests/uncovered.toml.")
    parser.add_argument("--entries", action="store_true", help="print entries for the lines that are not listed")
    options = parser.parse_args()
    coverage = Coverage(config_file=str(ROOT / "pyproject.toml"))
    try:
        coverage.combine(strict=True)  # also what an earlier call has combined
    except NoDataError:
        coverage.load()
    coverage.save()
    files, entries = measured(coverage), read_entries(LISTED.read_text())
    if options.entries:
        print(write_entries(files, entries))
        return 0
    coverage.report()
    coverage.html_report()
    print(f"Wrote {HTML}")
    problems = judge(files, entries)
    for problem in problems:
        print(problem)
    if problems:
        print(f"{len(problems)} problems: write a test, or list the line with a reason in {LISTED.relative_to(ROOT)}")
    return 1 if problems else 0


if __name__ == "__main__":
    sys.exit(main())
