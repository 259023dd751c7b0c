"""A worker of several coordinators: it finds the leader, leaves one that leads no more, and says again what it must."""

from __future__ import annotations

import pytest

from strata.client.worker import actions as a
from strata.client.worker.meetings import ARRIVE_AGAIN_S
from strata.client.worker.states import State
from strata.cluster import commands as c
from strata.cluster.replies import Done
from strata.cluster.values import Meeting
from strata.errors import CoordinatorLostError, NotLeaderError
from tests.unit.client.protocol_worker import LEASE_S, Worker, released

ABC = ("a:1", "b:1", "c:1")


@pytest.fixture
def worker() -> Worker:
    return Worker(addresses=ABC)


def connects(actions: list[a.Action]) -> list[str]:
    return [action.address for action in actions if isinstance(action, a.Connect)]


def test_a_standby_that_names_the_leader_is_left_for_it_before_anything_is_said() -> None:
    worker = Worker(joins=False, addresses=ABC)
    assert connects(worker.actions) == ["a:1"]
    actions = worker.take(worker.protocol.redirected("c:1", 4, worker.now_s))
    assert connects(actions) == ["c:1"]
    worker.join()
    assert worker.protocol.state is State.JOINED


def test_a_leader_that_was_deposed_is_left_whatever_it_was_asked(worker: Worker) -> None:
    number = worker.ask(c.GetKey(key="k"))
    actions = worker.reply(number, NotLeaderError("b:1", term=5))
    assert [type(action) for action in actions] == [a.Disconnect, a.Connect]
    assert connects(actions) == ["b:1"]
    assert not worker.is_answered(number)


def test_what_was_not_answered_is_asked_once_of_the_new_leader(worker: Worker) -> None:
    number = worker.ask(c.GetKey(key="k"))
    worker.reply(number, NotLeaderError("b:1", term=5))
    # Replies of the one that was left do not count any more.
    assert worker.reply(number, NotLeaderError("c:1", term=5)) == []
    worker.join()
    assert [each.number for each in worker.sent(c.GetKey)] == [number, number]
    worker.reply(number, Done())
    worker.pass_time(60.0)
    assert len(worker.sent(c.GetKey)) == 2


def test_a_heartbeat_to_a_deposed_leader_brings_the_worker_to_the_next(worker: Worker) -> None:
    beat = worker.sent(c.Heartbeat)[-1]
    actions = worker.reply(beat.number, NotLeaderError("c:1", term=5))
    assert connects(actions) == ["c:1"]
    assert worker.protocol.state is State.DISCONNECTED


def test_a_registration_that_a_standby_refuses_does_not_end_the_worker() -> None:
    worker = Worker(joins=False, addresses=ABC)
    sent = worker.take(worker.protocol.connected(worker.now_s))
    actions = worker.reply(sent[-1].number, NotLeaderError("", term=0))
    assert connects(actions) == ["b:1"]
    worker.join()
    assert worker.protocol.state is State.JOINED


def test_a_takeover_loses_no_barrier(worker: Worker) -> None:
    waiting = worker.meet("step", generation=1)
    worker.take(worker.protocol.lost(worker.now_s))
    worker.join()
    assert len(worker.sent(c.ArriveAtBarrier)) == 2
    worker.effect(released("step"))
    assert worker.answer(waiting) == released("step")
    # And one that some were told of is offered to the next leader, which knows nothing of it.
    worker.take(worker.protocol.lost(worker.now_s))
    worker.join()
    (offer,) = worker.sent(c.OfferReleases)
    assert offer.command.meetings == (Meeting("step", 1),)


def test_an_arrival_that_the_last_leader_noted_is_said_to_the_next_at_once_and_then_in_its_turn(worker: Worker) -> None:
    waiting = worker.meet("step", generation=1)
    worker.reply(worker.sent(c.ArriveAtBarrier)[-1].number, Done())
    for takeovers in (1, 2):
        worker.take(worker.protocol.lost(worker.now_s))
        worker.join()
        assert len(worker.sent(c.ArriveAtBarrier)) == 1 + takeovers
        worker.reply(worker.sent(c.ArriveAtBarrier)[-1].number, Done())
    # What was due of the arrivals before does not come on top.
    worker.pass_time(ARRIVE_AGAIN_S + 0.1)
    assert len(worker.sent(c.ArriveAtBarrier)) == 4
    worker.effect(released("step"))
    assert worker.answer(waiting) == released("step")


def test_a_silent_leader_is_tried_after_the_others(worker: Worker) -> None:
    actions = worker.pass_time(LEASE_S)
    assert connects(actions) == ["b:1"]
    worker.take(worker.protocol.lost(worker.now_s))
    worker.take(worker.protocol.lost(worker.now_s))
    assert connects(worker.actions)[-2:] == ["c:1", "a:1"]


def test_a_leader_whose_connection_broke_is_tried_first(worker: Worker) -> None:
    assert connects(worker.take(worker.protocol.lost(worker.now_s))) == ["a:1"]


def test_a_search_without_a_leader_goes_on_and_is_slow(worker: Worker) -> None:
    pauses = []
    for _ in range(300):
        (connect,) = worker.take(worker.protocol.lost(worker.now_s))
        assert isinstance(connect, a.Connect)
        pauses.append(connect.delay_s)
    assert max(pauses[-3:]) >= 0.5
    assert max(pauses) < 3.0


def test_each_record_of_a_name_is_tried() -> None:
    worker = Worker(joins=False, addresses=("replicas:1",))
    worker.take(worker.protocol.resolved("replicas:1", ("10.0.0.1:1", "10.0.0.2:1"), worker.now_s))
    worker.take(worker.protocol.redirected("", 0, worker.now_s))
    worker.take(worker.protocol.lost(worker.now_s))
    assert connects(worker.actions) == ["replicas:1", "10.0.0.1:1", "10.0.0.2:1", "replicas:1"]


def test_who_waits_too_long_is_told_all_addresses(worker: Worker) -> None:
    worker.take(worker.protocol.lost(worker.now_s))
    number = worker.ask(c.GetKey(key="k"), timeout_s=5.0)
    worker.pass_time(6.0)
    error = worker.answer(number)
    assert isinstance(error, CoordinatorLostError)
    assert error.address == "a:1,b:1,c:1"


def test_a_goodbye_that_a_deposed_leader_refuses_is_said_to_the_next(worker: Worker) -> None:
    number, actions = worker.protocol.leave("finished", worker.now_s, timeout_s=30.0)
    worker.take(actions)
    worker.reply(number, NotLeaderError("b:1", term=5))
    worker.join()
    assert len(worker.sent(c.Goodbye)) == 2
    worker.reply(number, Done())
    assert worker.answer(number) == Done()
