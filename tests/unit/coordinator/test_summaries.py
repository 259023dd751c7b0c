"""When the workers of a job make no progress, and where their time goes meanwhile."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from strata.cluster.lifecycle.job_state import NOBODY_YET
from strata.cluster.lifecycle.stalls import is_stalled
from strata.coordinator.http.summaries import find_unreported
from strata.coordinator.telemetry.reckoning import Reckoning


@pytest.mark.parametrize(
    ("said", "expected"),
    [
        ({}, False),
        ({"step_s": 0.1}, False),
        # A step of twenty seconds is under way as usual.
        ({"step_s": 20.0, "stalled_s": 19.0, "limit_s": 200.0}, False),
        ({"step_s": 20.0, "stalled_s": 61.0, "limit_s": 200.0}, True),
        ({"step_s": 0.1, "stalled_s": 3.5, "limit_s": 120.0}, True),
        # The first step compiles.
        ({"stalled_s": 100.0, "limit_s": 900.0}, False),
        ({"stalled_s": 451.0, "limit_s": 900.0}, True),
        # The limit that the user gave is near.
        ({"step_s": 20.0, "stalled_s": 16.0, "limit_s": 30.0}, True),
        ({"stalled_s": float("nan"), "limit_s": 30.0}, False),
    ],
)
def test_a_step_stalls_if_it_takes_much_longer_than_usual(said: dict[str, float], expected: bool) -> None:
    assert is_stalled(said) is expected


def job_of(*said: dict[str, float], waits_for: int = 0, state: str = "training") -> Any:
    present = tuple(
        SimpleNamespace(worker_id=f"w{rank}", rank=rank, step=7, state=state, resources=each)
        for rank, each in enumerate(said)
    )
    return SimpleNamespace(present=present, workers=present, waits_for=waits_for, ending=NOBODY_YET)


def history_until(until_s: float | None, *heard_s: float) -> Any:
    tracks = {f"w{rank}": SimpleNamespace(heard_s=each) for rank, each in enumerate(heard_s)}
    return SimpleNamespace(until_s=until_s, workers=tracks)


STALLED = {"step_s": 0.1, "stalled_s": 40.0, "limit_s": 120.0}


@pytest.mark.parametrize(
    ("job", "expected"),
    [
        (job_of({}, {}), {}),
        (
            job_of(STALLED, {**STALLED, "waiting": 1.0}, {"waiting": 1.0}, {"waiting": 1.0}),
            {"wait": 30.0, "repeated": 10.0},
        ),
        (job_of(STALLED), {"wait": 0.0, "repeated": 40.0}),
        # A known long phase is no stall.
        (job_of({**STALLED, "paused": 1.0}, {"waiting": 1.0}), {}),
        (job_of({}, {}, waits_for=1), {"wait": 40.0}),
        (job_of({}, {}, state="recovering"), {"restore": 40.0}),
    ],
)
def test_time_without_steps_is_lost_while_it_lasts(job: Any, expected: dict[str, float]) -> None:
    found = find_unreported(history_until(100.0, 140.0, 139.0), job)
    assert found == pytest.approx(expected)
    reckoned = Reckoning(100.0, {"compute": 100.0, "wait": 0.0, "repeated": 0.0, "restore": 0.0}).plus(found)
    assert sum(reckoned.parts.values()) == pytest.approx(reckoned.wall_s)
    assert reckoned.goodput == pytest.approx(100 / 140 if expected else 1.0)


@pytest.mark.parametrize("history", [history_until(None, 140.0), history_until(100.0), history_until(100.0, 99.0)])
def test_what_was_reported_is_not_counted_again(history: Any) -> None:
    assert find_unreported(history, job_of(STALLED)) == {}
