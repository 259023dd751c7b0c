"""A pytest plugin: whatever a test starts has default signals, however the test run itself was started.

Under nohup, or as a background job of a script, a process begins with SIGINT, SIGQUIT or SIGHUP ignored, and its
children inherit that through exec. A program that is tested with Ctrl-C then never ends. Signals with a handler are
reset by exec, so a handler that does nothing keeps this process as it was and gives its children the default.
"""

from __future__ import annotations

import signal

import pytest


@pytest.hookimpl(tryfirst=True)
def pytest_configure() -> None:
    """Replace "ignored" by "handled, by doing nothing", and block no signal."""
    for number in (signal.SIGINT, signal.SIGQUIT, signal.SIGHUP, signal.SIGTERM, signal.SIGUSR1, signal.SIGUSR2):
        if signal.getsignal(number) is signal.SIG_IGN:
            signal.signal(number, lambda *_: None)
    signal.pthread_sigmask(signal.SIG_SETMASK, [])
