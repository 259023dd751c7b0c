"""The elector: it keeps this replica's lease in etcd, campaigns, and lets the coordinator lead and stand by.

What to do is decided in ``election``. Calls to etcd run one after the other in a thread of their own, so that no other
work of the coordinator can hold up a renewal; each has a deadline well below the lease.
"""

from __future__ import annotations

import asyncio
import logging
import uuid
from collections.abc import Awaitable, Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from functools import partial
from typing import TypeVar

from google.protobuf.message import DecodeError

from strata.clock import Clock
from strata.cluster import Limits
from strata.coordinator.etcd.etcd_client import EtcdClient, EtcdRefusedError, EtcdUnavailableError, end_of
from strata.coordinator.etcd.target import EtcdTarget
from strata.coordinator.failing.fail_stop import FailStop
from strata.coordinator.failing.faults import Fault
from strata.coordinator.journal.etcd import transactions as t
from strata.coordinator.journal.etcd.etcd_journal import EtcdJournal, Term
from strata.coordinator.journal.etcd.records import Keys
from strata.coordinator.replication.election import Election, Role, Step
from strata.coordinator.replication.follower import Follower, Warm
from strata.coordinator.replication.leadership import Leader, Leadership
from strata.errors import DamagedRecordError, JournalDamagedError, JournalUnavailableError, JournalVersionError
from strata.wire._generated import etcd_pb2 as ep
from strata.wire._generated import journal_pb2 as jp

log = logging.getLogger(__name__)

T = TypeVar("T")
# So often in the time of a lease is it renewed, and the leader looked for.
BEATS = 6
# A watch that brings nothing though the journal grows is begun anew after so many beats.
SILENT_BEATS = 4
# The list of replicas is read every so many beats: nothing is decided from it.
LIST_BEATS = 4
# How soon after a call that was not answered the next one is made.
RETRY_S = 0.1
# How long an append whose outcome is not known may hold up a leader that has been deposed.
SETTLE_S = 1.0

Lead = Callable[[EtcdJournal, Warm], Awaitable[None]]


class _Trouble:
    """What etcd says instead of an answer. It is told once, when it has lasted: a change of etcd's leader is none."""

    def __init__(self, *, after_s: float) -> None:
        self.problem = ""
        self._after_s = after_s
        self._began_s = 0.0
        self._is_told = False

    def goes_on(self, problem: str, now_s: float) -> None:
        if not self.problem:
            self._began_s = now_s
        self.problem = problem
        if not self._is_told and now_s - self._began_s >= self._after_s:
            self._is_told = True
            log.warning("this coordinator cannot lead, nor follow a leader; it goes on trying: %s", problem)

    def ended(self) -> None:
        if self._is_told:
            log.info("etcd answers")
        self.problem, self._is_told = "", False


