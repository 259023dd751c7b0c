"""A pytest plugin: whatever a test starts has the signals and limits of a plain process, whoever runs the tests.

- Under nohup, or as a background job of a script, a process begins with SIGINT, SIGQUIT or SIGHUP ignored, and its
  children inherit that through exec. A program that is tested with Ctrl-C then never ends. Signals with a handler are
  reset by exec, so a handler that does nothing keeps this process as it was and gives its children the default.
- A process that runs thousands of tests opens many files itself, and may have as many as the system allows it. The
  programs that it starts get what most systems give them (``tests.testbed.process.start``).
- A user's http_proxy cannot reach the servers that tests start on this machine.
"""

from __future__ import annotations

import os
import resource
import signal
from contextlib import contextmanager
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from collections.abc import Iterator


@pytest.hookimpl(tryfirst=True)
def pytest_configure() -> None:
    """Handle ignored signals by doing nothing, block none, allow many open files, and use no proxy on this machine."""
    for number in (signal.SIGINT, signal.SIGQUIT, signal.SIGHUP, signal.SIGTERM, signal.SIGUSR1, signal.SIGUSR2):
        if signal.getsignal(number) is signal.SIG_IGN:
            signal.signal(number, lambda *_: None)
    signal.pthread_sigmask(signal.SIG_SETMASK, [])
    _, most = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))
    for name in ("no_proxy", "NO_PROXY"):
        os.environ[name] = ",".join(filter(None, [os.environ.get(name), "127.0.0.1", "localhost", "::1"]))


@contextmanager
def few_open_files(count: int = 1_024) -> Iterator[None]:
    """Let this process open as few files as most systems allow."""
    many, most = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (min(count, many), most))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (many, most))
