"""A run saves when it was asked to, or when saving and failing together cost least."""

from __future__ import annotations

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from strata import Cadence
from strata.run.loop.cadence import DAY_S, SaveTimer, parse_cadence

COSTS_S = st.floats(1e-4, 600)


def timer(cadence: Cadence, *, world_size: int = 8) -> SaveTimer:
    return SaveTimer(cadence, world_size=world_size, now_s=0.0)


def test_by_steps_a_save_is_due_at_every_nth_step_whoever_counts() -> None:
    one, other = timer(Cadence(every_steps=10)), timer(Cadence(every_steps=10))
    other.restored(7, now_s=3.0)
    due = [step for step in range(1, 41) if one.is_due(step, now_s=0.0)]
    assert due == [10, 20, 30, 40]
    assert [step for step in range(8, 41) if other.is_due(step, now_s=9.0)] == due


def test_by_seconds_a_save_is_due_when_they_have_passed_since_the_last() -> None:
    by_time = timer(Cadence(every_s=60))
    assert not by_time.is_due(5, now_s=59.0)
    assert by_time.is_due(6, now_s=60.0)
    by_time.saved(6, cost_s=1.0, now_s=61.0)
    assert not by_time.is_due(7, now_s=120.0)
    assert by_time.is_due(8, now_s=121.0)


def test_what_is_saved_or_restored_is_not_saved_again() -> None:
    for cadence in (Cadence(every_steps=1), Cadence(every_s=1), Cadence()):
        saver = timer(cadence)
        saver.restored(4, now_s=0.0)
        assert not saver.is_due(4, now_s=1e6)
        assert saver.is_due(5, now_s=1e6)


def test_auto_saves_once_soon_to_learn_what_it_costs() -> None:
    auto = timer(Cadence())
    assert auto.is_due(1, now_s=0.1)
    auto.saved(1, cost_s=0.5, now_s=0.6)
    assert not auto.is_due(2, now_s=0.7)


@given(cost_s=COSTS_S, world_size=st.integers(1, 10_000), after_s=st.floats(0, 30 * DAY_S), failures=st.integers(0, 50))
def test_auto_aims_at_the_least_expected_loss_within_the_bound(
    cost_s: float, world_size: int, after_s: float, failures: int
) -> None:
    auto = timer(Cadence(max_overhead=0.1), world_size=world_size)
    auto.saved(1, cost_s=cost_s, now_s=0.0)
    for _ in range(failures):
        auto.changed_world(world_size, failed=True, now_s=after_s)
    mtbf_s = auto.mtbf_s(now_s=after_s)

    def loss(interval_s: float) -> float:
        return cost_s / interval_s + interval_s / 2 / mtbf_s

    chosen_s = auto.interval_s(now_s=after_s)
    assert cost_s / chosen_s <= 0.1 * (1 + 1e-9)
    allowed = [chosen_s * factor for factor in (0.5, 0.9, 1.1, 2.0) if cost_s / (chosen_s * factor) <= 0.1]
    assert all(loss(chosen_s) <= loss(other_s) * (1 + 1e-9) for other_s in allowed)


def test_auto_saves_more_often_when_workers_fail_and_less_often_when_saving_is_dear() -> None:
    def interval_s(*, failures: int = 0, cost_s: float = 1.0, world_size: int = 8) -> float:
        auto = timer(Cadence(), world_size=world_size)
        auto.saved(1, cost_s=cost_s, now_s=0.0)
        for _ in range(failures):
            auto.changed_world(world_size, failed=True, now_s=DAY_S)
        return auto.interval_s(now_s=DAY_S)

    assert interval_s(failures=10) < interval_s(failures=1) < interval_s()
    assert interval_s(cost_s=4.0) == pytest.approx(2 * interval_s(cost_s=1.0))
    assert interval_s(world_size=1_000) < interval_s(world_size=10)


def test_a_worker_that_joins_or_leaves_on_purpose_is_no_failure() -> None:
    auto = timer(Cadence())
    before_s = auto.mtbf_s(now_s=0.0)
    auto.changed_world(8, failed=False, now_s=0.0)
    assert auto.mtbf_s(now_s=0.0) == before_s


def test_before_anything_is_seen_the_belief_holds() -> None:
    assert timer(Cadence(worker_failures_per_day=0.5), world_size=4).mtbf_s(now_s=0.0) == DAY_S / 0.5 / 4


def test_one_slow_save_does_not_rule_the_interval() -> None:
    auto = timer(Cadence())
    for step in range(10):
        auto.saved(step, cost_s=1.0, now_s=0.0)
    auto.saved(11, cost_s=100.0, now_s=0.0)
    assert auto.cost_s is not None
    assert auto.cost_s < 50
    assert math.isclose(timer(Cadence()).interval_s(now_s=0.0), 0.0)


@pytest.mark.parametrize(
    ("text", "cadence"),
    [
        ("auto", Cadence()),
        ("500 steps", Cadence(every_steps=500)),
        ("1 step", Cadence(every_steps=1)),
        (25, Cadence(every_steps=25)),
        ("30 s", Cadence(every_s=30)),
        ("1.5 min", Cadence(every_s=90)),
        ("2 h", Cadence(every_s=7_200)),
        (Cadence(every_s=3), Cadence(every_s=3)),
    ],
)
def test_a_cadence_can_be_said_in_words(text: str | int, cadence: Cadence) -> None:
    assert parse_cadence(text) == cadence


@pytest.mark.parametrize("text", ["", "often", "10", "0 steps", "-1 s", "1.5 steps", 0, "3 days"])
def test_a_cadence_that_cannot_be_kept_says_what_can(text: str | int) -> None:
    with pytest.raises(ValueError, match="use"):
        parse_cadence(text)


@pytest.mark.parametrize(
    "fields",
    [{"every_steps": 1, "every_s": 1.0}, {"max_overhead": 0.0}, {"max_overhead": 1.0}, {"worker_failures_per_day": 0}],
)
def test_a_cadence_that_contradicts_itself_is_refused(fields: dict[str, float]) -> None:
    with pytest.raises(ValueError, match=r"use|not both"):
        Cadence(**fields)


@pytest.mark.parametrize(
    ("cadence", "interval_s"), [(Cadence(every_steps=10), 0.0), (Cadence(every_s=60), 60.0), (Cadence(), 0.0)]
)
def test_before_the_first_save_only_a_cadence_in_seconds_has_an_interval(cadence: Cadence, interval_s: float) -> None:
    assert timer(cadence).interval_s(now_s=1.0) == interval_s
