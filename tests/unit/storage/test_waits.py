"""What waits for a store is logged: one line per store, more and more rarely, and one when it goes on."""

from __future__ import annotations

import contextvars
import logging
from contextlib import ExitStack
from typing import TYPE_CHECKING

import pytest

from strata.clock import ManualClock
from strata.errors import ObjectNotFoundError, StorageUnavailableError
from strata.storage.waits import Request, Waits, Watch, current_request, note_problem, note_progress
from tests.testbed.waiting import wait_until

if TYPE_CHECKING:
    from strata.storage.waits import Action

STORE = "s3://bucket at 10.0.0.5:9000"


@pytest.fixture
def clock() -> ManualClock:
    return ManualClock()


@pytest.fixture
def waits(clock: ManualClock) -> Waits:
    return Waits(clock)


def lines_of(waits: Waits, clock: ManualClock, seconds: int) -> list[tuple[int, str]]:
    """Check once a second, as the thread does, and say which second had which line."""
    found = []
    for second in range(1, seconds + 1):
        clock.advance(1)
        found += [(second, line) for line in waits.check()]
    return found


def test_a_request_of_less_than_three_seconds_is_not_logged(waits: Waits, clock: ManualClock) -> None:
    with Request(STORE, "read", "a", waits=waits):
        assert lines_of(waits, clock, 2) == []
    assert lines_of(waits, clock, 10) == []
    assert waits.is_empty()


def test_a_wait_is_logged_after_three_seconds_at_growing_distance_and_when_it_goes_on(
    waits: Waits, clock: ManualClock
) -> None:
    with Request(STORE, "read", "job/model.bin", waits=waits):
        found = lines_of(waits, clock, 300)
    assert [second for second, _ in found] == [3, 6, 12, 24, 48, 96, 156, 216, 276]
    assert found[0][1] == f"{STORE}: waiting for 3 s to read job/model.bin"
    assert found[4][1] == f"{STORE}: waiting for 48 s to read job/model.bin"
    assert waits.check() == [f"{STORE}: goes on after 300 s"]
    assert waits.check() == []
    assert waits.is_empty()


def test_all_requests_to_a_store_are_one_line_and_another_store_is_another(waits: Waits, clock: ManualClock) -> None:
    actions: list[Action] = ["list", "write", "delete"]
    with ExitStack() as stack:
        for action in actions:
            stack.enter_context(Request(STORE, action, f"job/{action}", waits=waits))
        stack.enter_context(Request("/mnt/nfs", "look up", "other", waits=waits))
        clock.advance(4)
        assert waits.check() == [
            "/mnt/nfs: waiting for 4 s to look up other",
            f"{STORE}: waiting for 4 s to delete job/delete and 2 more",
        ]


def test_a_request_whose_bytes_come_does_not_wait(waits: Waits, clock: ManualClock) -> None:
    with Request(STORE, "read", "a", waits=waits):
        for _ in range(10):
            clock.advance(2)
            note_progress()
            assert waits.check() == []
        assert lines_of(waits, clock, 4) == [(3, f"{STORE}: waiting for 3 s to read a")]


def test_time_that_a_request_waits_for_this_process_is_not_the_stores(waits: Waits, clock: ManualClock) -> None:
    with Request(STORE, "write", "a", waits=waits) as request:
        with request.idle(), request.idle():
            assert lines_of(waits, clock, 60) == []
        assert lines_of(waits, clock, 4) == [(3, f"{STORE}: waiting for 3 s to write a")]


def test_the_line_says_why_the_last_attempt_failed(waits: Waits, clock: ManualClock) -> None:
    with Request(STORE, "read", "a", waits=waits):
        note_problem("no connection; trying again for 300 s in all")
        clock.advance(3)
        assert waits.check() == [
            f"{STORE}: waiting for 3 s to read a; no connection; trying again for 300 s in all",
        ]


@pytest.mark.parametrize(
    ("error", "ending"),
    [
        (ObjectNotFoundError("a", backend="s3://bucket"), "goes on after 5 s"),
        (
            StorageUnavailableError("a", backend="s3", problem="no", attempts=1, elapsed_s=1.0, hint="wait"),
            "no answer, and nothing waits for one any more, after 5 s",
        ),
        (KeyboardInterrupt(), "no answer, and nothing waits for one any more, after 5 s"),
    ],
)
def test_a_refusal_is_an_answer_and_giving_up_is_none(
    waits: Waits, clock: ManualClock, error: BaseException, ending: str
) -> None:
    with pytest.raises(type(error)), Request(STORE, "read", "a", waits=waits):
        clock.advance(5)
        waits.check()
        raise error
    assert waits.check() == [f"{STORE}: {ending}"]


def test_a_request_that_gives_up_beside_one_that_still_waits_ends_no_wait(waits: Waits, clock: ManualClock) -> None:
    with Request(STORE, "read", "a", waits=waits):
        with Request(STORE, "read", "b", waits=waits):
            clock.advance(3)
            assert waits.check() == [f"{STORE}: waiting for 3 s to read a and 1 more"]
        clock.advance(1)
        assert waits.check() == []


def test_progress_is_noted_for_the_innermost_request_of_this_thread_alone(waits: Waits) -> None:
    with Request(STORE, "read", "a", waits=waits) as outer:
        assert current_request() is outer
        with Request("/mnt", "read", "b", waits=waits) as inner:
            assert current_request() is inner
        assert current_request() is outer
        assert contextvars.Context().run(current_request) is None
    assert current_request() is None


def test_a_thread_logs_what_waits_and_sleeps_again(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.WARNING, "strata.storage.waits")
    clock = ManualClock()
    watch = Watch(clock)
    for _ in range(2):
        caplog.clear()
        with Request(STORE, "read", "a", waits=watch):
            clock.advance(3)
            wait_until(lambda: "waiting for 3 s to read a" in caplog.text)
        wait_until(lambda: f"{STORE}: goes on after 3 s" in caplog.text)
