"""Ctrl-C while a command watches a coordinator."""

from __future__ import annotations

import os
import signal
import sys
import threading

import pytest

from strata.cli.watch.interrupts import insistent_interrupts
from tests.testbed.pace import stretch


class Interrupted:
    """Gets a signal in its destructor, where Python drops what is raised."""

    def __del__(self) -> None:
        os.kill(os.getpid(), signal.SIGINT)
        self.was_reached = True


def test_an_interrupt_that_a_destructor_drops_comes_again(capsys: pytest.CaptureFixture[str]) -> None:
    handlers = signal.getsignal(signal.SIGINT), signal.getsignal(signal.SIGALRM), sys.unraisablehook
    with pytest.raises(KeyboardInterrupt), insistent_interrupts():
        Interrupted()
        threading.Event().wait(stretch(20))
    assert capsys.readouterr().err == ""
    assert handlers == (signal.getsignal(signal.SIGINT), signal.getsignal(signal.SIGALRM), sys.unraisablehook)
    assert signal.getitimer(signal.ITIMER_REAL)[0] == 0, "no interrupt comes after the block"


def test_other_errors_that_nobody_can_catch_are_still_reported(monkeypatch: pytest.MonkeyPatch) -> None:
    class Failing:
        def __del__(self) -> None:
            raise LookupError("no such row")

    reported: list[type[BaseException]] = []
    monkeypatch.setattr(sys, "unraisablehook", lambda unraisable: reported.append(unraisable.exc_type))
    with insistent_interrupts():
        Failing()
    assert reported == [LookupError]


def test_outside_of_the_main_thread_signals_are_left_alone() -> None:
    handler = signal.getsignal(signal.SIGINT)
    seen: list[object] = []

    def watch() -> None:
        with insistent_interrupts():
            seen.append(signal.getsignal(signal.SIGINT))

    thread = threading.Thread(target=watch)
    thread.start()
    thread.join()
    assert seen == [handler]
