"""An elector leads with all that the journal holds, stands by when it may not, and tells what is in its way."""

from __future__ import annotations

import asyncio
import logging
import threading
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager
from typing import Any

import grpc
import pytest

from strata.clock import ManualClock
from strata.cluster import Limits
from strata.cluster import commands as c
from strata.coordinator.dispatcher import Dispatcher
from strata.coordinator.failing.fail_stop import FailStop
from strata.coordinator.failing.faults import Fault as Meaning
from strata.coordinator.failing.faults import judge_etcd
from strata.coordinator.journal import Entry, MemoryJournal
from strata.coordinator.journal.etcd import etcd_journal
from strata.coordinator.journal.etcd.etcd_journal import EtcdJournal
from strata.coordinator.journal.etcd.records import FORMAT, Keys
from strata.coordinator.replication.elector import Elector
from strata.coordinator.replication.follower import Warm
from strata.coordinator.replication.leadership import Leadership
from strata.errors import CoordinatorLostError, JournalBrokenError, JournalDamagedError, NotLeaderError
from strata.wire._generated import journal_pb2 as jp
from tests.testbed.ha.etcd import lead, resign
from tests.testbed.network.model_etcd import Fault, ModelEtcd, serving_model
from tests.testbed.pace import stretch
from tests.testbed.waiting import wait_until

# Long enough that nothing expires while a test runs: only the test makes things happen.
LEASE_S = 600
KEYS = Keys("strata")
UNAVAILABLE = grpc.StatusCode.UNAVAILABLE, "etcdserver: no leader"


class Replica:
    """A coordinator without sockets of its own, and its elector."""

    def __init__(self, etcd: ModelEtcd) -> None:
        self.clock = ManualClock()
        self.leadership = Leadership(self.clock)
        self.fail_stop = FailStop()
        self.answers: list[object] = []
        self.dispatcher = Dispatcher(
            MemoryJournal(),
            limits=Limits(),
            clock=self.clock,
            deliver=lambda _: None,
            leadership=self.leadership,
            fail_stop=self.fail_stop,
        )
        self.elector = Elector(
            etcd.target,
            jp.Replica(grpc="a:1", http="http://a:2"),
            leadership=self.leadership,
            limits=Limits(),
            clock=self.clock,
            lease_s=LEASE_S,
            lead=self._lead,
            stand_by=self.dispatcher.stand_by,
            fail_stop=self.fail_stop,
        )
        self.terms = 0
        self._has_ended = False
        self._loop = asyncio.get_running_loop()

    async def _lead(self, journal: EtcdJournal, warm: Warm) -> None:
        self.dispatcher.lead(journal, warm.cluster, last_s=warm.last_s, since_snapshot=warm.since_snapshot)
        self.terms += 1

    async def until(self, holds: Callable[[], bool], what: str) -> None:
        """Let the elector do its rounds, one after the other, until something holds."""

        def look() -> bool:
            self._loop.call_soon_threadsafe(self.elector._wake.set)
            return holds()

        await asyncio.to_thread(wait_until, look, what)

    async def end(self) -> None:
        if not self._has_ended:
            self._has_ended = True
            await self.elector.close()

    async def until_resting(self) -> None:
        """Wait until the elector does nothing by itself for very long."""
        wake = self.elector._wake
        await asyncio.to_thread(wait_until, lambda: bool(wake._waiters), "the rest after the last round")

    async def until_leading(self) -> None:
        await self.until(lambda: self.leadership.is_leader, "the leadership")

    async def register(self, worker: str) -> None:
        await self.dispatcher.ask(c.RegisterWorker(worker_id=worker, incarnation="1"))

    def send(self, worker: str) -> None:
        self.dispatcher.dispatch(c.RegisterWorker(worker_id=worker, incarnation="1"), self.answers.append)

    async def until_ended(self) -> None:
        await asyncio.to_thread(wait_until, lambda: self.fail_stop.failure is not None, "the end")

    def workers(self) -> tuple[str, ...]:
        return self.dispatcher.cluster.job("default").membership.ids()


@pytest.fixture
def etcd() -> Iterator[ModelEtcd]:
    with serving_model() as made:
        yield made


@asynccontextmanager
async def electing(etcd: ModelEtcd) -> AsyncIterator[Replica]:
    replica = Replica(etcd)
    replica.elector.start()
    try:
        yield replica
    finally:
        await replica.end()


def entry(worker: str) -> Entry:
    return Entry(c.RegisterWorker(worker_id=worker, incarnation="1"), 1.0)


class Hold:
    """Holds back the reading of entries, which a coordinator that has won does before it leads."""

    def __init__(self, etcd: ModelEtcd) -> None:
        self.is_held = threading.Event()
        self._go_on = threading.Event()
        etcd.fault = self._look

    def release(self) -> None:
        self._go_on.set()

    def _look(self, name: str, request: Any) -> Fault:
        if name == "Range" and request.key.startswith(KEYS.batches):
            self.is_held.set()
            assert self._go_on.wait(stretch(30))
        return None


