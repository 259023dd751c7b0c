"""A pytest plugin: the end of the log tells of each failed test its seed and the last lines of its processes.

The end of a log is what is read first, and often all that is kept. So after all of pytest's output every failed test is
named once more, with

- the seed of ``random`` and NumPy, which is set before each test from the test's name and ``STRATA_TEST_SEED``;
- what it failed with;
- each process that it started, or that still runs for it: command, exit code, and the last lines of its output.
"""

from __future__ import annotations

import os
import random
import subprocess
import sys
import zlib
from typing import TYPE_CHECKING

import pytest

from tests.testbed.processes.recorded import MOST_LINES, RecordedProcess, forget_ended, known_processes

if TYPE_CHECKING:
    from collections.abc import Generator

MOST_PROCESSES = 12
PROPERTY = "failure"


@pytest.hookimpl(tryfirst=True)
def pytest_configure() -> None:
    """Record every process that is started from now on."""
    subprocess.Popen = RecordedProcess  # every way of starting a process goes through this name


@pytest.hookimpl(tryfirst=True)
def pytest_runtest_setup(item: pytest.Item) -> None:
    """Seed what is random, and forget the processes of earlier tests."""
    seed = seed_of(item.nodeid)
    random.seed(seed)
    if "numpy" in sys.modules:
        sys.modules["numpy"].random.seed(seed)
    forget_ended()


def seed_of(name: str) -> int:
    """Return the seed of a test: the same in every run, unless STRATA_TEST_SEED is set."""
    return zlib.crc32(f"{os.environ.get('STRATA_TEST_SEED', '')}{name}".encode())


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(item: pytest.Item) -> Generator[None, pytest.TestReport, pytest.TestReport]:
    """Describe a failure while its processes are still known; the report carries it to the process that prints."""
    report = yield
    if report.failed:
        crash = getattr(report.longrepr, "reprcrash", None)
        reason = str(crash.message if crash else report.longrepr).strip().splitlines()
        lines = [f"{report.nodeid} ({report.when})", f"  seed {seed_of(item.nodeid)}"]
        lines += [f"  {line[:300]}" for line in reason[:MOST_LINES]]
        lines += [process.describe() for process in known_processes()[-MOST_PROCESSES:]]
        report.user_properties.append((PROPERTY, "\n".join(lines)))
    return report


@pytest.hookimpl(trylast=True)
def pytest_unconfigure(config: pytest.Config) -> None:
    """Tell of all failures at the very end."""
    reporter = config.pluginmanager.get_plugin("terminalreporter")
    if reporter is None or hasattr(config, "workerinput"):
        return
    reports = [*reporter.stats.get("failed", []), *reporter.stats.get("error", [])]
    for number, report in enumerate(reports):
        if number == 0:
            reporter.write_sep("=", "failed tests, with the last lines of their processes")
        text = dict(getattr(report, "user_properties", ())).get(PROPERTY, report.nodeid)
        reporter.write_line(f"FAILED {text}")
