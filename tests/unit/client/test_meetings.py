"""Meetings: arrivals are repeated, releases are kept and offered, and every meeting ends."""

from __future__ import annotations

import pytest

from strata.client.worker import actions as a
from strata.client.worker import meetings
from strata.client.worker.meetings import ARRIVE_AGAIN_S, MAX_KEPT, MIN_KEPT
from strata.cluster import commands as c
from strata.cluster import events as e
from strata.cluster.replies import Done
from strata.cluster.values import Meeting
from strata.errors import (
    BarrierTimeoutError,
    GenerationChangedError,
    UnauthenticatedError,
)
from tests.unit.client.protocol_worker import Worker, released


def test_an_arrival_is_repeated_until_the_release_comes(worker: Worker) -> None:
    number = worker.meet("epoch")
    worker.reply(worker.sent(c.ArriveAtBarrier)[-1].number, Done())
    worker.pass_time(ARRIVE_AGAIN_S + 0.1)
    assert len(worker.sent(c.ArriveAtBarrier)) == 2
    worker.effect(released("epoch"))
    assert worker.answer(number) == released("epoch")


def test_two_that_wait_at_one_meeting_arrive_once_and_both_get_the_release(worker: Worker) -> None:
    numbers = [worker.meet("epoch"), worker.meet("epoch")]
    assert len(worker.sent(c.ArriveAtBarrier)) == 1
    worker.effect(released("epoch"))
    assert [worker.answer(number) for number in numbers] == [released("epoch")] * 2


def test_a_meeting_goes_on_until_the_last_one_that_waits_has_given_it_up(worker: Worker) -> None:
    first, second = worker.meet("epoch"), worker.meet("epoch")
    worker.protocol.forget(first)
    worker.pass_time(ARRIVE_AGAIN_S + 0.1)
    assert len(worker.sent(c.ArriveAtBarrier)) == 2
    worker.protocol.forget(second)
    worker.pass_time(ARRIVE_AGAIN_S + 0.1)
    assert len(worker.sent(c.ArriveAtBarrier)) == 2
    assert worker.effect(released("epoch")) == [a.Deliver(released("epoch"))], "nobody waits for it"


def test_an_arrival_is_repeated_a_while_after_it_and_not_after_the_last_tick(worker: Worker) -> None:
    worker.now_s += ARRIVE_AGAIN_S / 2
    worker.meet("epoch")
    worker.pass_time(ARRIVE_AGAIN_S - 0.1)
    assert len(worker.sent(c.ArriveAtBarrier)) == 1
    worker.pass_time(0.2)
    assert len(worker.sent(c.ArriveAtBarrier)) == 2


def offered(worker: Worker) -> list[int]:
    """Let the worker join again, and return the rounds whose releases it offers."""
    worker.take(worker.protocol.lost(worker.now_s))
    worker.join()
    return [meeting.round for meeting in worker.sent(c.OfferReleases)[-1].command.meetings]


def test_the_newest_releases_are_kept_and_no_more_than_a_bound(worker: Worker) -> None:
    for number in range(1, MAX_KEPT + 4):
        worker.meet("epoch")
        worker.effect(released("epoch", round=number))
    assert offered(worker) == list(range(4, MAX_KEPT + 4))


def test_of_large_releases_only_the_last_few_are_kept(worker: Worker, monkeypatch: pytest.MonkeyPatch) -> None:
    # Each has one byte: ten of them are allowed.
    monkeypatch.setattr(meetings, "MAX_KEPT_BYTES", 10)
    for number in range(1, 13):
        worker.meet("epoch")
        worker.effect(released("epoch", round=number))
    assert offered(worker) == list(range(3, 13))
    monkeypatch.setattr(meetings, "MAX_KEPT_BYTES", 1)
    worker.meet("epoch")
    worker.effect(released("epoch", round=13))
    assert offered(worker) == list(range(14 - MIN_KEPT, 14)), "but always these"


