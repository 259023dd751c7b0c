"""The time of a worker begins with its process, where the system tells when that was."""

from __future__ import annotations

import os
import time
from pathlib import Path

import pytest

from strata.run import process_start
from strata.run.process_start import LONGEST_S, find_start_s


@pytest.fixture(autouse=True)
def _joined_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(process_start, "_joined", set())


def test_only_the_first_job_of_a_process_begins_with_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(process_start, "_age_s", lambda: 100.0)
    before_s = time.monotonic()
    assert before_s - 100.0 <= find_start_s() < before_s
    assert find_start_s() >= before_s


@pytest.mark.parametrize("age_s", [LONGEST_S + 1, -1.0])
def test_a_process_that_did_something_else_before_begins_when_it_joins(
    monkeypatch: pytest.MonkeyPatch, age_s: float
) -> None:
    monkeypatch.setattr(process_start, "_age_s", lambda: age_s)
    before_s = time.monotonic()
    assert find_start_s() >= before_s


@pytest.mark.parametrize("stat", [None, b"", b"1 (python) R 1 2 3"], ids=["no /proc", "empty", "short"])
def test_where_the_system_does_not_tell_the_time_begins_now(
    monkeypatch: pytest.MonkeyPatch, stat: bytes | None
) -> None:
    def read(path: Path) -> bytes:
        if stat is None:
            raise FileNotFoundError(path)
        return stat

    monkeypatch.setattr(Path, "read_bytes", read)
    before_s = time.monotonic()
    assert find_start_s() >= before_s
    assert os.getpid() in process_start._joined
