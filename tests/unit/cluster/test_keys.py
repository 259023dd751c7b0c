"""A key is changed by whoever read it last, survives restarts, and is bounded."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from strata.cluster import Limits
from strata.cluster import commands as c
from strata.cluster.keys import MAX_KEY_LENGTH, MAX_TOTAL_BYTES, MAX_VALUE_BYTES, MAX_WRITERS
from strata.cluster.replies import KeyValue
from strata.errors import BadCommandError, QuotaExceededError, UnknownJobError
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
    assert put(bench, b"y", 1, key="second").is_set


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
    for number, (behind, value) in enumerate(writes):
        before = get(bench)
        token = max(0, before.token - behind)
        after = put(bench, value, token, writer=str(number))
        assert after.is_set == (token == before.token)
        if not after.is_set:
            assert get(bench) == before
        else:
            assert get(bench) == (KeyValue(value=value, token=before.token + 1) if value else KeyValue())