def test_the_second_meeting_under_a_name_is_another_round(worker: Worker) -> None:
    first = worker.meet("epoch")
    worker.effect(released("epoch"))
    second = worker.meet("epoch")
    assert worker.sent(c.ArriveAtBarrier)[-1].command.round == 2
    worker.effect(released("epoch"))
    assert worker.is_answered(first)
    assert not worker.is_answered(second), "a late copy of the first release is not the second"
    worker.effect(released("epoch", round=2))
    assert worker.is_answered(second)


def test_releases_are_offered_when_the_worker_joins_again_and_brought_when_wanted(worker: Worker) -> None:
    worker.meet("epoch")
    worker.effect(released("epoch"))
    worker.take(worker.protocol.lost(worker.now_s))
    worker.join()
    (offer,) = worker.sent(c.OfferReleases)
    assert offer.command.meetings == (Meeting("epoch", 1),)
    worker.effect(e.ReleaseWanted(job_id="default", to=("a",), name="epoch", round=1, generation=1))
    (brought,) = worker.sent(c.BringRelease)
    assert brought.command.payloads == (b"x",)


def test_releases_are_offered_again_while_the_worker_waits_because_a_coordinator_may_forget(worker: Worker) -> None:
    """A journal that refuses a write takes the coordinator back to what is durable, and no connection ends by that."""
    worker.meet("epoch")
    worker.effect(released("epoch"))
    worker.meet("epoch")
    worker.pass_time(ARRIVE_AGAIN_S + 0.1)
    (offer,) = worker.sent(c.OfferReleases)
    assert offer.command.meetings == (Meeting("epoch", 1),)
    for _ in range(3):
        worker.pass_time(ARRIVE_AGAIN_S + 0.1)
    worker.take(worker.protocol.lost(worker.now_s))
    before = len(worker.sent(c.OfferReleases))
    worker.join()
    assert len(worker.sent(c.OfferReleases)) == before + 1, "those that were not answered are not all said again"


def test_releases_of_an_older_generation_are_not_offered(worker: Worker) -> None:
    worker.meet("epoch")
    worker.effect(released("epoch"))
    worker.take(worker.protocol.lost(worker.now_s))
    worker.join(generation=2)
    assert worker.sent(c.OfferReleases) == []


def test_a_new_generation_ends_the_meetings_of_the_one_before_at_once(worker: Worker) -> None:
    number = worker.meet("epoch")
    worker.effect(e.GenerationChanged(job_id="default", to=("a",), generation=2, reason="b failed"))
    assert isinstance(worker.answer(number), GenerationChangedError)
    assert worker.protocol.why_changed == "b failed"


def test_a_meeting_ends_although_the_coordinator_never_comes_back(worker: Worker) -> None:
    numbers = [worker.meet("epoch", timeout_s=30.0), worker.meet("some", timeout_s=30.0, expected=2)]
    worker.take(worker.protocol.lost(worker.now_s))
    worker.pass_time(50.0)
    errors = [worker.answer(number) for number in numbers]
    assert all(isinstance(error, BarrierTimeoutError) for error in errors)
    assert [error.expected for error in errors] == [0, 2], "how many are expected is not known without a number"


@pytest.mark.parametrize("is_noted", [False, True])
def test_a_worker_that_is_refused_for_good_waits_at_no_meeting_any_more(worker: Worker, is_noted: bool) -> None:
    numbers = [worker.meet("epoch"), worker.meet("epoch"), worker.meet("other")]
    for arrival in worker.sent(c.ArriveAtBarrier) if is_noted else ():
        worker.reply(arrival.number, Done())
    refusal = UnauthenticatedError("the token was revoked")
    worker.take(worker.protocol.refuse(refusal, worker.now_s))
    assert [worker.answer(number) for number in numbers] == [refusal] * 3
    late = worker.ask(c.GetKey(key="k"))
    assert worker.answer(late) is refusal, "and neither does what is asked later"
