"""The watchdog blames the one that is behind, and never one that waits."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from strata.run.watchdog.step_times import FIRST_LIMIT_S, LEAST_LIMIT_S, StepTimes
from strata.run.watchdog.verdict import Fine, Hung, Late, Standing, Waits, judge

LIMIT_S = 100.0


def at(rank: int = 0, step: int = 5, **fields: object) -> Standing:
    return Standing(rank=rank, step=step, stalled_s=fields.pop("stalled_s", 150.0), **fields)


def test_a_step_that_is_not_late_is_fine() -> None:
    assert judge(at(stalled_s=49.0), [], limit_s=LIMIT_S) == Fine()


def test_one_that_waits_in_a_barrier_is_never_ended() -> None:
    assert judge(at(is_waiting=True), [at(1)], limit_s=LIMIT_S) == Waits((1,))


def test_of_workers_that_wait_at_different_meetings_the_one_with_the_fewest_steps_is_ended() -> None:
    behind, ahead = at(0, step=5, is_waiting=True), at(1, step=6, is_waiting=True)
    assert isinstance(judge(behind, [ahead], limit_s=LIMIT_S, is_deadlocked=True), Hung)
    assert judge(ahead, [behind], limit_s=LIMIT_S, is_deadlocked=True) == Waits(())
    assert judge(behind, [ahead], limit_s=LIMIT_S) == Waits(())
    assert judge(behind, [replace(ahead, stalled_s=1.0)], limit_s=LIMIT_S, is_deadlocked=True) == Waits(())


def test_of_workers_that_wait_at_different_meetings_of_one_step_one_is_ended() -> None:
    workers = [at(rank, is_waiting=True) for rank in range(3)]
    verdicts = [
        judge(me, [each for each in workers if each is not me], limit_s=LIMIT_S, is_deadlocked=True) for me in workers
    ]
    assert [isinstance(verdict, Hung) for verdict in verdicts] == [False, False, True]


def test_one_that_computes_while_another_waits_for_it_is_hung() -> None:
    assert isinstance(judge(at(), [at(1, is_waiting=True)], limit_s=LIMIT_S), Hung)


def test_it_is_named_before_it_is_ended() -> None:
    assert isinstance(judge(at(stalled_s=60.0), [at(1, is_waiting=True)], limit_s=LIMIT_S), Late)


def test_in_a_collective_the_one_that_entered_fewer_is_hung_and_the_others_wait_for_it() -> None:
    hung, healthy = at(1, collectives=7.0), at(0, collectives=8.0, is_in_collective=True)
    assert isinstance(judge(hung, [healthy], limit_s=LIMIT_S), Hung)
    assert judge(healthy, [hung], limit_s=LIMIT_S) == Waits((1,))


def test_where_nothing_counts_collectives_the_stacks_tell() -> None:
    hung, healthy = at(1), at(0, is_in_collective=True)
    assert isinstance(judge(hung, [healthy], limit_s=LIMIT_S), Hung)
    assert judge(healthy, [hung], limit_s=LIMIT_S) == Waits((1,))


def test_one_that_missed_a_change_of_the_membership_is_hung_whatever_the_steps_of_the_others() -> None:
    assert isinstance(judge(at(step=9, outdated_s=LIMIT_S), [at(1, step=4)], limit_s=LIMIT_S), Hung)


def test_one_that_waited_for_a_worker_that_is_gone_gets_its_limit_anew_to_learn_of_it() -> None:
    waited = at(stalled_s=3 * LIMIT_S, is_in_collective=True, outdated_s=0.0)
    assert judge(waited, [], limit_s=LIMIT_S, is_limit_given=True) == Fine()
    assert isinstance(judge(replace(waited, outdated_s=0.6 * LIMIT_S), [], limit_s=LIMIT_S, is_limit_given=True), Late)


def test_a_long_phase_of_all_is_not_ended_as_soon_unless_the_limit_was_set() -> None:
    assert isinstance(judge(at(), [at(1)], limit_s=LIMIT_S), Late)
    assert isinstance(judge(at(stalled_s=501.0), [at(1)], limit_s=LIMIT_S), Hung)
    assert isinstance(judge(at(), [at(1)], limit_s=LIMIT_S, is_limit_given=True), Hung)


standings = st.lists(
    st.builds(
        Standing,
        rank=st.integers(0, 0),
        step=st.integers(3, 5),
        collectives=st.one_of(st.none(), st.integers(1, 3).map(float)),
        stalled_s=st.just(150.0),
        is_waiting=st.booleans(),
        is_in_collective=st.booleans(),
    ),
    min_size=2,
    max_size=6,
)


@given(workers=standings, counts=st.booleans())
def test_of_workers_that_all_stand_still_no_waiting_one_is_ended(workers: list[Standing], counts: bool) -> None:
    from dataclasses import replace

    everyone = [
        replace(each, rank=rank, collectives=(each.collectives or 1.0) if counts else None)
        for rank, each in enumerate(workers)
    ]
    for me in everyone:
        others = [each for each in everyone if each is not me]
        verdict = judge(me, others, limit_s=LIMIT_S)
        if me.is_waiting:
            assert isinstance(verdict, Waits)
        if isinstance(verdict, Hung):
            assert not any((each.step, each.collectives or 0) < (me.step, me.collectives or 0) for each in others)


def test_the_limit_follows_from_the_steps_of_the_run() -> None:
    times = StepTimes()
    assert times.limit_s() == FIRST_LIMIT_S
    for _ in range(100):
        times.add(0.1)
    assert times.limit_s() == LEAST_LIMIT_S
    for _ in range(100):
        times.add(30.0)
    assert times.limit_s() == 300.0
    times.add(200.0)
    assert times.limit_s() == 600.0, "an evaluation that was survived once is survived again"


def test_a_limit_that_is_given_counts_and_must_be_above_nothing() -> None:
    assert StepTimes(7.0).limit_s() == 7.0
    with pytest.raises(ValueError, match="watchdog_s"):
        StepTimes(-1.0)
