"""The monitor's tasks do not disturb each other."""

from __future__ import annotations

import logging

import pytest

from strata.errors import CoordinatorLostError
from strata.run.watchdog.monitor import Monitor


@pytest.mark.parametrize(
    ("error", "words"),
    [
        (CoordinatorLostError("host:1", waited_s=0.0), "the coordinator at host:1 cannot be reached"),
        (RuntimeError("a Client that was closed does nothing more"), "the run is ending: a Client that was closed"),
    ],
    ids=["away", "closed"],
)
def test_a_task_that_fails_is_called_again_and_keeps_no_other_from_its_turn(
    caplog: pytest.LogCaptureFixture, error: Exception, words: str
) -> None:
    caplog.set_level(logging.DEBUG, "strata.run.watchdog.monitor")
    turns: list[str] = []

    def fail(_: float) -> None:
        turns.append("fails")
        raise error

    def work(_: float) -> None:
        turns.append("works")

    monitor = Monitor()
    monitor._call([fail, work])
    monitor._call([fail, work])
    assert turns == ["fails", "works"] * 2
    assert caplog.text.count(words) == 2
    monitor.close()
    monitor._call([fail, work])
    assert caplog.text.count("the run is ending") == (2 if isinstance(error, RuntimeError) else 0), "it is no news"


def test_an_error_that_nobody_expects_is_not_hidden() -> None:
    def fail(_: float) -> None:
        raise ZeroDivisionError

    monitor = Monitor()
    monitor.close()
    with pytest.raises(ZeroDivisionError):
        monitor._call([fail])
