"""Where the time of a job went is said in lines for people."""

from __future__ import annotations

from typing import Any

from strata.run.launch.goodput_report import describe_goodput

ANSWER: dict[str, Any] = {
    "job_id": "llm",
    "goodput": 0.75,
    "recent_goodput": None,
    "wall_s": 100.0,
    "parts": [
        {"part": "compute", "seconds": 75.0, "share": 0.75},
        {"part": "of a later version", "seconds": 25.0, "share": 0.25},
    ],
    "steps": 40,
    "repeated_steps": 2,
    "steps_at_risk": 3,
    "failures": 1,
    "mtbf_s": 100.0,
    "stragglers": [],
}


def test_a_job_of_which_nothing_is_known_yet_has_one_line() -> None:
    assert list(describe_goodput({**ANSWER, "goodput": None})) == ["job llm: no worker has reported yet"]


def test_every_part_of_the_time_has_a_line_and_they_add_up() -> None:
    lines = list(describe_goodput(ANSWER))
    assert lines == [
        "job llm: goodput 75.0% of 2 min",
        f"   75.0%       75.0 s  {'#' * 22:<30}  training, in steps that were kept",
        f"   25.0%       25.0 s  {'#' * 8:<30}  of a later version",
        "  100.0%      100.0 s  in all, of 100.0 s of wall time",
        "steps: 40 kept, 2 done again, 3 at risk",
        "failures: 1, one in 2 min",
    ]


def test_what_is_not_known_is_left_out() -> None:
    lines = list(
        describe_goodput({**ANSWER, "steps_at_risk": None, "mtbf_s": None, "failures": 0, "recent_goodput": 1})
    )
    assert lines[0].endswith(", 100.0% lately")
    assert lines[-2:] == ["steps: 40 kept, 2 done again", "failures: 0"]


def test_a_slow_rank_is_named_with_its_cause() -> None:
    slow = {"rank": 3, "worker_id": "w3", "ratio": 2.0, "steps": 12, "step_s": 0.5, "median_s": 0.25, "cause": "data"}
    assert list(describe_goodput({**ANSWER, "stragglers": [slow]}))[-1] == (
        "slow: rank 3 (w3) takes 2.0 times as long as the others for 12 steps: 0.5 s instead of 0.25 s, in data"
    )
