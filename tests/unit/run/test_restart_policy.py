"""The dead are started again within bounds, and whoever gives up names the first cause."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from strata.run.exits import REGROUPED
from strata.run.launch.restart_policy import (
    Decision,
    Exit,
    Finished,
    GiveUp,
    LeaveOut,
    Restart,
    RestartPolicy,
    Restarts,
)


def ended(code: int = 1, worker: int = 0, lived_s: float = 1.0) -> Exit:
    return Exit(worker_id=f"w{worker}", rank=worker, code=code, lived_s=lived_s)


def decide(restarts: Restarts, exit_: Exit, *, running: int = 3, now_s: float = 0.0, chance: float = 1.0) -> Decision:
    return restarts.decide(exit_, running=running, now_s=now_s, chance=chance)


def test_who_ends_well_is_done() -> None:
    restarts = Restarts(RestartPolicy(), min_workers=4)
    assert decide(restarts, ended(0)) == Finished()
    assert restarts.first_cause is None


def test_who_ended_well_and_is_needed_again_is_started_as_often_as_one_that_failed() -> None:
    restarts = Restarts(RestartPolicy(max_restarts=2), min_workers=4)
    decisions = [restarts.decide(ended(0), running=1, now_s=0.0, chance=1.0, is_needed=True) for _ in range(3)]
    assert [type(decision) for decision in decisions] == [Restart, Restart, GiveUp]
    assert restarts.first_cause == ended(0)


def test_a_worker_that_leaves_because_its_group_starts_again_is_said_to_have_done_as_intended() -> None:
    assert str(ended(REGROUPED)) == (
        "w0 (rank 0) left as intended (recover=False), because the membership changed, after 1.0 s"
    )


def test_after_the_last_restart_the_job_gives_up() -> None:
    restarts = Restarts(RestartPolicy(max_restarts=2), min_workers=4)
    assert [type(decide(restarts, ended())) for _ in range(3)] == [Restart, Restart, GiveUp]


def test_with_enough_others_the_job_goes_on_without_it() -> None:
    restarts = Restarts(RestartPolicy(max_restarts=0), min_workers=2)
    assert decide(restarts, ended(), running=2) == LeaveOut()
    assert isinstance(decide(restarts, ended(), running=1), GiveUp)


def test_without_restarts_the_first_death_ends_the_job_and_says_so() -> None:
    decision = decide(Restarts(RestartPolicy(max_restarts=0), min_workers=4), ended())
    assert isinstance(decision, GiveUp)
    assert "restarts are off" in decision.reason


def test_restarts_of_long_ago_are_forgotten() -> None:
    restarts = Restarts(RestartPolicy(max_restarts=1, window_s=100), min_workers=4)
    assert isinstance(decide(restarts, ended(), now_s=0), Restart)
    assert isinstance(decide(restarts, ended(), now_s=99), GiveUp)
    assert isinstance(decide(restarts, ended(), now_s=101), Restart)


def test_pauses_double_up_to_the_bound_and_start_anew_after_a_long_life() -> None:
    restarts = Restarts(RestartPolicy(first_backoff_s=1, max_backoff_s=5, max_restarts=99), min_workers=4)
    pauses = [decide(restarts, ended()) for _ in range(5)]
    assert [each.after_s for each in pauses if isinstance(each, Restart)] == [1, 2, 4, 5, 5]
    after_long = decide(restarts, ended(lived_s=61))
    assert isinstance(after_long, Restart)
    assert after_long.after_s == 1
    other = decide(restarts, ended(worker=1))
    assert isinstance(other, Restart)
    assert other.after_s == 1


@given(chance=st.floats(0, 1), failures=st.integers(1, 40))
def test_a_pause_is_never_longer_than_its_bound_nor_shorter_than_half_the_first(chance: float, failures: int) -> None:
    policy = RestartPolicy(max_restarts=100)
    restarts = Restarts(policy, min_workers=1)
    for _ in range(failures):
        decision = decide(restarts, ended(), chance=chance)
        assert isinstance(decision, Restart)
        assert policy.first_backoff_s / 2 <= decision.after_s <= policy.max_backoff_s


def test_the_first_of_failures_that_follow_each_other_is_the_cause() -> None:
    restarts = Restarts(RestartPolicy(incident_s=60), min_workers=4)
    decide(restarts, ended(worker=3), now_s=0)
    decide(restarts, ended(worker=2, code=-9), now_s=1_000)
    decide(restarts, ended(worker=1), now_s=1_030)
    decide(restarts, ended(worker=0), now_s=1_080)
    assert restarts.first_cause is not None
    assert restarts.first_cause.worker_id == "w2"


def test_an_end_is_told_in_words_and_in_the_code_of_a_shell() -> None:
    assert str(ended(-9)) == "w0 (rank 0) was ended by SIGKILL after 1.0 s"
    assert str(ended(3)) == "w0 (rank 0) exited with code 3 after 1.0 s"
    assert "signal 63" in str(ended(-63))
    assert (ended(-15).exit_code, ended(3).exit_code) == (143, 3)


@pytest.mark.parametrize("fields", [{"max_restarts": -1}, {"window_s": 0}, {"first_backoff_s": -1}])
def test_a_policy_without_sense_is_refused(fields: dict[str, float]) -> None:
    with pytest.raises(ValueError, match="use"):
        RestartPolicy(**fields)


def test_restarts_of_the_group_count_one_each_whichever_worker_failed() -> None:
    restarts = Restarts(RestartPolicy(max_restarts=2), min_workers=4)
    decisions = [
        restarts.decide(ended(worker=worker), running=3, now_s=0.0, chance=1.0, of_group=True) for worker in range(3)
    ]
    assert [type(decision) for decision in decisions] == [Restart, Restart, GiveUp]
    pauses = [each.after_s for each in decisions if isinstance(each, Restart)]
    assert pauses == sorted(set(pauses)), "each pause is longer than the one before"
