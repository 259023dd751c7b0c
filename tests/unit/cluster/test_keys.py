"""A key is changed by whoever read it last, survives restarts, and is bounded."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from strata.cluster import Limits
from strata.cluster import commands as c
from strata.cluster.keys import MAX_KEY_LENGTH, MAX_TOTAL_BYTES, MAX_VALUE_BYTES, MAX_WRITERS, Keys
from strata.cluster.replies import KeyValue
from strata.errors import BadCommandError, QuotaExceededError, StaleGenerationError, UnknownJobError
from tests.unit.cluster.conftest import LIMITS, Bench


def put(bench: Bench, value: bytes, token: int, *, key: str = "k", writer: str = "w") -> KeyValue:
    reply, effects = bench.apply(c.SetKey(key=key, value=value, token=token, writer=writer))
    assert effects == []
    assert isinstance(reply, KeyValue)
    return reply


def get(bench: Bench, key: str = "k") -> KeyValue:
    reply, _ = bench.apply(c.GetKey(key=key))
    assert isinstance(reply, KeyValue)
    return reply


def test_the_first_writer_wins_and_the_second_learns_what_is_there(bench: Bench) -> None:
    assert put(bench, b"mine", 0, writer="a") == KeyValue(value=b"mine", token=1, is_set=True)
    assert put(bench, b"yours", 0, writer="b") == KeyValue(value=b"mine", token=1, is_set=False)
    assert get(bench) == KeyValue(value=b"mine", token=1)


def test_a_key_changes_only_for_who_read_it_last(bench: Bench) -> None:
    put(bench, b"1", 0)
    assert put(bench, b"2", 1).is_set
    assert not put(bench, b"3", 1, writer="late").is_set
    assert not put(bench, b"3", 7, writer="future").is_set
    assert get(bench) == KeyValue(value=b"2", token=2)


def test_a_write_whose_reply_was_lost_is_told_that_it_won(bench: Bench) -> None:
    put(bench, b"same", 0, writer="first")
    assert put(bench, b"same", 0, writer="first").is_set
    assert not put(bench, b"same", 0, writer="other").is_set


def test_a_write_whose_reply_was_lost_is_told_the_same_after_others_have_written(bench: Bench) -> None:
    first = put(bench, b"0", 0, writer="first")
    for token in range(1, MAX_WRITERS):
        put(bench, b"%d" % token, token, writer=f"other-{token}")
    assert put(bench, b"0", 0, writer="first") == first
    assert put(bench.restarted(), b"0", 0, writer="first") == first
    assert get(bench) == KeyValue(value=b"%d" % (MAX_WRITERS - 1), token=MAX_WRITERS)
    put(bench, b"one too many", MAX_WRITERS, writer="last")
    assert not put(bench, b"0", 0, writer="first").is_set


def test_an_empty_value_removes_the_key(bench: Bench) -> None:
    put(bench, b"1", 0)
    assert put(bench, b"", 1) == KeyValue(is_set=True)
    assert put(bench, b"", 1) == KeyValue(is_set=True)
    assert get(bench) == KeyValue()
    assert put(bench, b"again", 0).is_set


def test_keys_survive_a_restart_of_the_coordinator(bench: Bench) -> None:
    put(bench, bytes(range(256)), 0)
    assert get(bench.restarted()) == get(bench)


def test_a_snapshot_from_before_there_were_keys_is_read(bench: Bench) -> None:
    bench.join("a")
    older = bench.job.record()
    del older["keys"]
    bench.job.restore(older)
    assert get(bench) == KeyValue()


def test_what_is_too_large_or_too_many_is_refused() -> None:
    bench = Bench(Limits(lease_s=LIMITS.lease_s, max_keys_per_job=2))
    put(bench, b"x" * MAX_VALUE_BYTES, 0)
    with pytest.raises(BadCommandError, match="keep at most"):
        put(bench, b"x" * (MAX_VALUE_BYTES + 1), 1)
    for key in ("", "k" * (MAX_KEY_LENGTH + 1)):
        with pytest.raises(BadCommandError, match="use 1 to 256"):
            put(bench, b"x", 0, key=key)
    put(bench, b"x", 0, key="second")
    with pytest.raises(QuotaExceededError, match="2 keys in one job"):
        put(bench, b"x", 0, key="third")
    assert put(bench, b"y", get(bench, "second").token, key="second").is_set


def test_all_keys_together_are_bounded(bench: Bench) -> None:
    count = MAX_TOTAL_BYTES // MAX_VALUE_BYTES
    for number in range(count):
        put(bench, b"x" * MAX_VALUE_BYTES, 0, key=str(number))
    with pytest.raises(QuotaExceededError, match="bytes in the keys"):
        put(bench, b"x", 0, key="more")
    assert put(bench, b"y" * MAX_VALUE_BYTES, 1, key="0").is_set


def test_asking_for_a_key_founds_no_job(bench: Bench) -> None:
    with pytest.raises(UnknownJobError):
        get(bench)


@given(writes=st.lists(st.tuples(st.integers(0, 3), st.sampled_from([b"", b"x", b"y"])), max_size=20))
def test_tokens_tell_every_change_apart(writes: list[tuple[int, bytes]]) -> None:
    bench = Bench()
    bench.join("a")
    highest = 0
    for number, (behind, value) in enumerate(writes):
        before = get(bench)
        token = max(0, before.token - behind)
        after = put(bench, value, token, writer=str(number))
        assert after.is_set == (token == before.token)
        if not after.is_set:
            assert get(bench) == before
        elif not value:
            assert get(bench) == KeyValue()
        else:
            assert get(bench) == KeyValue(value=value, token=after.token)
            assert after.token > highest
            highest = after.token


def test_a_key_that_was_removed_and_set_again_has_a_token_that_nobody_has_read(bench: Bench) -> None:
    first = put(bench, b"mine", 0, writer="a")
    put(bench, b"", first.token, writer="b")
    again = put(bench, b"theirs", 0, writer="c")
    assert again.token > first.token
    for value in (b"", b"late"):
        assert put(bench, value, first.token, writer="late") == KeyValue(value=b"theirs", token=again.token)
    assert get(bench.restarted()) == KeyValue(value=b"theirs", token=again.token)


def test_tokens_are_of_the_job_so_that_none_fits_another_key(bench: Bench) -> None:
    tokens = [put(bench, b"v", 0, key=key, writer=key).token for key in "xyz"]
    put(bench, b"", tokens[0], key="x", writer="d")
    tokens.append(put(bench, b"v", 0, key="x", writer="again").token)
    assert tokens == sorted(set(tokens))


def test_a_set_that_is_repeated_after_the_key_was_removed_sets_nothing(bench: Bench) -> None:
    """Its reply was lost; meanwhile another one has seen the value, and removed the key."""
    first = put(bench, b"locked", 0, writer="a")
    put(bench, b"", first.token, writer="b")
    for again in (bench, bench.restarted()):
        assert put(again, b"locked", 0, writer="a") == first
        assert get(again) == KeyValue()
    assert put(bench, b"locked", 0, writer="c").is_set
    assert put(bench, b"locked", 0, writer="a") == first
    assert get(bench).token > first.token


def test_a_removal_that_is_repeated_removes_nothing_of_others(bench: Bench) -> None:
    token = put(bench, b"1", 0, writer="a").token
    removed = put(bench, b"", token, writer="a/remove")
    mine = put(bench, b"2", 0, writer="b")
    for again in (bench, bench.restarted()):
        assert put(again, b"", token, writer="a/remove") == removed == KeyValue(is_set=True)
        assert get(again) == KeyValue(value=b"2", token=mine.token)
    # And one that never was the first is refused.
    assert put(bench, b"", token, writer="late") == KeyValue(value=b"2", token=mine.token)


def test_a_removal_of_what_another_one_has_removed_is_not_that_one_s(bench: Bench) -> None:
    token = put(bench, b"1", 0, writer="a").token
    assert put(bench, b"", token, writer="b").is_set
    assert put(bench, b"", token, writer="c") == KeyValue()
    assert put(bench, b"", 0, writer="d").is_set, "there is nothing to remove"


def test_one_writer_for_all_its_calls_is_not_taken_for_one_that_repeats_itself(bench: Bench) -> None:
    put(bench, b"", put(bench, b"1", 0).token)
    assert put(bench, b"2", 0).is_set
    assert get(bench).value == b"2"


def test_only_so_many_removed_keys_are_remembered(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("strata.cluster.keys.MAX_REMOVED", 2)
    for key in "xyz":
        put(bench, b"", put(bench, key.encode(), 0, key=key, writer=key).token, key=key, writer=f"{key}/remove")
    assert [put(bench, key.encode(), 0, key=key, writer=key).token for key in "yz"] == [3, 5]
    assert [get(bench, key) for key in "yz"] == [KeyValue()] * 2
    assert put(bench, b"x", 0, key="x", writer="x").token == 7, "it is forgotten, and its number is not given again"


def test_a_job_of_a_removed_one_s_name_goes_on_with_its_numbers(bench: Bench) -> None:
    """Whoever still names a token or a generation of the job before must not be taken for one of this job."""
    bench.join("a")
    token = put(bench, b"1", 0, writer="a").token
    put(bench, b"", token, writer="a/remove")
    bench.say(c.Goodbye, "a")
    generation = bench.generation
    bench.apply(c.RemoveJob())
    for again in (bench.restarted(), bench):
        mine = put(again, b"2", 0, writer="b")
        assert put(again, b"", token, writer="late") == KeyValue(value=b"2", token=mine.token)
        assert again.join("a", incarnation="2").generation > generation
        with pytest.raises(StaleGenerationError):
            again.say(c.ArriveAtBarrier, "a", "2", name="epoch", generation=generation)


# Journals and snapshots of before.


def test_a_journal_of_before_replays_to_the_tokens_of_then_and_goes_on_above_them() -> None:
    bench = Bench()
    for value, token, writer in ((b"1", 0, "a"), (b"2", 1, "b"), (b"", 2, "c"), (b"3", 0, "d"), (b"4", 1, "e")):
        bench.cluster.apply(c.SetKey(key="k", value=value, token=token, writer=writer), 1.0, rules=0)
    assert get(bench) == KeyValue(value=b"4", token=2)
    assert put(bench, b"4", 1, writer="e") == KeyValue(value=b"4", token=2, is_set=True)
    assert put(bench, b"5", 2, writer="f").token == 3
    assert put(bench, b"6", 0, key="other", writer="g").token == 4


def test_a_snapshot_of_before_gives_what_the_journal_of_before_does() -> None:
    bench = Bench()
    for token, writer in enumerate("abc"):
        bench.cluster.apply(c.SetKey(key="k", value=b"1", token=token, writer=writer), 1.0, rules=0)
    older = {**bench.job.record(), "keys": [["k", "MQ==", 3, "a", "b", "c"]]}
    before = bench.job.record()
    bench.job.keys = Keys(max_keys=10)
    bench.job.restore(older)
    assert bench.job.record() == before
