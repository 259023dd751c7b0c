"""Of threads that want the same, one makes it; all get its value or its error, and nobody waits for ever."""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor

import pytest
from hypothesis import given
from hypothesis import strategies as st

from strata.data.single_flight import SingleFlight

WAIT_S = 30.0


def fly_with_a_waiting_thread(
    flights: SingleFlight[int, str], end: Callable[[], str]
) -> tuple[Future[str], Future[dict[int, str]], list[list[int]]]:
    """One thread owns key 1 and ends as told, once another that wants 1 and 2 has made 2 and so waits for 1."""
    owned, came = threading.Event(), threading.Event()
    asked: list[list[int]] = []

    def own() -> str:
        owned.set()
        assert came.wait(WAIT_S)
        return end()

    def make(keys: Sequence[int]) -> dict[int, str]:
        asked.append(list(keys))
        came.set()
        return {key: f"second {key}" for key in keys}

    with ThreadPoolExecutor(2) as threads:
        first = threads.submit(flights.get, 1, own)
        assert owned.wait(WAIT_S)
        second = threads.submit(flights.get_many, (1, 2), make)
    return first, second, asked


def test_a_waiting_thread_gets_what_the_owner_made() -> None:
    first, second, asked = fly_with_a_waiting_thread(SingleFlight(), lambda: "first 1")
    assert first.result() == "first 1"
    assert second.result() == {1: "first 1", 2: "second 2"}
    assert asked == [[2]]


def test_a_waiting_thread_gets_the_error_of_a_failing_owner() -> None:
    flights: SingleFlight[int, str] = SingleFlight()

    def fail() -> str:
        raise OSError("no such block")

    first, second, asked = fly_with_a_waiting_thread(flights, fail)
    for future in (first, second):
        with pytest.raises(OSError, match="no such block"):
            future.result()
    assert asked == [[2]]
    assert flights.get(1, lambda: "again") == "again", "an error is not kept"


def test_a_waiting_thread_takes_over_from_an_owner_that_was_interrupted() -> None:
    def interrupt() -> str:
        raise KeyboardInterrupt

    first, second, asked = fly_with_a_waiting_thread(SingleFlight(), interrupt)
    with pytest.raises(KeyboardInterrupt):
        first.result()
    assert second.result() == {1: "second 1", 2: "second 2"}
    assert asked == [[2], [1]]


def test_all_keys_of_an_owner_are_free_after_its_error() -> None:
    flights: SingleFlight[int, str] = SingleFlight()
    with pytest.raises(KeyError):
        flights.get_many((1, 2), lambda keys: {1: "only one of two"})
    assert flights.get_many((1, 2), lambda keys: dict.fromkeys(keys, "all")) == {1: "all", 2: "all"}


def test_nothing_is_made_for_no_keys() -> None:
    assert SingleFlight[int, str]().get_many((), lambda keys: pytest.fail("called")) == {}


@given(st.lists(st.lists(st.integers(0, 5), max_size=6), min_size=1, max_size=6))
def test_threads_with_any_keys_in_any_order_all_get_all_of_them(wanted: list[list[int]]) -> None:
    flights: SingleFlight[int, int] = SingleFlight()
    flying: set[int] = set()
    lock = threading.Lock()

    def make(keys: Sequence[int]) -> dict[int, int]:
        with lock:
            assert not flying & set(keys), "made by two threads at one time"
            flying.update(keys)
        made = {key: key * key for key in keys}
        with lock:
            flying.difference_update(keys)
        return made

    with ThreadPoolExecutor(len(wanted)) as threads:
        found = list(threads.map(lambda keys: flights.get_many(keys, make), wanted, timeout=WAIT_S))
    assert found == [{key: key * key for key in keys} for keys in wanted]
