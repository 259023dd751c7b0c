"""A coordinator answers while it leads, and not a moment longer; a standby says where the leader is."""

from __future__ import annotations

import pytest

from strata.clock import ManualClock
from strata.cluster import Limits
from strata.cluster import commands as c
from strata.cluster.replies import Registered
from strata.coordinator.dispatcher import Dispatcher
from strata.coordinator.journal import MemoryJournal
from strata.coordinator.replication.leadership import Leader, Leadership, lead_alone
from strata.errors import NotLeaderError, Recovery

OTHER = Leader(grpc="b:50051", http="http://b:8080", term=4)
SELF = Leader(grpc="a:50051", term=5)


def make(leadership: Leadership, clock: ManualClock) -> Dispatcher:
    return Dispatcher(MemoryJournal(), limits=Limits(), clock=clock, deliver=lambda _: None, leadership=leadership)


def test_a_coordinator_without_replicas_always_leads() -> None:
    clock = ManualClock()
    leadership = lead_alone(clock)
    clock.advance(1e9)
    assert leadership.is_leader
    assert leadership.refusal() is None


async def test_a_standby_answers_everything_with_where_the_leader_is() -> None:
    clock = ManualClock()
    leadership = Leadership(clock)
    dispatcher = make(leadership, clock)
    leadership.follow(OTHER)
    answers: list[object] = []
    for command in (c.RegisterWorker(worker_id="w", incarnation="1"), c.Heartbeat(worker_id="w", incarnation="1")):
        dispatcher.dispatch(command, answers.append)
    dispatcher.look(lambda cluster: cluster.jobs(), answers.append)
    assert [(type(each), each.leader, each.term) for each in answers] == [(NotLeaderError, "b:50051", 4)] * 3
    assert NotLeaderError.recovery is Recovery.RETRY
    with pytest.raises(NotLeaderError, match="the leader of term 4 is at b:50051"):
        await dispatcher.ask_state(lambda cluster: cluster.jobs())


async def test_a_leader_stops_to_answer_when_its_time_is_over_though_nobody_tells_it() -> None:
    clock = ManualClock()
    leadership = Leadership(clock)
    dispatcher = make(leadership, clock)
    leadership.lead(SELF, until_s=clock.monotonic_s() + 2.0)
    assert isinstance(await dispatcher.ask(c.RegisterWorker(worker_id="w", incarnation="1")), Registered)
    clock.advance(2.0)
    with pytest.raises(NotLeaderError, match="no leader is known") as caught:
        await dispatcher.ask(c.Heartbeat(worker_id="w", incarnation="1"))
    assert (caught.value.leader, caught.value.term) == ("", 5)
    leadership.lead(SELF, until_s=clock.monotonic_s() + 2.0)
    await dispatcher.ask(c.Heartbeat(worker_id="w", incarnation="1"))
