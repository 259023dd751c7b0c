"""All workers come to the same answer, and meet only where the step alone does not say it."""

from __future__ import annotations

from typing import Any

from strata import Cadence
from strata.cluster.events import Cause
from strata.cluster.values import RankInfo
from strata.run.loop.schedule import Schedule
from strata.run.loop.votes import Vote

RANK_INFO = RankInfo(rank=1, world_size=2, generation=3)


class Others:
    """A team whose other worker, of rank 0, says what it is told to say; meetings are noted."""

    client: Any

    def __init__(self, *words: Vote, alone: bool = False) -> None:
        self._words = iter(words)
        self.client = None if alone else self
        self.cause_changed = Cause.LEASE_ENDED
        self.meetings: list[str] = []

    def exchange(self, rank_info: RankInfo, name: str, payload: bytes, *, timeout_s: float) -> list[bytes]:
        self.meetings.append(name)
        return [next(self._words).to_bytes(), payload]


def make(others: Others, cadence: Cadence, *, is_uneven: bool = False) -> Schedule:
    schedule = Schedule(others, cadence, RANK_INFO)
    schedule.is_uneven = is_uneven
    schedule.restored(4)
    return schedule


def decide(schedule: Schedule, step: int, *, is_leaving: bool = False) -> bool:
    schedule.tick()
    return schedule.decide(step, is_leaving=is_leaving)


def test_by_steps_nobody_needs_to_meet() -> None:
    others = Others()
    schedule = make(others, Cadence(every_steps=3))
    assert [step for step in range(5, 13) if decide(schedule, step)] == [6, 9, 12]
    assert others.meetings == []


def test_by_time_rank_0_decides_and_says_when_to_meet_next() -> None:
    others = Others(Vote(apart=3), Vote(wants_save=True, apart=2))
    schedule = make(others, Cadence(every_s=1e9))
    assert [step for step in range(5, 10) if decide(schedule, step)] == [8]
    assert others.meetings == ["agree/5", "agree/8"]


def test_alone_there_is_nobody_to_meet() -> None:
    others = Others(alone=True)
    assert decide(make(others, Cadence(every_s=1e-9)), 5)
    assert others.meetings == []


def test_a_worker_leaves_only_when_the_others_have_saved_for_it() -> None:
    others = Others(Vote(apart=2), Vote())
    schedule = make(others, Cadence(every_s=1e9))
    decide(schedule, 5)
    assert not decide(schedule, 6, is_leaving=True)
    assert not schedule.may_leave
    assert decide(schedule, 7, is_leaving=True)
    assert schedule.may_leave


def test_where_batches_are_uneven_the_end_is_agreed_on_and_saves_by_steps_stay() -> None:
    others = Others(Vote(apart=4), Vote(is_out=False), Vote(is_out=True))
    schedule = make(others, Cadence(every_steps=3), is_uneven=True)
    assert [decide(schedule, step) for step in (5, 6, 7, 8)] == [False, True, False, False]
    schedule.is_out = True
    assert not decide(schedule, 9)
    assert not schedule.is_over
    decide(schedule, 10)
    assert schedule.is_over
    assert others.meetings == ["agree/5", "agree/9", "agree/10"]


def test_another_generation_begins_with_nothing_agreed() -> None:
    others = Others(Vote(is_out=True))
    schedule = make(others, Cadence(every_s=1e9))
    schedule.is_out = True
    decide(schedule, 5)
    assert schedule.is_over
    schedule.enter(RankInfo(rank=0, world_size=1, generation=4))
    assert not schedule.is_over
    assert not schedule.is_out
