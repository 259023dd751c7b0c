"""The checker agrees with a search through all orders, and sees lost writes, stale reads and what happened twice."""

from __future__ import annotations

from itertools import permutations
from pathlib import Path
from random import Random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.history.calls import FOREVER_NS, Call, Recorder, read_history
from tests.history.checker import UndecidedError, check, check_object
from tests.history.models import Commits, Key, Model, Register


def call(client: str, operation: tuple, outcome: tuple | None, begin: int, end: int = FOREVER_NS) -> Call:
    return Call(client, "x", operation, begin, FOREVER_NS if outcome is None else end, outcome)


def holds(model: Model, *calls: Call) -> bool:
    return check_object("x", list(calls), model) is None


def test_calls_that_overlap_may_have_happened_in_any_order() -> None:
    write = call("a", ("write", 1), ("ok",), 0, 10)
    assert holds(Register(), write, call("b", ("read",), (1,), 2, 3))
    assert holds(Register(), write, call("b", ("read",), (None,), 2, 3))
    assert not holds(Register(), write, call("b", ("read",), (1,), 2, 3), call("b", ("read",), (None,), 4, 5))


def test_a_lost_write_is_seen() -> None:
    acknowledged = call("a", ("set", "one", 0), (True, "one", 1), 0, 1)
    assert holds(Key(), acknowledged, call("b", ("get",), ("one", 1), 2, 3))
    # The leader that took over did not have it.
    assert not holds(Key(), acknowledged, call("b", ("get",), ("", 0), 2, 3))
    assert not holds(Key(), acknowledged, call("b", ("set", "two", 0), (True, "two", 1), 2, 3))


def test_a_stale_read_is_seen() -> None:
    before = call("a", ("set", "one", 0), (True, "one", 1), 0, 1)
    after = call("a", ("set", "two", 1), (True, "two", 2), 2, 3)
    assert holds(Key(), before, after, call("b", ("get",), ("one", 1), 2, 4))
    assert not holds(Key(), before, after, call("b", ("get",), ("one", 1), 4, 5))


def test_what_was_applied_twice_is_seen() -> None:
    first = call("a", ("write", 1), ("ok",), 0, 1)
    second = call("b", ("write", 2), ("ok",), 2, 3)
    assert not holds(Register(), first, second, call("c", ("read",), (1,), 4, 5))
    # A set whose reply was lost and that was sent again: it must not be told that another one won.
    again = call("a", ("set", "one", 0), (False, "one", 1), 0, 5)
    assert not holds(Key(), again, call("b", ("get",), ("one", 1), 6, 7))


def test_a_commit_that_was_announced_stays() -> None:
    commit = call("a", ("commit", 5), ("ok",), 0, 1)
    assert holds(Commits(), commit, call("b", ("commit", 5), ("ok",), 0, 1), call("c", ("latest",), (5,), 2, 3))
    assert not holds(Commits(), commit, call("c", ("latest",), (0,), 2, 3))


def test_a_call_of_unknown_outcome_happened_late_or_never_but_not_before_it_was_made() -> None:
    unknown = call("a", ("set", "one", 0), None, 5)
    assert holds(Key(), unknown, call("b", ("get",), ("", 0), 100, 101))
    assert holds(Key(), unknown, call("b", ("get",), ("", 0), 100, 101), call("b", ("get",), ("one", 1), 102, 103))
    assert not holds(Key(), unknown, call("b", ("get",), ("one", 1), 1, 2))
    assert not holds(Key(), unknown, call("b", ("get",), ("one", 1), 6, 7), call("b", ("get",), ("", 0), 8, 9))


def test_a_refutation_says_which_calls_cannot_be_ordered() -> None:
    calls = [call("a", ("set", "one", 0), (True, "one", 1), 0, 1), call("b", ("get",), ("", 0), 2, 3)]
    (refutation,) = check(calls, lambda _: Key())
    assert refutation.explained == (calls[0],)
    assert refutation.stuck == (calls[1],)
    assert "('get',) -> ('', 0)" in str(refutation)


def test_objects_are_checked_apart() -> None:
    calls = [
        Call("a", "x", ("set", "one", 0), 0, 1, (True, "one", 1)),
        Call("a", "y", ("get",), 2, 3, ("", 0)),
        Call("a", "z", ("get",), 2, 3, ("never written", 1)),
    ]
    assert [refutation.what for refutation in check(calls, lambda _: Key())] == ["z"]


def test_a_search_that_takes_too_long_is_not_taken_for_an_answer() -> None:
    calls = [call(str(number), ("write", number), ("ok",), 0, 100) for number in range(12)]
    with pytest.raises(UndecidedError):
        check_object("x", [*calls, call("r", ("read",), (99,), 101, 102)], Register(), max_steps=1_000)


