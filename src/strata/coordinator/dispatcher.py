"""The dispatcher: commands from any transport, one after the other, to the cluster and the journal.

It keeps the cluster's contract: no reply and no effect leaves before everything that was applied until then is durable.
Commands that wait for the disk are written together, so that one fsync serves all that came while the last one ran.
When nothing waits for the disk, an answer leaves at once: a heartbeat costs no task and no thread.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable
from contextlib import suppress
from functools import partial
from typing import TypeVar

from strata.clock import Clock
from strata.cluster import Cluster, Limits
from strata.cluster.access.names import owner_of
from strata.cluster.commands import Command, LeaseShards
from strata.cluster.events import NOBODY, Effect, Event
from strata.cluster.replies import Reply
from strata.coordinator.failing.fail_stop import FailStop
from strata.coordinator.heavy import HeavyWork
from strata.coordinator.journal import Entry, Journal
from strata.coordinator.journal.compaction import Compaction
from strata.coordinator.journal.entries import encoded, replay
from strata.coordinator.logs import log_events
from strata.coordinator.replication.held_commands import GoOn, HeldCommands
from strata.coordinator.replication.leadership import Leadership, lead_alone
from strata.coordinator.sharing.tenant_bounds import TenantBounds
from strata.coordinator.sharing.turns import Turns
from strata.coordinator.telemetry.feed import Feed
from strata.coordinator.telemetry.job_traces import JobsTraces
from strata.coordinator.write_queue import WriteQueue
from strata.errors import (
    BadCommandError,
    CoordinatorLostError,
    JournalUnavailableError,
    NotLeaderError,
    StrataError,
)

log = logging.getLogger(__name__)

Answer = Callable[[Reply | StrataError], None]
T = TypeVar("T")
TICK_S = 0.1
# How often a journal that refused is asked whether it takes writes again.
PROBE_S = 1.0


class Dispatcher:
    """The cluster behind its journal. All methods belong to one event loop; ``deliver`` is given every effect."""

    def __init__(
        self,
        journal: Journal,
        *,
        limits: Limits,
        clock: Clock,
        deliver: Callable[[Effect], None],
        feed: Feed | None = None,
        traces: JobsTraces | None = None,
        leadership: Leadership | None = None,
        turns: Turns | None = None,
        fail_stop: FailStop | None = None,
    ) -> None:
        self._fail_stop = fail_stop or FailStop()
        self._journal = journal
        self._turns = turns
        self._leadership = leadership or lead_alone(clock)
        self._held = HeldCommands(self._leadership)
        self._leadership.on_certain = self._settle
        self._limits = limits
        self._clock = clock
        self._started_s = clock.wall_s() - clock.monotonic_s()
        self._deliver = deliver
        self._feed = feed
        self._traces = traces
        self._queue = WriteQueue()
        self._flushing: asyncio.Task[None] | None = None
        self._probing: asyncio.Task[None] | None = None
        self._compaction = Compaction()
        self._refusal: JournalUnavailableError | None = None
        self.heavy = HeavyWork(self._fail_stop)
        self.bounds = TenantBounds()
        # A standby has nothing to tell; whoever makes it the leader brings what the journal holds.
        self.cluster = self._replay() if self._leadership.is_leader else Cluster(limits)

    def lead(self, journal: Journal, cluster: Cluster, *, last_s: float, since_snapshot: int) -> None:
        """Take over: serve a cluster that holds all that the journal holds, and write to that journal from now on.

        ``last_s`` is the time of its last entry, of another machine's clock: time does not go back.
        """
        assert self._flushing is None
        self._journal, self.cluster = journal, cluster
        self._compaction.begin(since_snapshot)
        self._started_s += max(0.0, last_s - self.now_s())
        cluster.restart(self.now_s())
        if self._feed is not None:
            self._feed.replay(cluster.events.since(0)[1])

    async def stand_by(self) -> None:
        """Forget everything, when what waits for the journal has been answered; another one leads, or this one ends."""
        if self._probing is not None:
            self._probing.cancel()
        await self._finish()
        self._refusal = None
        self.cluster = Cluster(self._limits)
        if self._feed is not None:
            self._feed.changes += 1

    async def run(self) -> None:
        """Do what time demands, until cancelled; what waits for the disk is written before this ends."""
        try:
            while True:
                await asyncio.sleep(TICK_S)
                if not self._leadership.is_leader:
                    # A doubt that lasts too long ends without anyone saying so.
                    self._held.settle()
                    continue
                for demand in self.cluster.due(self.now_s()):
                    self.dispatch(demand, _log_refusal)
        finally:
            if self._probing is not None:
                self._probing.cancel()
            await self.heavy.close()
            await self._finish()

    def dispatch(self, command: Command, answer: Answer, by: tuple[str, str] = NOBODY) -> None:
        """Apply a command; ``answer`` is called with its reply or error when that may be told.

        ``by`` is for the events that it causes: whose token it came with, and from which address.
        """
        try:
            self._carry_out(command, answer, by)
        except Exception as error:
            # It may be half applied, and its sender may be gone.
            self._fail_stop.fail(error, where=f"the command {type(command).__name__}")
            raise

    def _carry_out(self, command: Command, answer: Answer, by: tuple[str, str]) -> None:
        monotonic_s = self._clock.monotonic_s()
        if self._leadership.refusal(monotonic_s) is not None and self._held.take(
            partial(self._go_on, command, answer, by), monotonic_s
        ):
            return
        is_durable = command.durable
        if is_durable and self._hold_back(command, answer, by):
            return
        now_s = self._started_s + monotonic_s
        events = self.cluster.events
        following = events.following
        events.by = by
        reply: Reply | StrataError
        try:
            reply, effects = self.cluster.apply(command, now_s)
        except StrataError as error:
            reply, effects = error, []
        except ValueError as error:
            reply, effects = BadCommandError(str(error)), []
        said = events.since(following)[1] if events.following != following else []
        is_written = is_durable and not isinstance(reply, StrataError)
        if not is_written and self._may_tell(command):
            answer(reply)
            self._tell(command, now_s, reply, effects, said)
            return

        tenant = owner_of(command)

        def release(failure: StrataError | None) -> None:
            if self._turns is None:
                finish(failure)
            else:
                # A batch can hold very much of one tenant, and others would wait while all of it is told.
                self._turns.add_rest(tenant, partial(finish, failure))

        def finish(failure: StrataError | None) -> None:
            answer(failure or reply)
            if failure is None:
                self._tell(command, now_s, reply, effects, said)
            else:
                self._tell(command, now_s, failure, [], [])

        self._queue.add(encoded(Entry(command, now_s, by)) if is_written else None, release, tenant)
        if self._flushing is None:
            self._flushing = self._fail_stop.own(self._flush(), name="journal")

    def _may_tell(self, command: Command) -> bool:
        """Whether all that was applied for the tenant of a command is durable, and was told."""
        turns = self._turns
        if self._queue.is_idle and (turns is None or not turns.must_wait):
            return True
        tenant = owner_of(command)
        return self._queue.is_settled(tenant) and not (turns is not None and turns.has_rest(tenant))

    def _tell(
        self,
        command: Command,
        at_s: float,
        reply: Reply | StrataError,
        effects: list[Effect],
        said: list[Event],
    ) -> None:
        """What a command did is durable: let everyone know of it who must."""
        if effects or said:
            for effect in effects:
                self._deliver(effect)
            if self._traces is None:
                log_events(said)
            else:
                with self._traces.note(self.cluster, command, effects, at_s=at_s, now_s=self.now_s()):
                    log_events(said)
        if self._feed is not None:
            self._feed.note(command, at_s, self._started_s + self._clock.monotonic_s() - at_s, reply, effects, said)

    def take_request(self, tenant: str) -> float:
        """Count a request of a tenant; return for how many seconds it is not to be heard."""
        return self.bounds.take_request(self.cluster, tenant, self.now_s())

    @property
    def is_settled(self) -> bool:
        """Whether all that was applied is durable, so that what is known may be told at once."""
        return self._queue.is_idle

    @property
    def refusal(self) -> JournalUnavailableError | None:
        """Why durable commands are refused; None while they are taken."""
        return self._refusal

    def refuse(self) -> NotLeaderError | None:
        """Return what everyone is answered with who asks a coordinator that does not lead.

        None if it leads, and also while it is in doubt: what is asked then is held.
        """
        return None if self._leadership.is_in_doubt else self._leadership.refusal()

    @property
    def is_in_doubt(self) -> bool:
        """Whether another one may lead, so that what is known here may be out of date."""
        return self._leadership.is_in_doubt

    def put_off(self, go_on: GoOn) -> bool:
        """Hold or refuse what may not be answered now; False if it may be."""
        return self._held.take(go_on)

    def look(self, question: Callable[[Cluster], T], tell: Callable[[T | StrataError], None]) -> None:
        """Tell the answer to a question when all that it rests on is durable: now, if nothing waits for the disk.

        If that does not become durable, the question is asked again of what the journal holds.
        """

        def go_on(refusal: StrataError | None) -> None:
            if refusal is None:
                self.look(question, tell)
            else:
                tell(refusal)

        if self.put_off(go_on):
            return
        answer = self._answer(question)
        if self._queue.is_idle:
            tell(answer)
            return

        def tell_later(failure: StrataError | None) -> None:
            tell(answer if failure is None else self._answer(question))

        self._queue.add(None, tell_later, tenant=None)

    async def ask_state(self, question: Callable[[Cluster], T]) -> T:
        """Return the answer to a question when all that it rests on is durable, or raise its error."""
        future: asyncio.Future[T | StrataError] = asyncio.get_running_loop().create_future()
        self.look(question, lambda answer: None if future.done() else future.set_result(answer))
        answer = await future
        if isinstance(answer, StrataError):
            raise answer
        return answer

    def now_s(self) -> float:
        """Return the time that the cluster goes by: as steady as a monotonic clock, and near the wall clock's.

        So the journal's times mean something to the next process too.
        """
        return self._started_s + self._clock.monotonic_s()

    async def ask(self, command: Command, by: tuple[str, str] = NOBODY) -> Reply:
        """Apply a command and return its reply, or raise its error."""
        future: asyncio.Future[Reply | StrataError] = asyncio.get_running_loop().create_future()
        self.dispatch(command, lambda answer: None if future.done() else future.set_result(answer), by)
        answer = await future
        if isinstance(answer, StrataError):
            raise answer
        return answer

    def tell(self, event: Event) -> None:
        """Let everyone know of something that no command caused, such as a client that was refused."""
        self.cluster.events.by = NOBODY
        self.cluster.events.append(event)
        log_events([event])
        if self._feed is not None:
            self._feed.tell(event)

    def _answer(self, question: Callable[[Cluster], T]) -> T | StrataError:
        if (not_leader := self._leadership.refusal()) is not None:
            return not_leader
        try:
            return question(self.cluster)
        except StrataError as error:
            return error
        except ValueError as error:
            return BadCommandError(str(error))

    def _go_on(self, command: Command, answer: Answer, by: tuple[str, str], refusal: NotLeaderError | None) -> None:
        """Carry out a command that was held, or refuse it."""
        if refusal is None:
            self.dispatch(command, answer, by)
        else:
            answer(refusal)

    def _settle(self) -> None:
        """End a doubt: put leases and timeouts off by its length, and process or refuse the held commands."""
        if self._leadership.is_leader:
            # Clients that were refused went away, and need the time to come back.
            self.cluster.resume(self.now_s(), leases_anew=self._held.has_refused)
            self._held.has_refused = False
        self._held.settle()

    def _hold_back(self, command: Command, answer: Answer, by: tuple[str, str]) -> bool:
        """Refuse a durable command that cannot be written, or have what it needs made first; False if it may go on."""
        if self._refusal is not None:
            answer(self._refusal)
            return True
        if type(command) is LeaseShards and self._prepare(command, answer, by):
            return True
        if (too_much := self.bounds.check_journal(self.cluster, command)) is not None:
            # What it frees counts when the journal was compacted: the next write has that done.
            self._compaction.want()
            answer(too_much)
            return True
        return False

    def _prepare(self, command: LeaseShards, answer: Answer, by: tuple[str, str]) -> bool:
        """Have a large dataset dealt in a thread before its first lease; False if nothing needs doing."""

        def go_on(error: StrataError | None) -> None:
            if error is None:
                self.dispatch(command, answer, by)
            else:
                answer(error)

        job_id = command.job_id
        if job_id not in self.cluster or self.cluster.job(job_id).membership.generation != command.generation:
            return False
        return self.heavy.prepare(self.cluster, job_id, command.dataset_id, command.epoch, go_on)

    async def _finish(self) -> None:
        """Return when all that waits for the journal is written and answered."""
        while self._flushing is not None:
            with suppress(asyncio.CancelledError):
                await asyncio.shield(self._flushing)
        if self._turns is not None:
            self._turns.finish()

    async def _flush(self) -> None:
        try:
            while self._queue.has_more:
                entries = self._queue.begin()
                # All that was applied is written, or in this batch: what is frozen now is what the journal holds then.
                snapshot = self._freeze() if self._compaction.is_due(self.now_s(), writing=entries) else None
                failure = await self._write(entries) if entries else None
                for output in self._queue.end() if failure is None else self._queue.abort():
                    output(failure)
                if snapshot is not None and failure is None:
                    # The entries are all there, and the next one may succeed; who leads no more learns it from its
                    # next write.
                    with suppress(JournalUnavailableError, NotLeaderError, CoordinatorLostError):
                        await snapshot()
        finally:
            self._flushing = None

    async def _write(self, entries: list[Entry]) -> StrataError | None:
        """Write a batch and return why it was not written; an error that is not known to pass ends the coordinator."""
        try:
            await asyncio.to_thread(self._journal.append, entries)
        except JournalUnavailableError as error:
            # What was applied is not durable, so nobody may learn of it: back to what the journal holds.
            log.exception("the journal cannot be written; durable commands are refused until it can")
            self._refusal = error
            try:
                self.cluster = await asyncio.to_thread(self._replay)
            except JournalUnavailableError:
                if self._leadership.is_alone:
                    raise  # what it holds is not known, and nobody else could take over
                # It was closed meanwhile, because another one leads; all that waits must still be answered.
                self._leadership.step_down()
                self.cluster = Cluster(self._limits)
                return error
            self._probing = self._fail_stop.own(self._probe(), name="journal probe")
            return error
        except (NotLeaderError, CoordinatorLostError) as error:
            # What was applied here is not what the journal holds, and nobody may learn of it.
            log.warning("this coordinator is no longer the leader: %s", error)
            self._leadership.step_down()
            self.cluster = Cluster(self._limits)
            return error
        self._compaction.note_written(entries)
        self.bounds.note_written(self.cluster, entries)
        return None

    async def _probe(self) -> None:
        """Ask the journal again and again; when it takes an empty write, durable commands are welcome again."""
        while self._refusal is not None:
            await asyncio.sleep(PROBE_S)
            try:
                await self._freeze()()
            except JournalUnavailableError as error:
                self._refusal = error
            except (NotLeaderError, CoordinatorLostError):
                self._leadership.step_down()
                return
            else:
                log.warning("the journal accepts writes again")
                # Who came back meanwhile could not register, so silence until now proves nothing.
                self.cluster.restart(self.now_s())
                self._refusal = None

    def _freeze(self) -> Callable[[], Awaitable[None]]:
        """Return what writes a snapshot of this moment.

        Encoding takes long for millions of shards, so only what it is made of is gathered here. The journal is chosen
        here too: a later term has another one.
        """
        began_s = self.now_s()
        encode, measure, journal = self.cluster.freeze(), self.cluster.freeze_sizes(), self._journal
        self._compaction.began(self.now_s(), took_s=self.now_s() - began_s)

        async def write() -> None:
            await asyncio.to_thread(lambda: journal.snapshot(encode()))
            self.bounds.begin_journal(await asyncio.to_thread(measure))

        return write

    def _replay(self) -> Cluster:
        cluster = Cluster(self._limits)
        state, entries = self._journal.load()
        if state is not None:
            cluster.restore(state, where=self._journal.where)
        replay(cluster, entries)
        cluster.restart(self.now_s())
        self._compaction.begin(len(entries))
        # What the entries say is in the state by now, which the next snapshot holds.
        self.bounds.begin_journal(cluster.freeze_sizes()())
        return cluster


def _log_refusal(answer: Reply | StrataError) -> None:
    if isinstance(answer, StrataError):
        log.warning("timeouts that are due cannot be applied: %s", answer)
