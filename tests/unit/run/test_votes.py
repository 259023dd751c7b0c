"""All workers draw the same conclusion from what all said."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from strata.run.loop.votes import MAX_APART, Vote, agree, steps_apart

WORDS = st.builds(
    Vote, wants_save=st.booleans(), is_leaving=st.booleans(), is_out=st.booleans(), apart=st.integers(1, MAX_APART)
)


@given(word=WORDS)
def test_a_word_comes_back_equal(word: Vote) -> None:
    assert Vote.from_bytes(word.to_bytes()) == word


def test_rank_0_decides_when_to_save_and_when_to_meet_again() -> None:
    agreement = agree([Vote(wants_save=True, apart=7), Vote(apart=1)])
    assert (agreement.saves, agreement.apart) == (True, 7)
    assert not agree([Vote(), Vote(wants_save=True)]).saves


def test_before_someone_leaves_all_save() -> None:
    assert agree([Vote(), Vote(is_leaving=True)]).saves


def test_it_is_over_when_the_last_one_is_out_of_data_and_until_then_they_meet_at_every_step() -> None:
    agreement = agree([Vote(apart=50), Vote(is_out=True)])
    assert (agreement.is_over, agreement.apart) == (False, 1)
    assert agree([Vote(is_out=True), Vote(is_out=True)]).is_over


@given(step_s=st.floats(0, 1e4), aim_s=st.floats(0.1, 10))
def test_meetings_are_at_least_one_step_and_about_the_aim_apart(step_s: float, aim_s: float) -> None:
    apart = steps_apart(step_s, aim_s=aim_s)
    assert 1 <= apart <= MAX_APART
    assert apart == 1 or apart * step_s <= aim_s * 1.001