@st.composite
def histories(draw: st.DrawFn) -> list[Call]:
    calls = []
    for number in range(draw(st.integers(1, 6))):
        begin = draw(st.integers(0, 12))
        value = draw(st.integers(0, 2))
        is_write = draw(st.booleans())
        outcome: tuple[object, ...] | None = ("ok",) if is_write else (draw(st.sampled_from((None, 0, 1, 2))),)
        if draw(st.integers(0, 4)) == 0:
            outcome = None
        operation: tuple[object, ...] = ("write", value) if is_write else ("read",)
        calls.append(call(str(number), operation, outcome, begin, begin + draw(st.integers(1, 8))))
    return calls


@given(histories())
def test_the_checker_agrees_with_a_search_through_all_orders(calls: list[Call]) -> None:
    assert holds(Register(), *calls) == _any_order_holds(calls)


def _any_order_holds(calls: list[Call]) -> bool:
    known = [each for each in calls if each.is_known]
    unknown = [each for each in calls if not each.is_known]
    for mask in range(1 << len(unknown)):
        chosen = known + [each for number, each in enumerate(unknown) if mask >> number & 1]
        for order in permutations(chosen):
            in_time = all(
                later.returned_ns >= earlier.invoked_ns
                for place, earlier in enumerate(order)
                for later in order[place + 1 :]
            )
            if in_time and _explains(order):
                return True
    return False


def _explains(order: tuple[Call, ...]) -> bool:
    state: object = None
    for each in order:
        fits, state = Register().step(state, each.operation, each.outcome)
        if not fits:
            return False
    return True


@pytest.mark.parametrize("plant", ["nothing", "lost write", "stale read", "double apply"])
def test_a_planted_bug_in_a_long_history_of_eight_clients_is_seen(plant: str) -> None:
    calls = _run_clients(Random(11), plant, clients=8, rounds=150)
    assert len(calls) > 1_000
    refuted = check(calls, lambda _: Key())
    assert (refuted == []) == (plant == "nothing")


def _run_clients(chance: Random, plant: str, *, clients: int, rounds: int) -> list[Call]:
    """Clients that read a key and set it, one copy of it, and one bug in the middle; some replies are lost."""
    state, before, now, calls = ("", 0), ("", 0), 0, []
    for turn in range(rounds * clients):
        client = f"c{chance.randrange(clients)}"
        begin, end = now, now + 60
        now += chance.randrange(1, 30)
        is_bad = turn > rounds * clients // 2 and plant != "nothing"
        if chance.random() < 0.5:
            seen = before if is_bad and plant == "stale read" and before != state else state
            if seen is before and is_bad:
                plant = "planted"
                # Long after it was overwritten.
                begin, end, now = now + 1_000, now + 1_001, now + 1_002
            calls.append(Call(client, "k", ("get",), begin, end, seen))
            continue
        token = state[1] if chance.random() < 0.8 else max(0, state[1] - 1)
        value = f"{client}/{turn}"
        is_set = token == state[1]
        after = (value, token + 1) if is_set else state
        if is_bad and plant == "lost write" and is_set:
            plant, after = "planted", state
            calls.append(Call(client, "k", ("set", value, token), begin, end, (True, value, token + 1)))
            now += 1_000
            continue
        if is_bad and plant == "double apply" and is_set:
            # It was carried out, its reply was lost, and when it was sent again it was not known.
            plant, before, state = "planted", state, after
            calls.append(Call(client, "k", ("set", value, token), begin, end, (False, *after)))
            continue
        before, state = (state, after) if is_set else (before, state)
        is_told = chance.random() < 0.95
        outcome = (is_set, *after) if is_told else None
        calls.append(Call(client, "k", ("set", value, token), begin, end if is_told else FOREVER_NS, outcome))
    return calls


def test_a_killed_client_leaves_a_history_that_can_be_read(tmp_path: Path) -> None:
    recorder = Recorder(tmp_path, "w0")
    with recorder.call("k", "get") as answered:
        answered.outcome = ("", 0)
    with recorder.call("k", "set", "one", 0):
        pass
    recorder.close()
    with (tmp_path / "w0.jsonl").open("a") as file:
        file.write('{"n": 3, "client"')
    again = Recorder(tmp_path, "w0")
    with again.call("k", "get") as answered:
        answered.outcome = ("one", 1)
    again.close()
    calls = read_history(tmp_path)
    assert [(each.operation, each.outcome) for each in calls][:2] == [(("get",), ("", 0)), (("set", "one", 0), None)]
    assert check(calls, lambda _: Key()) == []
