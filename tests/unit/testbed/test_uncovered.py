"""The gate of ``make coverage``: which disagreements between src/ and tests/uncovered.toml it names."""

from __future__ import annotations

import pytest

from scripts.uncovered import Entry, Line, has_dropped, judge, read_entries, read_lines, write_entries

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
READ = Entry(file="a.py", lines=["return 2"], reason="r")
WRITE = Entry(file="a.py", functions={"Store.write": 1}, reason="r")


def found(*missing: int) -> dict[str, list[Line]]:
    return {"a.py": read_lines(SOURCE, statements=STATEMENTS, missing=set(missing))}


def test_lines_that_are_listed_are_accepted() -> None:
    assert judge(found(8, 11), [READ, WRITE]) == []


def test_a_line_that_no_test_executes_is_named_with_its_function() -> None:
    assert judge(found(8), []) == ["a.py:8: no test executes this line of Store.read: return 2"]
    assert judge(found(1), []) == ["a.py:1: no test executes this line of the module: import os"]


def test_a_listed_function_does_not_excuse_a_line_of_another_one() -> None:
    assert judge(found(8, 11), [WRITE]) == ["a.py:8: no test executes this line of Store.read: return 2"]


def test_a_function_may_not_lose_more_lines_than_its_entry_says() -> None:
    entry = Entry(file="a.py", functions={"Store.read": 1}, reason="r")
    assert judge(found(8), [entry]) == []
    assert len(judge(found(7, 8), [entry])) == 2
    assert judge(found(7, 8), [entry, READ]) == [], "a line that is listed by itself does not count"


def test_a_few_lines_more_are_tolerated_but_not_a_function_that_no_test_executes() -> None:
    assert not has_dropped(found(8), [], tolerated_lines=1)
    assert has_dropped(found(7, 8), [], tolerated_lines=1)
    assert has_dropped(found(6, 7, 8), [], tolerated_lines=3, whole_lines=3), "of Store.read no line is executed"
    assert not has_dropped(found(7, 8), [], tolerated_lines=3, whole_lines=2), "one of its lines is"
    assert not has_dropped(found(11), [], tolerated_lines=1, whole_lines=2), "Store.write is too short"
    assert not has_dropped(found(8, 11), [WRITE], tolerated_lines=1, whole_lines=1)
    assert not has_dropped(found(), [READ], tolerated_lines=0), "a stale entry is no drop"


def test_an_entry_whose_code_is_executed_is_stale() -> None:
    assert judge(found(), [READ]) == ["a.py: is listed, and a test executes it: return 2"]
    assert judge(found(), [WRITE]) == ["a.py: is listed, and a test executes it: Store.write"]


@pytest.mark.parametrize(
    "entry",
    [
        Entry(file="gone.py", functions={"Store.read": 1}, reason="r"),
        Entry(file="a.py", functions={"Store.gone": 1}, reason="r", sometimes=True),
        Entry(file="a.py", lines=["return 3"], reason="r", sometimes=True),
    ],
    ids=["file", "function", "line"],
)
def test_an_entry_whose_code_is_gone_is_stale(entry: Entry) -> None:
    [problem] = judge(found(), [entry])
    assert "does not exist" in problem


def test_code_that_only_chance_executes_may_be_executed() -> None:
    sometimes = Entry(file="a.py", functions={"Store.write": 1}, reason="r", sometimes=True)
    assert judge(found(), [sometimes]) == judge(found(11), [sometimes]) == []


def test_code_without_a_reason_is_refused() -> None:
    with pytest.raises(TypeError, match="reason"):
        read_entries('[[uncovered]]\nlines = { "a.py" = ["return 2"] }\n')


def test_a_reason_may_have_functions_and_lines_of_several_files() -> None:
    text = """
[[uncovered]]
reason = "r"
functions = { "a.py" = { "Store.write" = 1 } }
lines = { "b.py" = ["return 2"], "a.py" = ["return 2"] }
"""
    assert read_entries(text) == [
        Entry(file="a.py", functions={"Store.write": 1}, lines=["return 2"], reason="r"),
        Entry(file="b.py", lines=["return 2"], reason="r"),
    ]


@pytest.mark.parametrize("missing", [(8,), (8, 11), (1, 8), tuple(STATEMENTS), ()], ids=str)
def test_entries_that_are_written_cover_what_is_missing(missing: tuple[int, ...]) -> None:
    entries = read_entries(write_entries(found(*missing), []))
    assert judge(found(*missing), entries) == []
    assert write_entries(found(*missing), entries) == ""


def test_nothing_is_written_for_what_is_listed() -> None:
    (entry,) = read_entries(write_entries(found(8, 11), [READ]))
    assert entry == Entry(file="a.py", functions={"Store.write": 1}, reason="")
