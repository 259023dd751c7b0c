"""A pytest plugin: whatever a test starts has the signals and limits of a plain process, whoever runs the tests.

- Under nohup, or as a background job of a script, a process begins with SIGINT, SIGQUIT or SIGHUP ignored, and its
  children inherit that through exec. A program that is tested with Ctrl-C then never ends. Signals with a handler are
  reset by exec, so a handler that does nothing keeps this process as it was and gives its children the default.
- Most systems allow a process 1,024 open files; containers and root often have more, and would hide that a program
  needs them.
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

OPEN_FILES = 1_024


@pytest.hookimpl(tryfirst=True)
def pytest_configure() -> None:
    """Handle ignored signals by doing nothing, block none, allow few open files, and use no proxy on this machine."""
    for number in (signal.SIGINT, signal.SIGQUIT, signal.SIGHUP, signal.SIGTERM, signal.SIGUSR1, signal.SIGUSR2):
        if signal.getsignal(number) is signal.SIG_IGN:
            signal.signal(number, lambda *_: None)
    signal.pthread_sigmask(signal.SIG_SETMASK, [])
    _, most = resource.getrlimit(resource.RLIMIT_NOFILE)
    few = OPEN_FILES if most == resource.RLIM_INFINITY else min(OPEN_FILES, most)
    resource.setrlimit(resource.RLIMIT_NOFILE, (few, most))
    for name in ("no_proxy", "NO_PROXY"):
        os.environ[name] = ",".join(filter(None, [os.environ.get(name), "127.0.0.1", "localhost", "::1"]))


@contextmanager
def many_open_files(count: int) -> Iterator[None]:
    """Let a test open this many files itself; skip it where the system does not allow them."""
    few, most = resource.getrlimit(resource.RLIMIT_NOFILE)
    if most != resource.RLIM_INFINITY and most < count:
        pytest.skip(f"needs {count} open files, and this system allows {most}: raise the hard limit (ulimit -Hn)")
    resource.setrlimit(resource.RLIMIT_NOFILE, (count, most))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (few, most))
