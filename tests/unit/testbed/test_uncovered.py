"""The gate of ``make coverage``: which disagreements between src/ and tests/uncovered.toml it names."""

from __future__ import annotations

import pytest

from scripts.uncovered import Entry, Line, judge, read_entries, read_lines, write_entries

SOURCE = """\
import os


class Store:
    def read(self) -> int:
        if os.sep:
            return 1
        return 2

    def write(self) -> None:
        raise OSError(
            "no space",
        )
"""
STATEMENTS = {1, 4, 5, 6, 7, 8, 10, 11}
READ = Entry(file="a.py", function="Store.read", lines=("return 2",), reason="r")
WRITE = Entry(file="a.py", function="Store.write", reason="r")


def found(*missing: int) -> dict[str, list[Line]]:
    return {"a.py": read_lines(SOURCE, statements=STATEMENTS, missing=set(missing))}


def test_lines_that_are_listed_are_accepted() -> None:
    assert judge(found(8, 11), [READ, WRITE]) == []
    assert judge(found(*STATEMENTS), [Entry(file="a.py", reason="r")]) == []


def test_a_line_that_no_test_executes_is_named_with_its_function() -> None:
    assert judge(found(8), []) == ["a.py:8: no test executes this line of Store.read: return 2"]
    assert judge(found(1), [READ])[-1] == "a.py:1: no test executes this line of the module: import os"


def test_a_listed_function_does_not_excuse_a_line_of_another_one() -> None:
    assert judge(found(8, 11), [WRITE]) == ["a.py:8: no test executes this line of Store.read: return 2"]


def test_an_entry_whose_code_is_executed_is_stale() -> None:
    assert judge(found(), [READ]) == ["a.py Store.read: is listed with a line that a test executes: return 2"]
    assert judge(found(8), [Entry(file="a.py", function="Store.read", reason="r")]) == [
        "a.py Store.read: is listed, and a test executes line 6: if os.sep:"
    ]


@pytest.mark.parametrize(
    "entry",
    [
        Entry(file="gone.py", reason="r"),
        Entry(file="a.py", function="Store.gone", reason="r"),
        Entry(file="a.py", function="Store.read", lines=("return 3",), reason="r", sometimes=True),
    ],
    ids=["file", "function", "line"],
)
def test_an_entry_whose_code_is_gone_is_stale(entry: Entry) -> None:
    [problem] = judge(found(), [entry])
    assert "does not exist" in problem


def test_code_that_only_chance_executes_may_be_executed() -> None:
    sometimes = Entry(file="a.py", function="Store.write", reason="r", sometimes=True)
    assert judge(found(), [sometimes]) == judge(found(11), [sometimes]) == []


def test_an_entry_without_a_reason_is_refused() -> None:
    with pytest.raises(TypeError, match="reason"):
        read_entries('[[uncovered]]\nfile = "a.py"\n')


def test_entries_are_read_with_their_lines() -> None:
    text = '[[uncovered]]\nfile = "a.py"\nfunction = "Store.read"\nlines = ["return 2"]\nreason = "r"\n'
    assert read_entries(text) == [READ]


@pytest.mark.parametrize("missing", [(8,), (8, 11), (1, 8), tuple(STATEMENTS), ()], ids=str)
def test_entries_that_are_written_name_what_is_missing_and_nothing_else(missing: tuple[int, ...]) -> None:
    entries = read_entries(write_entries(found(*missing), []))
    assert judge(found(*missing), entries) == []
    assert write_entries(found(*missing), entries) == ""


def test_entries_are_written_for_a_whole_function_at_once() -> None:
    assert read_entries(write_entries(found(8, 11), [READ])) == [Entry(file="a.py", function="Store.write", reason="")]
