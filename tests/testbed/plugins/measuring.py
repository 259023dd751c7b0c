"""A pytest plugin: which processes coverage.py measures.

With ``MEASURE=1``, as in CI, those of pytest alone: what they execute does not depend on when a process is killed, and
the programs that tests start run at their usual speed. With ``MEASURE=all`` the programs are measured, too.
"""

from __future__ import annotations

import os

import pytest

# How coverage.py lets the processes that a process starts measure themselves; those of xdist have begun by now.
VARIABLE = "COVERAGE_PROCESS_CONFIG"


def pytest_configure(config: pytest.Config) -> None:
    """Keep the programs that tests start from being measured."""
    runs_tests = hasattr(config, "workerinput") or not getattr(config.option, "numprocesses", None)
    if runs_tests and os.environ.get("MEASURE") != "all":
        os.environ.pop(VARIABLE, None)
