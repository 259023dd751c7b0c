"""Ids become storage paths, so what is accepted is exactly what is safe there."""

from __future__ import annotations

import string

import pytest
from hypothesis import given
from hypothesis import strategies as st

from strata import ids
from strata.errors import InvalidIdError

ALPHABET = string.ascii_letters + string.digits + "._-"


@given(st.text(ALPHABET, min_size=1, max_size=128).filter(lambda text: not text.startswith(".")))
def test_every_safe_name_is_returned_as_it_is(name: str) -> None:
    assert InvalidIdError.check("job id", name) == name


@given(st.text(max_size=140))
def test_any_other_text_is_refused(text: str) -> None:
    safe = 1 <= len(text) <= 128 and not text.startswith(".") and set(text) <= set(ALPHABET)
    if safe:
        assert InvalidIdError.check("worker id", text) == text
    else:
        with pytest.raises(InvalidIdError):
            InvalidIdError.check("worker id", text)


@pytest.mark.parametrize(
    ("name", "problem"),
    [
        ("", "is empty"),
        ("a/b", "contains '/'"),
        ("..", "starts with a dot"),
        (".hidden", "starts with a dot"),
        ("a\\b", r"contains '\\'"),
        ("naïve", "contains 'ï'"),
        ("two words", "contains ' '"),
        ("line\n", r"contains '\n'"),
        ("nul\0", r"contains '\x00'"),
        ("x" * 129, "has 129 characters"),
        (7, "is of type int, not a string"),
    ],
)
def test_the_error_says_what_is_wrong_with_which_id_and_what_is_right(name: object, problem: str) -> None:
    with pytest.raises(InvalidIdError) as caught:
        InvalidIdError.check("dataset id", name)
    message = str(caught.value)
    assert message.startswith("dataset id ")
    assert problem in message
    assert "use 1 to 128 characters of A-Z a-z 0-9 . _ -" in message
    assert len(message) < 250


@given(st.text(max_size=300))
def test_any_text_can_be_made_into_a_name(text: str) -> None:
    name = ids.make_name(text, default="data")
    assert InvalidIdError.check("dataset id", name) == name


@given(st.text(ALPHABET, min_size=1, max_size=128).filter(lambda text: not text.startswith(".")))
def test_a_safe_name_stays_as_it_is(name: str) -> None:
    assert ids.make_name(name, default="data") == name
