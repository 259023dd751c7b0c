"""A replica of a world: the shipped election, journal, follower and cluster, and what connects them, in virtual time.

The elector and the dispatcher of a coordinator are coroutines around sockets; what they do is done here step by step.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from dataclasses import replace
from typing import TYPE_CHECKING

from strata.cluster import Cluster
from strata.cluster import commands as c
from strata.cluster.access import Principal, names
from strata.cluster.events import Effect
from strata.coordinator.etcd.etcd_client import EtcdRefusedError, EtcdUnavailableError
from strata.coordinator.etcd.target import EtcdTarget
from strata.coordinator.journal import Entry
from strata.coordinator.journal.entries import replay
from strata.coordinator.journal.etcd import transactions as t
from strata.coordinator.journal.etcd.etcd_journal import EtcdJournal, Term
from strata.coordinator.replication.election import Election, Role, Step
from strata.coordinator.replication.elector import BEATS, RETRY_S, SETTLE_S
from strata.coordinator.replication.follower import Follower, Warm
from strata.coordinator.replication.held_commands import HeldCommands
from strata.coordinator.replication.leadership import Leader, Leadership
from strata.coordinator.speakers import Speakers
from strata.coordinator.write_queue import WriteQueue
from strata.errors import (
    CoordinatorLostError,
    JournalDamagedError,
    JournalUnavailableError,
    NotLeaderError,
    StrataError,
)
from strata.wire._generated import journal_pb2 as jp
from tests.simulation.replicas.replica_process import ReplicaProcess
from tests.simulation.replicas.simulated_etcd import SimulatedClient
from tests.simulation.replicas.virtual_threads import sleep
from tests.simulation.violation import ViolationError

if TYPE_CHECKING:
    from tests.simulation.network import Link
    from tests.simulation.replicas.replica_world import ReplicaWorld

LEASE_S = 3
TICK_S = 0.5
PROBE_S = 1.0
SNAPSHOT_ENTRIES = 25


class Replica(ReplicaProcess):
    """One coordinator of several: it can be killed, frozen, told to end, and cut off from etcd."""

    def __init__(self, world: ReplicaWorld, name: str) -> None:
        super().__init__(world)
        self.name = name
        self.address = f"{name}:1"
        self.target = EtcdTarget(endpoints=(self.address,), prefix="strata")
        # Another machine has another clock.
        self._clock_s = world.rng.uniform(-5.0, 5.0)
        self._journal: EtcdJournal | None = None

    # The process.

    def start(self) -> None:
        """Start its process, which knows nothing."""
        self.life += 1
        self.is_up = True
        self.frozen_until_s = 0.0
        self.leadership = Leadership(self)
        self.leadership.on_step_down = self._note_refusal
        self.leadership.on_certain = self._settle
        self._held = HeldCommands(self.leadership)
        self._election = Election(lease_s=LEASE_S, margin_s=LEASE_S / 3)
        self._client = SimulatedClient(self.target)
        self._ballot = EtcdJournal(self.target)
        self._journal = None
        self._term: Term | None = None
        self._is_taking_over = self._is_flushing = False
        self._seen = Leader()
        self.cluster = Cluster(self._world.limits)
        self._queue = WriteQueue()
        self._speakers: Speakers[Link] = Speakers()
        self._refusal: JournalUnavailableError | None = None
        self._since_snapshot = 0
        self._follower = self._follow()
        self.spawn(self._run_election)
        self.later(TICK_S, self._tick)

    def crash(self) -> None:
        """Kill it, and with it its connections."""
        super().crash()
        self._world.close_links(self)

    def end(self) -> None:
        """Tell it to end: it resigns first."""
        self._world.note(f"{self.name} resigns")
        self._election.resign()

        def resign() -> None:
            self._end_term(Leader(term=self.leadership.leader.term))
            if self._election.lease:
                with suppress(EtcdUnavailableError):
                    self._client.revoke_lease(self._election.lease)
            self.later(0.0, self.crash)

        self.spawn(resign)

    @property
    def leads(self) -> bool:
        """Whether it thinks that it leads, frozen or not."""
        return self._journal is not None

    # The election: what strata.coordinator.replication.elector does.

    def _run_election(self) -> None:
        beat_s = LEASE_S / BEATS
        while True:
            pause_s = beat_s
            try:
                self._beat()
            except (EtcdUnavailableError, EtcdRefusedError, JournalUnavailableError):
                pause_s = RETRY_S
            self._carry_out()
            sleep(pause_s)

    def _beat(self) -> None:
        election = self._election
        sent_s = self._world.now_s
        if self._step() is Step.GRANT:
            granted = self._client.grant_lease(LEASE_S)
            election.granted(granted.ID, ttl_s=granted.TTL, sent_s=sent_s)
        elif election.lease:
            lease = election.lease
            ttl_s = self._client.renew_lease(lease, timeout_s=LEASE_S / BEATS)
            election.renewed(lease, ttl_s=ttl_s, sent_s=sent_s)
            self._confirm()
        self._look()
        if self._step() is Step.CAMPAIGN:
            term = self._ballot.stand(jp.Replica(grpc=self.address), lease=election.lease)
            if term is not None:
                self._term = term
                election.won(term.fence)

    def _step(self) -> Step:
        may_lead = self._follower.is_warm and self._journal is None
        return self._election.step(self._world.now_s, may_lead=may_lead)

    def _look(self) -> None:
        keys = self._ballot.keys
        meta = t.find_meta(keys, self._client.range(t.read_meta(keys), timeout_s=LEASE_S / BEATS))
        self._election.seen(None if meta.leader is None else meta.leader.lease, revision=meta.revision)
        term = 0 if meta.head is None else meta.head.term
        self._seen = Leader(term=term)
        if meta.leader is not None:
            self._seen = Leader(grpc=jp.Replica.FromString(meta.leader.value).grpc, term=term)

    def _carry_out(self) -> None:
        if self._election.role is Role.RESIGNED:
            return
        if self._election.fence:
            if self._journal is None and not self._is_taking_over:
                self._is_taking_over = True
                self.spawn(self._take_over)
            self._confirm()
        elif self._journal is not None:
            self._end_term(self._seen)
        else:
            self.leadership.follow(self._seen)

    def _take_over(self) -> None:
        term, follower = self._term, self._follower
        assert term is not None
        try:
            warm = follower.hand_over(term.head.last)
        except JournalUnavailableError:
            self._election.deposed(term.fence)
            self._ballot.begin_term(term)
            self._ballot.resign()
            self._follower = self._follow()
            return
        except JournalDamagedError as error:
            raise ViolationError(f"{self.name} won and cannot read what was acknowledged: {error}") from error
        finally:
            self._is_taking_over = False
        if self._election.fence != term.fence:
            self._follower = self._follow()
            return
        self._journal = EtcdJournal(self.target, read_s=float("inf"))
        self._journal.begin_term(term)
        self._lead(warm)
        self._confirm()
        self._world.tally["takeovers"] += 1
        self._world.note(f"{self.name} leads in term {term.head.term}")

    def _lead(self, warm: Warm) -> None:
        self.cluster, self._since_snapshot = warm.cluster, warm.since_snapshot
        self._clock_s += max(0.0, warm.last_s - self.now_s())
        self.cluster.restart(self.now_s())

    def _end_term(self, leader: Leader) -> None:
        self.leadership.follow(leader)
        journal, term = self._journal, self._term
        self._journal = self._term = None
        if journal is None:
            return
        self._world.tally["depositions"] += 1
        settled_s = self._world.now_s + SETTLE_S
        while self._is_flushing and self._world.now_s < settled_s:
            sleep(0.05)
        if term is not None and not self._is_flushing:
            self._ballot.begin_term(term)
            self._ballot.resign()
        journal.close()
        while self._is_flushing:
            sleep(0.05)
        self._refusal = None
        self.cluster = Cluster(self._world.limits)
        if self._election.role is not Role.RESIGNED:
            self._follower = self._follow()

    def _confirm(self) -> None:
        if self._journal is not None and self._election.fence and self._term is not None:
            leader = Leader(grpc=self.address, term=self._term.head.term)
            election = self._election
            self.leadership.lead(leader, until_s=election.answer_until_s, hold_until_s=election.hold_until_s)

    def _settle(self) -> None:
        if self.leadership.is_leader:
            self.cluster.resume(self.now_s(), leases_anew=self._held.has_refused)
            self._held.has_refused = False
        self._held.settle()

    def _note_refusal(self) -> None:
        if self._term is not None:
            self._election.deposed(self._term.fence)

    def _follow(self) -> Follower:
        follower = Follower(self.target, self._world.limits, lambda: None)
        self._world.starting = self
        follower.start()
        return follower

    # Commands: what strata.coordinator.dispatcher does.

    def now_s(self) -> float:
        """The time that its cluster goes by."""
        return self._world.now_s + self._clock_s

    def arrive(self, command: c.JobCommand, take: Callable[[], None]) -> None:
        """A frame has come to its machine; it is read when the process runs."""
        if self.is_up:
            self.later(0.0, take)

    def hear(
        self, principal: Principal, command: c.JobCommand, answer: Callable[[object], None], link: Link | None = None
    ) -> None:
        """Take a command of a worker; all are of one tenant here, whose names are those of the cluster."""
        self.process(names.qualify(principal, replace(command)), answer, link)

    def process(self, command: c.JobCommand, answer: Callable[[object], None], link: Link | None = None) -> None:
        """Carry out a command, if it leads; the answer leaves when all before it is durable."""
        if not self.is_up:
            return

        def go_on(refusal: StrataError | None) -> None:
            if refusal is None:
                self.process(command, answer, link)
            else:
                answer(refusal)

        if self._held.take(go_on):
            self._world.tally["held"] += self.leadership.is_in_doubt
            return
        if command.durable and self._refusal is not None:
            answer(self._refusal)
            return
        if link is not None and isinstance(command, c.RegisterWorker):
            self._speakers.joins(command, link)
        effects: list[Effect] = []
        try:
            reply, effects = self.cluster.apply(command, self.now_s())
        except StrataError as error:
            reply = error
        is_written = command.durable and not isinstance(reply, StrataError)
        term = self.leadership.leader.term
        entry = Entry(command, self.now_s()) if is_written else None
        if not is_written and self._queue.is_idle:
            self._world.checks.answers(self.name, term)

        def release(failure: StrataError | None) -> None:
            if link is not None and link.is_open:
                self._speakers.answered(command, failure or reply, link)
            if failure is not None:
                answer(failure)
                return
            if entry is not None:
                self._world.checks.acknowledges(entry, self.name, term)
            answer(reply)
            for effect in effects:
                for worker_id in effect.to:
                    self._deliver(worker_id, effect)

        if not is_written and self._queue.is_idle:
            release(None)
            return
        self._queue.add(entry, release)
        if not self._is_flushing:
            self._is_flushing = True
            self.spawn(self._flush)

    def link_lost(self, link: Link) -> None:
        """A connection closed."""
        if self.is_up:
            for lost in self._speakers.lost(link):
                self.process(lost, lambda _: None)

    def _tick(self) -> None:
        if self.leadership.is_leader:
            for demand in self.cluster.due(self.now_s()):
                self._world.note(f"{self.name} due: {type(demand).__name__}")
                self.process(demand, lambda _: None)
        else:
            self._held.settle()
        self.later(TICK_S, self._tick)

    def _flush(self) -> None:
        try:
            while self._queue.has_more:
                entries = self._queue.begin()
                failure = self._write(entries) if entries else None
                for output in self._queue.end() if failure is None else self._queue.abort():
                    output(failure)
        finally:
            self._is_flushing = False

    def _write(self, entries: list[Entry]) -> StrataError | None:
        journal = self._journal
        if journal is None:
            return NotLeaderError("", term=0)
        try:
            journal.append(entries)
        except JournalUnavailableError as error:
            self._refusal = error
            self._world.tally["refused writes"] += 1
            try:
                self.cluster = self._replay(journal)
            except JournalUnavailableError:
                self.leadership.step_down()
                self.cluster = Cluster(self._world.limits)
                return error
            self.spawn(self._probe)
            return error
        except (NotLeaderError, CoordinatorLostError) as error:
            self._world.tally["fenced writes"] += 1
            self.leadership.step_down()
            self.cluster = Cluster(self._world.limits)
            return error
        self._since_snapshot += len(entries)
        if self._since_snapshot >= SNAPSHOT_ENTRIES and not self._queue.has_more:
            self._since_snapshot = 0
            self._snapshot(journal)
        return None

    def _snapshot(self, journal: EtcdJournal) -> None:
        with suppress(JournalUnavailableError, NotLeaderError, CoordinatorLostError):
            journal.snapshot(self.cluster.snapshot())
            self._world.tally["snapshots"] += 1

    def _probe(self) -> None:
        while self._refusal is not None and self._journal is not None:
            sleep(PROBE_S)
            journal = self._journal
            if journal is None:
                return
            try:
                journal.snapshot(self.cluster.snapshot())
            except JournalUnavailableError:
                continue
            except (NotLeaderError, CoordinatorLostError):
                self.leadership.step_down()
                return
            self.cluster.restart(self.now_s())
            self._refusal = None

    def _replay(self, journal: EtcdJournal) -> Cluster:
        try:
            state, entries = journal.load()
        except JournalDamagedError as error:
            raise ViolationError(f"{self.name} cannot read what was acknowledged: {error}") from error
        cluster = Cluster(self._world.limits)
        if state is not None:
            cluster.restore(state, where=journal.where)
        replay(cluster, entries)
        cluster.restart(self.now_s())
        return cluster

    def _deliver(self, worker_id: str, effect: Effect) -> None:
        link = self._speakers.find("default", worker_id)
        if link is not None:
            link.send_down(lambda: link.process.receive_effect(effect))