async def test_a_leader_whose_write_etcd_refuses_stands_by_and_can_lead_again_with_what_is_durable(
    etcd: ModelEtcd, caplog: pytest.LogCaptureFixture
) -> None:
    async with electing(etcd) as replica:
        await replica.until_leading()
        await replica.register("durable")
        await replica.until_resting()
        etcd.delete(KEYS.leader)
        # No round of the election tells it: the refused write does.
        with pytest.raises(NotLeaderError):
            await replica.register("lost")
        await replica.until(lambda: replica.terms == 2, "the next leadership")
        await replica.until_leading()
        assert replica.leadership.leader.term == 2
        assert replica.workers() == ("durable",)
        assert caplog.text.count("this coordinator has lost the leadership and is now a standby") == 1
    assert etcd.find(KEYS.all).keys() & {KEYS.leader} == set(), "whoever ends resigns"


async def test_a_trouble_with_etcd_is_told_once_when_it_has_lasted_and_when_it_is_over(
    etcd: ModelEtcd, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO)
    etcd.fault = lambda *_: UNAVAILABLE
    told = "this coordinator cannot lead, nor follow a leader; it goes on trying: UNAVAILABLE: etcdserver: no leader"
    async with electing(etcd) as replica:
        reason = "the journal has not been read yet: UNAVAILABLE: etcdserver: no leader"
        await replica.until(lambda: replica.leadership.problem == reason, "the reason")
        assert told not in caplog.text
        replica.clock.advance(LEASE_S)
        await replica.until(lambda: told in caplog.text, "the trouble")
        rounds: list[str] = []

        def count(name: str, _: object) -> Fault:
            if name == "LeaseGrant":
                rounds.append(name)
            return UNAVAILABLE

        etcd.fault = count
        await replica.until(lambda: len(rounds) > 2, "more rounds")
        assert caplog.text.count(told) == 1
        etcd.fault = lambda *_: None
        await replica.until(lambda: "etcd answers" in caplog.text, "the end of the trouble")
        await replica.until_leading()
        assert caplog.text.count("etcd answers") == 1


async def test_a_trouble_that_does_not_last_is_not_told(etcd: ModelEtcd, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO)
    refused: list[str] = []

    def refuse_once(name: str, _: object) -> Fault:
        if name == "LeaseGrant" and not refused:
            refused.append(name)
            return UNAVAILABLE
        return None

    etcd.fault = refuse_once
    async with electing(etcd) as replica:
        await replica.until_leading()
    assert refused
    assert "it goes on trying" not in caplog.text
    assert "etcd answers" not in caplog.text


async def test_a_journal_of_a_newer_version_is_not_led_and_the_reason_is_told(
    etcd: ModelEtcd, caplog: pytest.LogCaptureFixture
) -> None:
    other = lead(etcd.target)
    # It does not see what happens next, so it campaigns when nobody leads.
    etcd.is_watch_silent = True
    async with electing(etcd) as replica:
        await replica.until(lambda: replica.leadership.leader.grpc == "127.0.0.1:1", "the other leader")
        await replica.until(lambda: len(etcd.watches) == 1, "the watch")
        etcd.put(KEYS.head, jp.Head(version=FORMAT + 1).SerializeToString())
        resign(other)
        await asyncio.to_thread(other.close)
        replica.clock.advance(LEASE_S)
        await replica.until(lambda: bool(replica.elector._trouble.problem), "the trouble")
        replica.clock.advance(LEASE_S)
        told = "this coordinator cannot lead, nor follow a leader; it goes on trying: "
        await replica.until(lambda: told in caplog.text, "what is in its way")
        assert f"a format of version {FORMAT + 1}" in caplog.text.partition(told)[2]
        assert not replica.leadership.is_leader
        assert KEYS.leader not in etcd.find(KEYS.all)


GARBAGE = b"\xff\xff\xff"


async def test_a_leader_whose_head_cannot_be_read_ends(etcd: ModelEtcd) -> None:
    async with electing(etcd) as replica:
        await replica.until_leading()
        await replica.until_resting()
        etcd.put(KEYS.head, GARBAGE)
        replica.send("lost")
        await replica.until_ended()
        assert isinstance(replica.fail_stop.failure, JournalDamagedError)
        etcd.delete(KEYS.head)


async def test_a_head_that_is_none_ends_no_standby_and_is_the_reason_that_is_shown(etcd: ModelEtcd) -> None:
    etcd.put(KEYS.head, GARBAGE)
    async with electing(etcd) as replica:
        await replica.until(lambda: "its head cannot be read" in replica.leadership.problem, "the reason")
        assert not replica.leadership.is_leader
        # After it is repaired, the coordinator leads again.
        etcd.delete(KEYS.head)
        await replica.until_leading()