class Elector:
    """Runs from :meth:`start` to :meth:`close`.

    ``lead`` makes the coordinator serve a warm cluster; ``stand_by`` makes it forget it, and returns when all that
    waited for the journal has been answered.
    """

    def __init__(
        self,
        target: EtcdTarget,
        replica: jp.Replica,
        *,
        leadership: Leadership,
        limits: Limits,
        clock: Clock,
        lease_s: int,
        lead: Lead,
        stand_by: Callable[[], Awaitable[None]],
        fail_stop: FailStop | None = None,
    ) -> None:
        self._fail_stop = fail_stop or FailStop()
        self._target = target
        self._replica = replica
        self._leadership = leadership
        self._limits = limits
        self._clock = clock
        self._lead = lead
        self._stand_by = stand_by
        self._name = uuid.uuid4().hex
        self._keys = Keys(target.prefix)
        self._client = EtcdClient(target)
        self._ballot = EtcdJournal(target)
        self._thread = ThreadPoolExecutor(1, "strata-election")
        self._election = Election(lease_s=lease_s, margin_s=lease_s / 3)
        self._beat_s = lease_s / BEATS
        self._wake = asyncio.Event()
        self._loop = asyncio.get_running_loop()
        self._follower = self._follow()
        self._journal: EtcdJournal | None = None
        self._term: Term | None = None
        # The journal's head as it was seen last.
        self._known = jp.Head()
        self._taking_over: asyncio.Task[None] | None = None
        self._running: asyncio.Task[None] | None = None
        self._silent_beats = 0
        self._beats = 0
        self._seen_leader = Leader()
        self._trouble = _Trouble(after_s=lease_s)
        leadership.on_step_down = self._note_refusal

    def start(self) -> None:
        """Begin to follow and to campaign."""
        self._running = self._fail_stop.own(self._run(), name="election")

    async def close(self) -> None:
        """Resign at once, so that another one leads before this process has ended."""
        self._election.resign()
        if self._running is not None:
            self._running.cancel()
            await asyncio.gather(self._running, return_exceptions=True)
        if self._taking_over is not None:
            await asyncio.gather(self._taking_over, return_exceptions=True)
        await self._end_term(Leader(term=self._leadership.leader.term))
        if self._election.lease:
            with suppress(EtcdUnavailableError):
                await self._call(partial(self._client.revoke_lease, self._election.lease))
        await asyncio.to_thread(self._follower.close)
        self._client.close()
        self._ballot.close()
        self._thread.shutdown(wait=False)

    async def _run(self) -> None:
        while True:
            self._wake.clear()
            pause_s = self._beat_s
            try:
                await self._beat()
                self._trouble.ended()
            except (EtcdUnavailableError, EtcdRefusedError, JournalUnavailableError) as error:
                if isinstance(error, EtcdRefusedError) and error.fault is not Fault.TRANSIENT:
                    raise self._ballot.translate(error) from error
                log.debug("etcd does not answer the election: %s", error)
                self._trouble.goes_on(str(error), self._clock.monotonic_s())
                # The next endpoint may, and the lease runs.
                pause_s = RETRY_S
            except (JournalDamagedError, JournalVersionError) as error:
                self._trouble.goes_on(str(error), self._clock.monotonic_s())
            await self._carry_out()
            # Not wait_for, which drops a cancellation that comes together with the wake in Python 3.11.
            with suppress(TimeoutError):
                async with asyncio.timeout(pause_s):
                    await self._wake.wait()

    async def _beat(self) -> None:
        """Renew the lease, look who leads, and campaign if nobody does."""
        election = self._election
        if self._step() is Step.GRANT:
            sent_s = self._clock.monotonic_s()
            granted = await self._call(partial(self._client.grant_lease, int(election.lease_s)))
            election.granted(granted.ID, ttl_s=granted.TTL, sent_s=sent_s)
            await self._call(self._register)
        else:
            await self._renew()
        await self._look()
        if self._step() is Step.CAMPAIGN:
            term = await self._call(partial(self._ballot.stand, self._replica, lease=election.lease))
            if term is not None:
                self._term = term
                election.won(term.fence)

    def _step(self) -> Step:
        # Who still serves a term that was lost ends it first: its journal and its cluster are not those of the next.
        may_lead = self._follower.is_warm and self._journal is None
        return self._election.step(self._clock.monotonic_s(), may_lead=may_lead)

    async def _renew(self) -> None:
        lease, sent_s = self._election.lease, self._clock.monotonic_s()
        ttl_s = await self._call(partial(self._client.renew_lease, lease, timeout_s=self._beat_s))
        self._election.renewed(lease, ttl_s=ttl_s, sent_s=sent_s)
        self._confirm()

    async def _look(self) -> None:
        """Read who leads, and how far the journal is."""
        answer = await self._call(partial(self._client.range, t.read_meta(self._keys), timeout_s=self._beat_s))
        meta = t.find_meta(self._keys, answer)
        self._ballot.check_not_older(meta, self._known)
        if meta.head is not None:
            self._known = meta.head
        leader_lease = None if meta.leader is None else meta.leader.lease
        self._election.seen(leader_lease, revision=meta.revision)
        head = meta.head or jp.Head()
        self._seen_leader = Leader(term=head.term)
        if meta.leader is not None:
            found = _read_replica(meta.leader.value)
            self._seen_leader = Leader(grpc=found.grpc, http=found.http, term=head.term)
        if self._beats % LIST_BEATS == 0:
            await self._list_replicas()
        self._beats += 1
        if not self._election.fence:
            self._leadership.applied = self._follower.applied
            self._silent_beats = self._silent_beats + 1 if self._follower.applied < head.last else 0
            if self._silent_beats >= SILENT_BEATS:
                self._silent_beats = 0
                self._follower.nudge()
        elif self._term is not None:
            self._leadership.applied = head.last

    async def _list_replicas(self) -> None:
        request = ep.RangeRequest(key=self._keys.replicas, range_end=end_of(self._keys.replicas))
        answer = await self._call(partial(self._client.range, request, timeout_s=self._beat_s))
        found = (_read_replica(kv.value).grpc for kv in answer.kvs)
        self._leadership.replicas = tuple(sorted(address for address in found if address))

    def _register(self) -> None:
        put = ep.PutRequest(
            key=self._keys.replicas + self._name.encode(),
            value=self._replica.SerializeToString(),
            lease=self._election.lease,
        )
        self._client.transact(ep.TxnRequest(success=[ep.RequestOp(request_put=put)]))

    async def _carry_out(self) -> None:
        """Let the coordinator be what the election says that it is."""
        if self._election.fence:
            if self._journal is None and self._taking_over is None:
                self._taking_over = self._fail_stop.own(self._take_over(), name="take over")
            self._confirm()
        elif self._journal is not None:
            log.warning("this coordinator has lost the leadership and is now a standby")
            await self._end_term(self._seen_leader)
        else:
            self._leadership.follow(self._seen_leader)
            reason = self._trouble.problem or "etcd may be away"
            unread = "" if self._follower.is_warm else f"the journal has not been read yet: {reason}"
            self._leadership.problem = self._follower.problem or unread

    async def _take_over(self) -> None:
        term, begun_s = self._term, self._clock.monotonic_s()
        assert term is not None
        follower = self._follower
        try:
            warm = await asyncio.to_thread(follower.hand_over, term.head.last)
        except (JournalUnavailableError, JournalDamagedError, DamagedRecordError, JournalVersionError) as error:
            log.error("this coordinator won the election and cannot read the journal; it resigns: %s", error)  # noqa: TRY400 - the message says it all
            follower.problem = str(error)
            self._election.deposed(term.fence)
            self._ballot.begin_term(term)
            await self._call(self._ballot.resign)
            self._follower = self._follow()
            return
        finally:
            self._taking_over = None
        if self._election.fence != term.fence:
            self._follower = self._follow()
            return
        self._journal = EtcdJournal(self._target, read_s=float("inf"))
        self._journal.begin_term(term)
        # It serves the cluster before anything else runs, and so before anyone is answered.
        await self._lead(self._journal, warm)
        self._confirm()
        took_s = self._clock.monotonic_s() - begun_s
        log.info("leading in term %d after %.3f s, with %d entries known", term.head.term, took_s, warm.applied)

    async def _end_term(self, leader: Leader) -> None:
        """Answer nothing more, let what waits for the journal be answered, and follow again."""
        self._leadership.follow(leader)
        journal, term = self._journal, self._term
        self._journal = self._term = None
        if journal is None:
            return
        standing_by = asyncio.ensure_future(self._stand_by())
        try:
            await asyncio.wait([standing_by], timeout=SETTLE_S)
            if term is not None and standing_by.done():
                self._ballot.begin_term(term)
                await self._call(self._ballot.resign)
        finally:
            # What waits for an etcd that does not answer ends with that: nobody knows what became of it. Also if this
            # coordinator is asked to stop meanwhile.
            journal.close()
        await standing_by
        if self._election.role is not Role.RESIGNED:
            self._follower = self._follow()

    def _confirm(self) -> None:
        """A leader answers until its lease may end; only a renewal moves that moment."""
        if self._journal is not None and self._election.fence and self._term is not None:
            leader = Leader(grpc=self._replica.grpc, http=self._replica.http, term=self._term.head.term)
            election = self._election
            self._leadership.lead(leader, until_s=election.answer_until_s, hold_until_s=election.hold_until_s)

    def _note_refusal(self) -> None:
        if self._term is not None:
            self._election.deposed(self._term.fence)
        self._wake.set()

    def _follow(self) -> Follower:
        def wake() -> None:
            with suppress(RuntimeError):  # the loop has ended
                self._loop.call_soon_threadsafe(self._wake.set)

        follower = Follower(self._target, self._limits, wake, self._fail_stop)
        follower.start()
        return follower

    async def _call(self, call: Callable[[], T]) -> T:
        return await self._loop.run_in_executor(self._thread, call)


def _read_replica(value: bytes) -> jp.Replica:
    """Return where a replica is: nowhere if that cannot be read, for the election does not depend on it."""
    try:
        return jp.Replica.FromString(value)
    except DecodeError:
        return jp.Replica()
