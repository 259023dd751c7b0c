"""Fail when a line of src/ is executed by no test and is not listed in tests/uncovered.toml, or when an entry is stale.

CI and ``make coverage`` run it after the tests. It combines what the processes measured, and prints the unexecuted
lines of each file. With ``--html`` it also writes build/coverage/html, which has the branches, too. With ``--entries``
it prints entries for all lines that are not listed, to be put into tests/uncovered.toml under a reason. There, each
reason has these keys:

reason     why no test executes this code
functions  by file (its path below src/) and qualified name of a function, how many of its lines are not executed; ""
           stands for the code outside of functions
lines      by file, lines that are not executed, as they are written, wherever they are in it
sometimes  true if chance decides whether a test executes them, or only programs that tests start do, which CI does not
           measure

An entry is stale if its code is gone, or if tests execute all lines of a function or a line that it names (which
``sometimes`` allows). More unexecuted lines in a function than its entry says are not listed.

What races decide may be executed today and not tomorrow. With ``--tolerate 20`` up to 20 lines that are not listed, and
stale entries, are printed and do not fail the run; a function of five or more lines always does if none is executed.
"""

from __future__ import annotations

import argparse
import ast
import json
import sys
import tomllib
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path

from coverage import Coverage
from coverage.exceptions import NoDataError

ROOT = Path(__file__).resolve().parent.parent
SOURCE = ROOT / "src"
LISTED = ROOT / "tests" / "uncovered.toml"
HTML = "build/coverage/html/index.html"
# Chance alone may decide whether a test executes a shorter function: what is called when a process forks, say.
WHOLE_LINES = 5


@dataclass(frozen=True, kw_only=True)
class Entry:
    """Code of one file that no test executes for one reason."""

    file: str
    reason: str
    functions: Mapping[str, int] = field(default_factory=dict)
    lines: Sequence[str] = ()
    sometimes: bool = False


@dataclass(frozen=True, kw_only=True)
class Line:
    """A statement of a file: its first line, and the function that it belongs to ("" outside of functions)."""

    number: int
    text: str
    function: str
    is_executed: bool


def read_entries(text: str) -> list[Entry]:
    """Return the entries of tests/uncovered.toml, one for each reason and file; raise a TypeError for unknown keys."""
    return [entry for table in tomllib.loads(text).get("uncovered", []) for entry in _read_reason(**table)]


def _read_reason(
    *,
    reason: str,
    functions: Mapping[str, Mapping[str, int]] | None = None,
    lines: Mapping[str, Sequence[str]] | None = None,
    sometimes: bool = False,
) -> list[Entry]:
    found, texts = functions or {}, lines or {}
    return [
        Entry(file=file, reason=reason, functions=found.get(file, {}), lines=texts.get(file, ()), sometimes=sometimes)
        for file in dict.fromkeys((*found, *texts))
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


def judge(files: Mapping[str, Sequence[Line]], entries: Sequence[Entry]) -> list[str]:
    """Return a sentence for each entry that is stale, and for each unexecuted line that is not listed."""
    problems = [problem for entry in entries for problem in _find_stale(files.get(entry.file, ()), entry)]
    return problems + [
        f"{file}:{line.number}: no test executes this line of {line.function or 'the module'}: {line.text}"
        for file, lines in find_unlisted(files, entries).items()
        for line in lines
    ]


def find_unlisted(files: Mapping[str, Sequence[Line]], entries: Sequence[Entry]) -> dict[str, list[Line]]:
    """Return the lines of each file that no test executes and no entry covers; of a function all, or none."""
    found = {}
    for file, lines in files.items():
        own = [entry for entry in entries if entry.file == file]
        texts = {text for entry in own for text in entry.lines}
        limits = Counter[str]()
        for entry in own:
            limits.update(entry.functions)
        missing = [line for line in lines if not line.is_executed and line.text not in texts]
        counts = Counter(line.function for line in missing)
        found[file] = [line for line in missing if counts[line.function] > limits[line.function]]
    return found


def has_dropped(
    files: Mapping[str, Sequence[Line]],
    entries: Sequence[Entry],
    *,
    tolerated_lines: int,
    whole_lines: int = WHOLE_LINES,
) -> bool:
    """Return whether more lines are unlisted than chance explains, or all lines of a function with ``whole_lines``."""
    unlisted = find_unlisted(files, entries)
    sizes = Counter((file, line.function) for file, lines in files.items() for line in lines)
    missing = Counter((file, line.function) for file, lines in unlisted.items() for line in lines)
    is_whole = any(count >= whole_lines and count == sizes[function] for function, count in missing.items())
    return is_whole or sum(missing.values()) > tolerated_lines


def _find_stale(lines: Sequence[Line], entry: Entry) -> Iterator[str]:
    for function in entry.functions:
        yield from _judge_named(entry, function or "the module", [line for line in lines if line.function == function])
    for text in entry.lines:
        yield from _judge_named(entry, text, [line for line in lines if line.text == text])


def _judge_named(entry: Entry, name: str, named: Sequence[Line]) -> Iterator[str]:
    if not named:
        yield f"{entry.file}: is listed, and does not exist: {name}"
    elif not entry.sometimes and all(line.is_executed for line in named):
        yield f"{entry.file}: is listed, and a test executes it: {name}"


def write_entries(files: Mapping[str, Sequence[Line]], entries: Sequence[Entry]) -> str:
    """Return the functions with lines that no test executes and no entry covers, as tests/uncovered.toml has them."""
    rows = []
    for file, unlisted in find_unlisted(files, entries).items():
        # A string of JSON is one of TOML.
        counts = Counter(line.function for line in unlisted).items()
        functions = ", ".join(f"{json.dumps(function)} = {count}" for function, count in counts)
        rows += [f"{json.dumps(file)} = {{ {functions} }}"] if functions else []
    return "\n".join(("[[uncovered]]", 'reason = ""', "[uncovered.functions]", *rows)) if rows else ""


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
    parser.add_argument("--html", action="store_true", help=f"write {HTML}, with lines and branches")
    parser.add_argument("--tolerate", type=int, metavar="LINES", help="pass with up to so many lines not listed")
    options = parser.parse_args()
    coverage = Coverage(config_file=str(ROOT / "pyproject.toml"))
    coverage.load()  # what an earlier call has combined, to which the following adds
    with suppress(NoDataError):
        coverage.combine(strict=True)
    coverage.save()
    files, entries = measured(coverage), read_entries(LISTED.read_text())
    if options.entries:
        print(write_entries(files, entries))
        return 0
    coverage.report()
    if options.html:
        coverage.html_report()
        print(f"Wrote {HTML}")
    problems = judge(files, entries)
    for problem in problems:
        print(problem)
    if problems:
        print(f"{len(problems)} problems: write a test, or list the line with a reason in {LISTED.relative_to(ROOT)}")
    if options.tolerate is not None:
        return 1 if has_dropped(files, entries, tolerated_lines=options.tolerate) else 0
    return 1 if problems else 0


if __name__ == "__main__":
    sys.exit(main())