async def test_a_leader_and_replicas_whose_addresses_cannot_be_read_stop_no_election(etcd: ModelEtcd) -> None:
    etcd.put(KEYS.leader, GARBAGE)
    etcd.put(KEYS.replicas + b"other", GARBAGE)
    async with electing(etcd) as replica:
        await replica.until(lambda: replica.leadership.replicas == ("a:1",), "the list")
        assert not replica.leadership.is_leader, "there is a leader, wherever it is"
        refusal = replica.leadership.refusal()
        assert refusal is not None
        assert refusal.leader == ""
        etcd.delete(KEYS.leader)
        await replica.until_leading()


async def test_a_standby_whose_watch_goes_silent_watches_again_and_catches_up(etcd: ModelEtcd) -> None:
    other = lead(etcd.target)
    etcd.is_watch_silent = True
    async with electing(etcd) as replica:
        await replica.until(lambda: len(etcd.watches) == 1, "the watch")
        etcd.is_watch_silent = False
        await asyncio.to_thread(other.append, [entry("a"), entry("b")])
        await replica.until(lambda: replica.leadership.applied == 2, "the entries")
        assert len(etcd.watches) == 2
    await asyncio.to_thread(other.close)


async def test_a_coordinator_that_wins_and_cannot_read_the_journal_resigns_and_does_not_lead(
    etcd: ModelEtcd, caplog: pytest.LogCaptureFixture
) -> None:
    other = lead(etcd.target)
    etcd.is_watch_silent = True
    async with electing(etcd) as replica:
        await replica.until(lambda: len(etcd.watches) == 1, "the watch")
        await asyncio.to_thread(other.append, [entry("a")])
        etcd.delete(KEYS.batch(1, 0))
        resign(other)
        await asyncio.to_thread(other.close)
        resigned = "this coordinator won the election and cannot read the journal; it resigns"
        await replica.until(lambda: resigned in caplog.text, "the resignation")
        await replica.until(lambda: "entry 1 is missing or damaged" in replica.leadership.problem, "the reason")
        assert replica.terms == 0
        assert not replica.leadership.is_leader
        assert KEYS.leader not in etcd.find(KEYS.all)
        assert caplog.text.count(resigned) == 1, "it does not campaign again with a journal that it cannot read"


async def test_a_coordinator_that_wins_while_etcd_is_too_busy_to_be_read_leads_later(
    etcd: ModelEtcd, caplog: pytest.LogCaptureFixture
) -> None:
    journal = lead(etcd.target)
    journal.append([entry("a")])
    async with electing(etcd) as replica:
        await replica.until(lambda: replica.leadership.applied == 1, "the entry")
        refused: list[str] = []

        def refuse_entries_once(name: str, request: Any) -> Fault:
            if name == "Range" and request.key.startswith(KEYS.batches) and not refused:
                refused.append(name)
                return grpc.StatusCode.RESOURCE_EXHAUSTED, "etcdserver: too many requests"
            return None

        etcd.fault = refuse_entries_once
        resign(journal)
        await asyncio.to_thread(journal.close)
        await replica.until_leading()
        assert replica.workers() == ("a",)
        assert replica.terms == 1
    assert "cannot read the journal; it resigns" in caplog.text


async def test_a_coordinator_whose_lease_ends_while_it_takes_over_does_not_lead_with_it(etcd: ModelEtcd) -> None:
    journal = lead(etcd.target)
    journal.append([entry("a")])
    async with electing(etcd) as replica:
        await replica.until(lambda: replica.leadership.applied == 1, "the entry")
        hold = Hold(etcd)
        resign(journal)
        await asyncio.to_thread(journal.close)
        await replica.until(hold.is_held.is_set, "the take-over")
        won = etcd.find(KEYS.meta)[KEYS.leader]
        assert won.lease
        etcd.end_lease(won.lease)
        await replica.until(lambda: replica.elector._election.lease not in (0, won.lease), "another lease")
        assert replica.terms == 0
        hold.release()
        await replica.until_leading()
        # It led once: with the lease that it has.
        assert replica.terms == 1
        assert replica.leadership.leader.term == 3
        assert etcd.find(KEYS.meta)[KEYS.leader].lease != won.lease


