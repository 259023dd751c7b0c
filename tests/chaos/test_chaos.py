"""A few faults of each length of `python -m tests.chaos`; and its own judgement of logs."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.chaos.chaos import Chaos
from tests.chaos.logs import Line, Pause, find_silences

pytestmark = [pytest.mark.full, pytest.mark.timeout(400), pytest.mark.xdist_group("whole runs")]


def test_a_job_ends_exactly_after_faults_of_several_kinds(tmp_path: Path) -> None:
    # Nobody hangs here, so the watchdog may be patient: a busy machine is no hang.
    with Chaos(tmp_path, kind="numpy", epochs=20, seed=5, watchdog_s=300.0) as chaos:
        for fault in ("kill", "coordinator_death", "freeze"):
            chaos.do(fault)
        assert chaos.finish(judges_waits=False) == []


def said(*lines: tuple[float, str]) -> list[Line]:
    return [Line(at_s, 0, text) for at_s, text in lines]


def test_a_long_silence_is_found_and_one_that_is_explained_is_not() -> None:
    silent = said((0.0, "life 0 7"), (1.0, "step 1"), (20.0, "step 2"))
    assert len(list(find_silences(silent, []))) == 1
    assert list(find_silences(silent, [Pause(0, 2.0, 15.0)])) == []
    assert len(list(find_silences(silent, [Pause(1, 2.0, 15.0)]))) == 1
    told = said((1.0, "step 1"), (4.0, "! 12:00:00 strata WARNING waiting for rank 1"), (20.0, "step 2"))
    assert list(find_silences(told, [])) == []
    restarted = said((1.0, "step 1"), (30.0, "life 0 8"), (31.0, "step 2"))
    assert list(find_silences(restarted, [])) == []
