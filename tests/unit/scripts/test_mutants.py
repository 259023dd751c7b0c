"""Only code that matters is mutated, a mutant keeps its name when lines move, and no explanation outlives its code."""

from __future__ import annotations

import random
from pathlib import Path
from textwrap import dedent

import pytest

from scripts.mutants import MutantKey, Source, changed_lines, explained, is_stale, sample

ROOT = Path(__file__).parents[3]
CODE = dedent('''\
    LIMIT = 2 + 2

    class Lease:
        """A lease."""

        until_s: int = 3 + 3

        @property
        def left(self) -> int | None:
            """Return 4 + 4."""
            wait: int | None = 5 + 5
            assert wait > 6 + 6
            if (
                wait
                > 7 + 7
            ):
                raise ValueError(f"é {8 + 8}")
            error.add_note("wait" * (12 + 12))
            pairs = zip([wait], [9 + 9], strict=1 + 0)
            return "é" and 10 + 10

        def __repr__(self) -> str:
            return "lease" * (11 + 11)
    ''')


def position(text: str) -> tuple[int, int]:
    (line,) = (number for number, each in enumerate(CODE.splitlines(), 1) if text in each)
    return line, CODE.splitlines()[line - 1].index(text)


@pytest.mark.parametrize("text", ["5 + 5", "7 + 7", "9 + 9", "10 + 10", "raise"])
def test_the_body_of_a_function_is_mutated(text: str) -> None:
    function = Source(CODE).function_at(position(text))
    assert function is not None
    assert (function.name, function.first_line) == ("Lease.left", 8)


@pytest.mark.parametrize(
    "text", ["2 + 2", "3 + 3", "4 + 4", "6 + 6", "8 + 8", "1 + 0", "11 + 11", "12 + 12", "int | None:"]
)
def test_wording_annotations_assertions_and_what_runs_at_import_are_left_alone(text: str) -> None:
    assert Source(CODE).function_at(position(text)) is None


def test_an_annotation_in_a_body_is_left_alone() -> None:
    line, _ = position("5 + 5")
    assert Source(CODE).function_at((line, CODE.splitlines()[line - 1].index("|"))) is None


def test_the_statement_around_a_line_is_whole_but_without_its_body() -> None:
    source = Source(CODE)
    function = source.function_at(position("7 + 7"))
    assert function is not None
    start, _ = position("if (")
    assert source.statement_lines(function, position("7 + 7")[0]) == range(start, start + 4)
    line, _ = position("raise")
    assert source.statement_lines(function, line) == range(line, line + 1)


def test_a_change_is_named_by_its_lines_without_their_layout() -> None:
    before = "a\nif (\n    b\n):\n    c\n"
    assert changed_lines(before, before.replace("    b", "    not b")) == (3, "b", "not b")
    assert changed_lines("a\nf(\n  1,\n  2)\nb\n", "a\npass\nb\n") == (2, "f( 1, 2)", "pass")
    assert changed_lines("a\na\na\n", "a\na\n") == (3, "a", "")


def test_a_sample_has_one_change_of_each_place_and_its_seed_says_which() -> None:
    changes = {place: [f"{place}{number}" for number in range(3)] for place in "abcdefgh"}
    drawn = list(sample(changes, count=5, chance=random.Random(1)))
    assert len({place for place, _ in drawn}) == len(drawn) == 5
    assert all(change in changes[place] for place, change in drawn)
    assert drawn == list(sample(changes, count=5, chance=random.Random(1)))
    assert drawn != list(sample(changes, count=5, chance=random.Random(2)))
    assert len(list(sample(changes, count=50, chance=random.Random(1)))) == len(changes)


ENTRY = """
[[mutant]]
file = "a.py"
function = "Lease.left"
before = "wait > 7 + 7"
after = "wait >= 7 + 7"
reason = "it never waits for 14"
"""


def test_an_explanation_has_a_reason_and_is_given_once() -> None:
    key = MutantKey("a.py", "Lease.left", "wait > 7 + 7", "wait >= 7 + 7")
    assert explained(ENTRY) == {key: "it never waits for 14"}
    assert explained("") == {}
    with pytest.raises(ValueError, match="needs one reason"):
        explained(ENTRY + ENTRY)
    with pytest.raises(ValueError, match="needs one reason"):
        explained(ENTRY.replace("it never waits for 14", ""))


def test_an_explanation_outlives_moved_lines_but_not_the_code_that_it_is_about() -> None:
    (key,) = explained(ENTRY)
    assert not is_stale(key, CODE)
    assert not is_stale(key, "import os\n\n\n" + CODE)
    assert is_stale(key, CODE.replace("7 + 7", "7 + 8"))
    assert is_stale(key, CODE.replace("def left", "def right"))
    assert is_stale(key, None)


def test_no_explanation_is_stale() -> None:
    for key in explained((ROOT / "tests" / "mutants.toml").read_text()):
        path = ROOT / key.file
        assert not is_stale(key, path.read_text() if path.exists() else None), key
