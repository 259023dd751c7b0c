"""A pytest plugin: a test that takes too long fails, and all others still run.

pytest-timeout reads the limits: ``timeout`` in pyproject.toml, the marker, ``--timeout``. The timer is here, because
that of pytest-timeout runs through setup, call, teardown and pytest's own code between them, and an alarm in pytest's
own code is an internal error that ends the whole run.

- Setup, call and teardown of a test each have a timer, which runs only while pytest catches what they raise.
- An alarm that is swallowed, as asyncio does with what a callback raises, comes again.
- What no alarm reaches, such as a loop in C that holds the interpreter, ends its process after a further while. Under
  xdist that process is replaced, its test counts as failed, and the others run.
- All limits are stretched on a slow machine (``tests.testbed.pace``).
"""

from __future__ import annotations

import faulthandler
import os
import signal
import threading
from typing import TYPE_CHECKING, Any

import pytest
from pytest_timeout import is_debugging

from tests.testbed.pace import stretch

if TYPE_CHECKING:
    from collections.abc import Generator

# A fixture may start a server that a whole run of tests uses, which takes longer than a test may.
LEAST_SETUP_S = 90.0
# An alarm that was swallowed comes again after this.
AGAIN_S = 3.0
# What no alarm has ended within this is ended with its process.
HARD_STOP_S = 30.0
# Threads that a failed test left behind may hold up the end of the process for this long.
EXIT_S = 30.0

_settings = pytest.StashKey[Any]()
_error_fd = pytest.StashKey[int]()


class TookTooLongError(BaseException):
    """A test's own code took too long. No Exception: hypothesis would run the example that hangs again and again."""


class _Alarm:
    """The timer of the phase that runs now; it raises only between ``set`` and ``clear``."""

    def __init__(self) -> None:
        self._item: pytest.Item | None = None
        self._limit_s = 0.0
        self._error: type[BaseException] = TookTooLongError

    def set(self, item: pytest.Item, error: type[BaseException], *, at_least_s: float = 0.0) -> None:
        settings = item.stash.get(_settings, None)
        if settings is None or threading.current_thread() is not threading.main_thread():
            return
        limit_s = stretch(max(settings.timeout, at_least_s))
        # Its watchdog is a thread in C: it needs no interpreter to end the process.
        faulthandler.dump_traceback_later(limit_s + stretch(HARD_STOP_S), exit=True, file=item.config.stash[_error_fd])
        self._item, self._limit_s, self._error = item, limit_s, error
        signal.signal(signal.SIGALRM, self._raise)
        signal.setitimer(signal.ITIMER_REAL, limit_s, AGAIN_S)

    def clear(self) -> None:
        self._item = None  # first: an alarm that comes before the timer is off must not raise
        signal.setitimer(signal.ITIMER_REAL, 0)
        faulthandler.cancel_dump_traceback_later()

    def _raise(self, *_: object) -> None:
        __tracebackhide__ = True
        if self._item is None or is_debugging():
            return
        faulthandler.dump_traceback(file=2)  # where pytest captures it, so it is shown with the failure
        raise self._error(
            f"Timeout: took longer than {self._limit_s:.1f} s; what each thread did is in the captured stderr"
        )


_alarm = _Alarm()


def pytest_configure(config: pytest.Config) -> None:
    # Output is not captured at this moment, so this is where a user reads it.
    config.stash[_error_fd] = os.dup(2)


def pytest_unconfigure(config: pytest.Config) -> None:
    # A process of xdist that has no more tests waits here for the others; xdist ends it 10 s after the last test.
    if not hasattr(config, "workerinput"):
        faulthandler.dump_traceback_later(stretch(EXIT_S), exit=True, file=config.stash[_error_fd])


@pytest.hookimpl(tryfirst=True)
def pytest_timeout_set_timer(item: pytest.Item, settings: Any) -> bool:
    """Keep pytest-timeout's timer from starting, and its settings for ours."""
    item.stash[_settings] = settings
    return True


@pytest.hookimpl(tryfirst=True)
def pytest_timeout_cancel_timer() -> bool:
    """Someone debugs, or the test is over."""
    _alarm.clear()
    return True


# Innermost: what an alarm raises passes through every other wrapper before pytest makes it the test's failure.
@pytest.hookimpl(wrapper=True, trylast=True)
def pytest_runtest_setup(item: pytest.Item) -> Generator[None, object, object]:
    # pytest remembers this kind of a fixture, so that the next test that needs it fails at once.
    _alarm.set(item, pytest.fail.Exception, at_least_s=LEAST_SETUP_S)
    try:
        return (yield)
    finally:
        _alarm.clear()


@pytest.hookimpl(wrapper=True, trylast=True)
def pytest_runtest_call(item: pytest.Item) -> Generator[None, object, object]:
    _alarm.set(item, TookTooLongError)
    try:
        return (yield)
    finally:
        _alarm.clear()


@pytest.hookimpl(wrapper=True, trylast=True)
def pytest_runtest_teardown(item: pytest.Item) -> Generator[None, object, object]:
    _alarm.set(item, pytest.fail.Exception, at_least_s=LEAST_SETUP_S)
    try:
        return (yield)
    finally:
        _alarm.clear()


@pytest.hookimpl(tryfirst=True)
def pytest_runtest_makereport() -> None:
    """Clear it again, should an alarm have come just as it was being cleared."""
    _alarm.clear()