async def test_a_coordinator_that_ends_while_it_takes_over_lets_go_of_the_leadership(etcd: ModelEtcd) -> None:
    journal = lead(etcd.target)
    journal.append([entry("a")])
    async with electing(etcd) as replica:
        await replica.until(lambda: replica.leadership.applied == 1, "the entry")
        hold = Hold(etcd)
        resign(journal)
        await asyncio.to_thread(journal.close)
        await replica.until(hold.is_held.is_set, "the take-over")
        await replica.until_resting()
        closing = asyncio.create_task(replica.end())
        for _ in range(10):
            await asyncio.sleep(0)
        assert not closing.done(), "it waits for what reads the journal"
        hold.release()
        await closing
        assert replica.terms == 0
        assert not replica.leadership.is_leader
        left = etcd.find(KEYS.all)
        assert [key for key, kv in left.items() if kv.lease] == [], "another one can lead at once"


@pytest.mark.parametrize("turns", range(3))
async def test_a_coordinator_that_is_told_to_end_as_it_is_woken_ends(etcd: ModelEtcd, turns: int) -> None:
    async with electing(etcd) as replica:
        await replica.until_leading()
        await replica.until_resting()
        replica.elector._wake.set()
        for _ in range(turns):
            await asyncio.sleep(0)
        async with asyncio.timeout(stretch(20)):
            await replica.end()
    assert [key for key, kv in etcd.find(KEYS.all).items() if kv.lease] == []


async def test_a_write_whose_outcome_is_unknown_is_answered_though_its_coordinator_ends_as_it_is_deposed(
    etcd: ModelEtcd,
) -> None:
    async with electing(etcd) as replica:
        await replica.until_leading()
        etcd.fault = lambda name, request: UNAVAILABLE if name == "Txn" else None
        asked = asyncio.create_task(replica.register("unknown"))
        await asyncio.sleep(0)
        etcd.delete(KEYS.leader)
        await replica.until(lambda: replica.elector._journal is None, "the end of the term")
        async with asyncio.timeout(stretch(20)):
            await replica.end()
            with pytest.raises(CoordinatorLostError):
                await asked


def writes(part: bytes) -> Callable[[str, Any], bool]:
    """Return what tells a transaction that puts a key with such a part."""
    return lambda name, request: name == "Txn" and any(part in each.request_put.key for each in request.success)


CALLS: dict[str, Callable[[str, Any], bool]] = {
    "append": writes(b"/batches/"),
    "replay": lambda name, request: name == "Range" and b"/batches/" in request.key,
    "lease keep-alive": lambda name, _: name == "LeaseKeepAlive",
    "election": lambda name, _: name == "Txn",
}


@pytest.mark.parametrize("code", [code for code in grpc.StatusCode if code is not grpc.StatusCode.OK])
@pytest.mark.parametrize("at", list(CALLS))
async def test_each_status_of_etcd_is_outlived_or_ends_the_coordinator_wherever_it_comes(
    etcd: ModelEtcd, at: str, code: grpc.StatusCode
) -> None:
    """Nothing is acknowledged meanwhile, and after one that passes the coordinator leads with all that it had."""
    meaning = judge_etcd(code, "injected")
    seen = threading.Event()

    def fault(name: str, request: Any) -> Fault:
        if not CALLS[at](name, request):
            return None
        seen.set()
        return code, "injected"

    async with electing(etcd) as replica:
        if at in ("append", "lease keep-alive"):
            await replica.until_leading()
            await replica.register("before")
        etcd.fault = fault
        if at == "append":
            replica.send("during")
        await replica.until(seen.is_set, "the error")
        if meaning in (Meaning.FATAL, Meaning.DAMAGED):
            await replica.until_ended()
            assert replica.answers == []
            etcd.fault = lambda *_: None
            return
        etcd.fault = lambda *_: None
        await replica.until_leading()
        await replica.until(lambda: replica.dispatcher.refusal is None, "writes that are taken")
        await replica.register("after")
        assert replica.fail_stop.failure is None


async def test_an_etcd_that_was_wiped_ends_whoever_knew_what_it_held(etcd: ModelEtcd) -> None:
    async with electing(etcd) as replica:
        await replica.until_leading()
        await replica.register("a")
        for key in etcd.find(KEYS.all):
            etcd.delete(key)
        await replica.until(lambda: replica.fail_stop.failure is not None, "the end")
        assert isinstance(replica.fail_stop.failure, JournalBrokenError)
        assert "etcd holds nothing of it and held more before" in str(replica.fail_stop.failure)
        assert not etcd.find(KEYS.leader), "it leads nothing that is empty"


async def test_members_that_fail_every_write_end_a_leader_whose_lease_they_renew(
    etcd: ModelEtcd, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(etcd_journal, "RETRY_S", 0.0)
    async with electing(etcd) as replica:
        await replica.until_leading()
        etcd.fault = lambda name, request: (
            (grpc.StatusCode.INTERNAL, "injected") if CALLS["append"](name, request) else None
        )
        replica.send("never")
        await replica.until_ended()
        assert "etcd fails every time: INTERNAL: injected" in str(replica.fail_stop.failure)
        assert replica.answers == []
