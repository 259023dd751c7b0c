"""A leader that is late with its renewal holds commands for a moment: it answers them all, or refuses them all."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field

import pytest
from hypothesis import given
from hypothesis import strategies as st

from strata.clock import ManualClock
from strata.cluster import Limits
from strata.cluster import commands as c
from strata.cluster.events import Effect, GenerationChanged
from strata.cluster.replies import HeartbeatReply, KeyValue, Registered
from strata.coordinator import dispatcher as dispatcher_module
from strata.coordinator.dispatcher import Dispatcher
from strata.coordinator.journal import MemoryJournal
from strata.coordinator.lookups import ShardLookups
from strata.coordinator.replication import held_commands
from strata.coordinator.replication.election import Election
from strata.coordinator.replication.held_commands import HeldCommands
from strata.coordinator.replication.leadership import Leader, Leadership
from strata.errors import NotLeaderError
from strata.wire._generated import coordinator_pb2 as pb

SELF, OTHER = Leader(grpc="a:1", term=5), Leader(grpc="b:1", term=6)
ANSWER_S, HOLD_S = 2.0, 4.0


@dataclass
class Leading:
    """A leader whose next renewal the test decides about; it may answer for 2 s, and hold for 2 s more."""

    clock: ManualClock = field(default_factory=ManualClock)
    answers: list[object] = field(default_factory=list)
    effects: list[Effect] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.leadership = Leadership(self.clock)
        self.dispatcher = Dispatcher(
            MemoryJournal(),
            limits=Limits(lease_s=3.0, grace_s=1.0),
            clock=self.clock,
            deliver=self.effects.append,
            leadership=self.leadership,
        )
        self.renew()

    def renew(self) -> None:
        now_s = self.clock.monotonic_s()
        self.leadership.lead(SELF, until_s=now_s + ANSWER_S, hold_until_s=now_s + HOLD_S)

    def send(self, command: c.Command) -> None:
        self.dispatcher.dispatch(command, self.answers.append)

    async def until_answered(self, count: int) -> None:
        async with asyncio.timeout(30):
            while len(self.answers) < count:  # noqa: ASYNC110 - the dispatcher tells a callback of the test
                await asyncio.sleep(0)

    @asynccontextmanager
    async def running(self, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[None]:
        """Let the dispatcher do what time demands, whenever the test lets it run."""
        monkeypatch.setattr(dispatcher_module, "TICK_S", 0.0)
        task = asyncio.create_task(self.dispatcher.run())
        try:
            await self.tick()
            yield
        finally:
            task.cancel()
            await asyncio.gather(task, return_exceptions=True)

    async def tick(self, seconds: float = 0.0) -> None:
        """Let time pass in steps of a tick."""
        for _ in range(max(1, round(seconds / 0.1))):
            self.clock.advance(min(seconds, 0.1))
            for _ in range(4):
                await asyncio.sleep(0)


def register(worker: str) -> c.RegisterWorker:
    return c.RegisterWorker(worker_id=worker, incarnation="1")


def beat(worker: str) -> c.Heartbeat:
    return c.Heartbeat(worker_id=worker, incarnation="1")


def kinds(answers: list[object]) -> list[type]:
    return [type(answer) for answer in answers]


async def test_commands_that_come_in_doubt_are_answered_in_their_order_when_the_lease_was_renewed() -> None:
    leading = Leading()
    leading.clock.advance(2.5)
    leading.send(register("a"))
    leading.send(c.SetKey(key="k", value=b"1", token=0, writer="w"))
    leading.send(beat("a"))
    leading.dispatcher.look(lambda cluster: cluster.jobs(), leading.answers.append)
    assert (leading.answers, leading.dispatcher.cluster.jobs()) == ([], [])
    leading.renew()
    await leading.until_answered(4)
    assert kinds(leading.answers[:3]) == [Registered, KeyValue, HeartbeatReply]
    assert leading.answers[3] == ["default"]
    assert kinds(list(leading.effects)) == [GenerationChanged]


async def test_what_is_held_is_refused_with_the_leader_when_another_one_leads() -> None:
    leading = Leading()
    leading.clock.advance(2.5)
    leading.send(register("a"))
    leading.dispatcher.look(lambda cluster: cluster.jobs(), leading.answers.append)
    leading.leadership.follow(OTHER)
    assert [(type(each), getattr(each, "leader", None)) for each in leading.answers] == [(NotLeaderError, "b:1")] * 2
    assert leading.dispatcher.cluster.jobs() == []


async def test_a_write_that_another_leader_prevents_ends_the_doubt_of_what_is_held() -> None:
    leading = Leading()
    leading.clock.advance(2.5)
    leading.send(register("a"))
    leading.leadership.step_down()
    assert kinds(leading.answers) == [NotLeaderError]


async def test_a_doubt_that_lasts_is_over_without_a_word_and_what_comes_later_is_refused_at_once(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    leading = Leading()
    async with leading.running(monkeypatch):
        leading.clock.advance(2.5)
        leading.send(register("a"))
        await leading.tick()
        assert leading.answers == []
        leading.clock.advance(1.5)
        await leading.tick()
        assert kinds(leading.answers) == [NotLeaderError]
        leading.send(register("b"))
        assert kinds(leading.answers) == [NotLeaderError] * 2


def test_a_process_that_was_frozen_longer_than_the_doubt_holds_nothing() -> None:
    leading = Leading()
    leading.clock.advance(60.0)
    leading.send(beat("a"))
    assert kinds(leading.answers) == [NotLeaderError]


async def test_no_more_is_held_than_fits(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(held_commands, "MAX_HELD", 2)
    leading = Leading()
    leading.clock.advance(2.5)
    for worker in "abc":
        leading.send(register(worker))
    assert kinds(leading.answers) == [NotLeaderError]
    leading.renew()
    await leading.until_answered(3)
    assert kinds(leading.answers[1:]) == [Registered] * 2


async def test_a_lookup_of_shards_waits_for_the_end_of_the_doubt() -> None:
    leading = Leading()
    leading.clock.advance(2.5)
    question = pb.GetDataShard(worker_id="a", dataset_id="d")
    lookups = ShardLookups()
    lookups.answer(leading.dispatcher, question, leading.answers.append, is_wanted=lambda: True)
    assert leading.answers == []
    leading.leadership.follow(OTHER)
    assert kinds(leading.answers) == [NotLeaderError]


@pytest.mark.parametrize("doubt_s", [0.9, 1.9])
async def test_no_worker_is_judged_for_the_time_of_a_doubt(doubt_s: float, monkeypatch: pytest.MonkeyPatch) -> None:
    leading = Leading()
    async with leading.running(monkeypatch):
        leading.send(register("a"))
        await leading.until_answered(1)
        await leading.tick(1.9)
        # Its lease of 3 s would end in the doubt.
        leading.clock.advance(0.1 + doubt_s)
        assert leading.leadership.is_in_doubt
        leading.renew()
        await leading.tick(0.9)
        assert leading.dispatcher.cluster.job("default").membership.ids() == ("a",)
        # The time in which it could be heard counts.
        leading.renew()
        await leading.tick(0.5)
        assert leading.dispatcher.cluster.job("default").membership.ids() == ()


async def test_workers_that_were_refused_have_a_whole_lease_to_come_back(monkeypatch: pytest.MonkeyPatch) -> None:
    leading = Leading()
    async with leading.running(monkeypatch):
        leading.send(register("a"))
        await leading.until_answered(1)
        await leading.tick(1.9)
        leading.clock.advance(20.0)
        leading.send(beat("a"))
        assert isinstance(leading.answers[-1], NotLeaderError)
        leading.renew()
        await leading.tick(1.9)
        leading.renew()
        await leading.tick(0.9)
        assert leading.dispatcher.cluster.job("default").membership.ids() == ("a",)
        leading.renew()
        await leading.tick(0.5)
        assert leading.dispatcher.cluster.job("default").membership.ids() == ()


@given(
    renewals=st.lists(st.tuples(st.floats(0.01, 4.0), st.sampled_from(["renewed", "lost", "silent"])), max_size=12),
)
def test_whatever_the_renewals_do_all_is_answered_once_in_its_order_and_not_in_doubt(
    renewals: list[tuple[float, str]],
) -> None:
    clock = ManualClock()
    election = Election(lease_s=3.0, margin_s=1.0)
    election.granted(7, ttl_s=3.0, sent_s=clock.monotonic_s())
    election.won(11)
    leadership = Leadership(clock)
    held = HeldCommands(leadership)
    leadership.on_certain = held.settle
    refused: list[int] = []
    carried_out: list[int] = []

    def send(number: int) -> None:
        def go_on(refusal: NotLeaderError | None) -> None:
            if refusal is None and held.take(go_on):
                return
            assert refusal is not None or leadership.is_leader
            (carried_out if refusal is None else refused).append(number)

        go_on(None)

    def confirm() -> None:
        if election.fence:
            leadership.lead(SELF, until_s=election.answer_until_s, hold_until_s=election.hold_until_s)
        else:
            leadership.follow(OTHER)

    confirm()
    for number, (pause_s, what) in enumerate(renewals):
        sent_s = clock.monotonic_s()
        clock.advance(pause_s)
        send(number)
        if what != "silent":
            election.renewed(7, ttl_s=3.0 if what == "renewed" else 0.0, sent_s=sent_s)
            confirm()
    clock.advance(10.0)
    held.settle()
    assert sorted(refused + carried_out) == list(range(len(renewals)))
    assert carried_out == sorted(carried_out)
