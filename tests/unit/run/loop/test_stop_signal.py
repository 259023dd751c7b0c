"""SIGTERM asks a run to stop; after its loop it does not, and the next run of the process has it for itself."""

from __future__ import annotations

import signal
from collections.abc import Iterator

import pytest

from strata.run.loop.stopping import StopSignal


@pytest.fixture(autouse=True)
def handler_as_before() -> Iterator[None]:
    before = signal.getsignal(signal.SIGTERM)
    yield
    signal.signal(signal.SIGTERM, before)


def test_a_second_sigterm_in_a_loop_changes_nothing() -> None:
    stop = StopSignal()
    stop.install()
    for _ in range(3):
        signal.raise_signal(signal.SIGTERM)
    assert stop.is_set()
    stop.release()
    assert signal.getsignal(signal.SIGTERM) == signal.SIG_DFL


def test_a_new_run_takes_the_place_of_one_that_is_over(caplog: pytest.LogCaptureFixture) -> None:
    first, second = StopSignal(), StopSignal()
    first.install()
    first.leave_loop()
    first.release()
    second.install()
    for _ in range(2):
        signal.raise_signal(signal.SIGTERM)
    assert (first.is_set(), second.is_set()) == (False, True)
    assert not caplog.text
    second.release()
    assert signal.getsignal(signal.SIGTERM) == signal.SIG_DFL


def test_a_handler_of_the_script_is_called_each_time_and_decides(caplog: pytest.LogCaptureFixture) -> None:
    called: list[int] = []
    signal.signal(signal.SIGTERM, lambda number, _: called.append(number))
    stop = StopSignal()
    stop.install()
    stop.leave_loop()
    for _ in range(3):
        signal.raise_signal(signal.SIGTERM)
    assert called == [signal.SIGTERM] * 3
    assert caplog.text.count("SIGTERM came when the training loop was over") == 1


def test_a_stop_during_the_last_save_is_told_when_the_loop_is_over(caplog: pytest.LogCaptureFixture) -> None:
    stop = StopSignal()
    stop.install()
    signal.raise_signal(signal.SIGTERM)
    assert not caplog.text
    stop.leave_loop()
    assert caplog.text.count("SIGTERM came when the training loop was over") == 1
