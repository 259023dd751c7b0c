"""Meetings: arrivals are repeated, releases are kept and offered, and every meeting ends."""

from __future__ import annotations

from strata.client.worker.meetings import ARRIVE_AGAIN_S
from strata.cluster import commands as c
from strata.cluster import events as e
from strata.cluster.replies import Done
from strata.cluster.values import Meeting
from strata.errors import (
    BarrierTimeoutError,
    GenerationChangedError,
)
from tests.unit.client.protocol_worker import Worker, released


def test_an_arrival_is_repeated_until_the_release_comes(worker: Worker) -> None:
    number = worker.meet("epoch")
    worker.reply(worker.sent(c.ArriveAtBarrier)[-1].number, Done())
    worker.pass_time(ARRIVE_AGAIN_S + 0.1)
    assert len(worker.sent(c.ArriveAtBarrier)) == 2
    worker.effect(released("epoch"))
    assert worker.answer(number) == released("epoch")


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
    number = worker.meet("epoch", timeout_s=30.0)
    worker.take(worker.protocol.lost(worker.now_s))
    worker.pass_time(50.0)
    assert isinstance(worker.answer(number), BarrierTimeoutError)
