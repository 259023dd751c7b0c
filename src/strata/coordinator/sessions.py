"""Sessions: who is connected, in which connection each worker speaks, and who is to be told what."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import fields
from functools import cached_property, partial
from itertools import islice

from google.protobuf.message import DecodeError

from strata.cluster import commands as c
from strata.cluster.access import LOCAL, Principal
from strata.cluster.access.names import present, qualify, qualify_name, tenant_of
from strata.cluster.events import BarrierFailed, BarrierReleased, Effect, GenerationChanged
from strata.cluster.replies import Reply
from strata.cluster.validation import check_fields
from strata.coordinator.dispatcher import Dispatcher
from strata.coordinator.entry.roles import MAY_COMMAND, attribution, check_call, refuse_command
from strata.coordinator.flow import LEAST_BYTES, MAX_SHARED_UNDER_WAY, UnderWay
from strata.coordinator.frames import EffectFrames, read_command, write_reply, write_shards
from strata.coordinator.lookups import ShardLookups
from strata.coordinator.sharing.turns import Turns
from strata.coordinator.speakers import SPEAKING, Speakers
from strata.errors import BadCommandError, JournalUnavailableError, StrataError
from strata.wire._generated import coordinator_pb2 as pb

log = logging.getLogger(__name__)

# So many workers are told of a new generation in one turn.
ANNOUNCED_AT_ONCE = 32
# A new generation is announced when none has followed it for so long, longer where more are to be told, and after some
# times that at the latest: where a thousand workers join at once, everyone is told once or twice, and not once for
# each write to the disk.
GATHER_S = 0.003
GATHER_WORKER_S = 0.00002
MAX_GATHERS = 5

# How often an arrival by a single call is noted again.
ARRIVE_AGAIN_S = 2.0

# Of a request: what its client calls it, and how many bytes it had.
_Request = tuple[int, int]


class Sessions:
    """All connections of a coordinator. An effect goes to the connection in which its worker spoke last."""

    def __init__(self, *, channel_url: str = "") -> None:
        self.channel_url = channel_url
        self.http_url = ""
        self.speakers: Speakers[Session] = Speakers()
        self._waiters: dict[tuple[str, str, str], set[asyncio.Future[BarrierReleased]]] = {}
        self.changed: dict[str, _Change] = {}
        """The new generations of which some workers are not told yet."""
        self.lookups = ShardLookups()
        self.open: set[Session] = set()
        self.turns = Turns(lambda call: asyncio.get_running_loop().call_soon(call), time.perf_counter)

    def deliver(self, effect: Effect) -> None:
        """Send an effect to everyone that it is addressed to and that is connected."""
        if isinstance(effect, GenerationChanged):
            # Of several that follow each other only the last counts.
            before = self.changed.get(effect.job_id)
            change = self.changed[effect.job_id] = _Change(
                effect, time.monotonic() if before is None else before.since_s
            )
            if before is None:
                self._gather(change)
            return
        self._send(effect)
        if isinstance(effect, BarrierReleased | BarrierFailed) and self._waiters:
            for worker_id in effect.to:
                self._end_wait((effect.job_id, worker_id, effect.name), effect)

    def catch_up(self, job_id: str, worker_id: str) -> None:
        """Tell a worker of a new generation that is not announced yet, before it gets an answer that follows from it.

        A worker that is refused because its generation is over would otherwise take that for a failure of its own.
        """
        change = self.changed.get(job_id)
        if change is not None and worker_id in change.untold:
            del change.untold[worker_id]
            self._announce(job_id, worker_id, change)

    def _gather(self, seen: _Change) -> None:
        """Announce a new generation a little later, and later still if another one has followed it by then."""

        def look() -> None:
            change = self.changed.get(seen.job_id)
            if change is seen or (change is not None and time.monotonic() - change.since_s >= MAX_GATHERS * gather_s):
                self._announce_later(seen.job_id)
            elif change is not None:
                self._gather(change)

        gather_s = GATHER_S + GATHER_WORKER_S * seen.workers
        asyncio.get_running_loop().call_later(gather_s, look)

    def _announce_later(self, job_id: str) -> None:
        self.turns.add_rest(tenant_of(job_id), partial(self._announce_some, job_id))

    def _announce_some(self, job_id: str) -> None:
        """Tell some of those who are not told yet; the rest have their turn."""
        change = self.changed.get(job_id)
        if change is None:
            return
        for worker_id in list(islice(change.untold, ANNOUNCED_AT_ONCE)):
            del change.untold[worker_id]
            self._announce(job_id, worker_id, change)
        if change.untold:
            self._announce_later(job_id)
        else:
            del self.changed[job_id]

    def _announce(self, job_id: str, worker_id: str, change: _Change) -> None:
        session = self.speakers.find(job_id, worker_id)
        if session is not None:
            session.send(change.frames.of(session.principal))

    def _send(self, effect: Effect) -> None:
        frames = EffectFrames(effect)
        for worker_id in effect.to:
            if self.changed:
                self.catch_up(effect.job_id, worker_id)
            session = self.speakers.find(effect.job_id, worker_id)
            if session is not None:
                session.send(frames.of(session.principal))

    async def wait_for_barrier(
        self, dispatcher: Dispatcher, command: c.ArriveAtBarrier, by: tuple[str, str]
    ) -> BarrierReleased:
        """Arrive, and return when the barrier is released, or raise why it will not be."""
        key = command.job_id, command.worker_id, command.name
        future: asyncio.Future[BarrierReleased] = asyncio.get_running_loop().create_future()
        self._waiters.setdefault(key, set()).add(future)
        try:
            while not future.done():
                # Again, because arrivals are not durable: if the journal refuses a write, they are forgotten, and one
                # that came during that write is refused with it.
                with suppress(JournalUnavailableError):
                    await dispatcher.ask(command, by)
                await asyncio.wait((future,), timeout=ARRIVE_AGAIN_S)
                # Its client may be frozen meanwhile: only what it sends itself renews its lease.
                command = c.ArriveAgain(**{each.name: getattr(command, each.name) for each in fields(command)})
            return future.result()
        finally:
            waiting = self._waiters.get(key, set())
            waiting.discard(future)
            if not waiting:
                self._waiters.pop(key, None)

    def hang_up(self, error: StrataError) -> None:
        """End every connection and every wait for a barrier, because this coordinator leads no more."""
        for session in list(self.open):
            session.hang_up(str(error))
        for waiting in self._waiters.values():
            for future in waiting:
                if not future.done():
                    future.set_exception(error)
        self.changed.clear()

    def _end_wait(self, key: tuple[str, str, str], effect: BarrierReleased | BarrierFailed) -> None:
        for future in self._waiters.get(key, set()):
            if not future.done():
                if isinstance(effect, BarrierFailed):
                    future.set_exception(effect.error)
                else:
                    future.set_result(effect)


class _Change:
    """A new generation that is not announced yet. What telling it takes is made once, and only if it is told."""

    def __init__(self, effect: GenerationChanged, since_s: float) -> None:
        self._effect = effect
        self.job_id, self.workers = effect.job_id, len(effect.to)
        self.since_s = since_s
        """When the first of those was made that it follows and that was not announced."""

    @cached_property
    def frames(self) -> EffectFrames:
        """What is sent."""
        return EffectFrames(self._effect)

    @cached_property
    def untold(self) -> dict[str, None]:
        """Who is not told yet."""
        return dict.fromkeys(self._effect.to)


class Session:
    """One connection. ``send`` takes the bytes of a ServerFrame and must not wait; ``hang_up`` says why it closes.

    ``principal`` is who speaks. ``refuse`` closes it as well, and tells the client why: it does not speak Strata.
    """

    def __init__(
        self,
        sessions: Sessions,
        dispatcher: Dispatcher,
        send: Callable[[bytes], None],
        hang_up: Callable[[str], None],
        principal: Principal = LOCAL,
        address: str = "",
        *,
        refuse: Callable[[str], None] | None = None,
    ) -> None:
        self.principal = principal
        self._by = attribution(principal, address)
        self._sessions = sessions
        self._turns = sessions.turns
        self._dispatcher = dispatcher
        self.send = send
        self.hang_up = hang_up
        self._refuse = refuse or hang_up
        self._is_open = True
        self._has_spoken = False
        self._under_way = UnderWay()
        # The request that is being taken, until it is answered or counted among those under way.
        self._uncounted_bytes = 0
        self.wait_s = 0.0
        """How long nothing more should be read, because the tenant sends more than its quota of requests."""
        sessions.open.add(self)
        self._share = sessions.turns.enter(principal.tenant)
        dispatcher.bounds.open_channel(principal.tenant)

    @property
    def is_full(self) -> bool:
        """Whether nothing more should be read for now; where tenants share, less is taken in advance."""
        return self._under_way.is_full or (self._turns.must_wait and self._under_way.count >= MAX_SHARED_UNDER_WAY)

    @property
    def is_busy(self) -> bool:
        """Whether nothing more should be read before it is this tenant's turn again."""
        return self._turns.is_busy(self.principal.tenant)

    @property
    def rate_per_s(self) -> float | None:
        """The tenant's quota of requests as it is now: who waits because of it does so no longer than it holds."""
        return self._dispatcher.bounds.rate_per_s(self._dispatcher.cluster, self.principal.tenant)

    def when_read(self, read: Callable[[], None]) -> None:
        """Call ``read`` when it is."""
        self._turns.when_read(self.principal.tenant, read)

    def receive(self, data: bytes) -> bool:
        """Take the bytes of one ClientFrame; its answer is sent when it may be told.

        Return whether something keeps this connection waiting, so that there may be reason not to read from it.
        """
        size_bytes = len(data)
        if size_bytes < LEAST_BYTES:
            size_bytes = LEAST_BYTES
        turns = self._turns
        has_rates = self._dispatcher.cluster.access.has_rates
        self.wait_s = self._dispatcher.take_request(self.principal.tenant) if has_rates else 0.0
        if turns.must_wait:
            self._count(size_bytes)
            # Read only when it has its turn, for that is work too.
            turns.add(self.principal.tenant, partial(self._take, data, size_bytes))
        else:
            # Most are answered before this returns, so that there is nothing to count.
            self._uncounted_bytes = size_bytes
            self._take(data, size_bytes)
            if self._uncounted_bytes:
                self._uncounted_bytes = 0
                self._count(size_bytes)
        return self._under_way.count > 0 or self.wait_s > 0.0

    def _count(self, size_bytes: int) -> None:
        if self._is_open:
            self._under_way.count += 1
            self._under_way.size_bytes += size_bytes
            self._share.held_bytes += size_bytes

    def _take(self, data: bytes, size_bytes: int) -> None:
        try:
            frame = pb.ClientFrame.FromString(data)
        except DecodeError:
            self._let_go(size_bytes)
            self._refuse("not a ClientFrame")
            return
        request = frame.id, size_bytes
        if frame.HasField("get_data_shard"):
            self._find_shards(request, frame.get_data_shard)
            return
        try:
            command = check_command(read_command(frame.command), self.principal)
        except (StrataError, ValueError) as error:
            self._reply(request, error if isinstance(error, StrataError) else BadCommandError(str(error)))
            return
        if type(command) is c.RegisterWorker:
            self._sessions.speakers.joins(command, self)
            self._has_spoken = True
        self._dispatcher.dispatch(command, partial(self._answer, request, command), self._by)

    def lost(self) -> None:
        """The connection closed: its workers have a short grace to come back, unless they have come already."""
        if not self._is_open:
            return
        # Not all of its requests are answered once nobody is there to read it.
        self._share.held_bytes -= self._under_way.size_bytes
        self._turns.look_again()
        self._turns.leave(self.principal.tenant)
        self._dispatcher.bounds.close_channel(self.principal.tenant)
        self._is_open = False
        self._sessions.open.discard(self)
        if self._has_spoken:
            for lost in self._sessions.speakers.lost(self):
                self._dispatcher.dispatch(lost, _log_refusal)

    def _answer(self, request: _Request, command: c.Command, answer: Reply | StrataError) -> None:
        sessions = self._sessions
        if self._is_open and type(command) in SPEAKING:
            sessions.speakers.answered(command, answer, self)
            self._has_spoken = True
        # A worker that registers is told its generation by the reply, and takes nothing else before it.
        if sessions.changed and isinstance(command, c.WorkerCommand) and type(command) is not c.RegisterWorker:
            sessions.catch_up(command.job_id, command.worker_id)
        self._reply(request, answer)

    def _reply(self, request: _Request, answer: Reply | StrataError) -> None:
        number, size_bytes = request
        if isinstance(answer, StrataError):
            answer = present(self.principal, answer)
        self._let_go(size_bytes)
        self.send(write_reply(number, answer, channel_url=self._sessions.channel_url))

    def _let_go(self, size_bytes: int) -> None:
        if self._uncounted_bytes:
            self._uncounted_bytes = 0
        elif self._is_open:
            under_way = self._under_way
            under_way.count -= 1
            under_way.size_bytes -= size_bytes
            self._share.held_bytes -= size_bytes
            if self._turns.stopped:
                self._turns.look_again()

    def _find_shards(self, request: _Request, question: pb.GetDataShard) -> None:
        def tell(answer: bytes | StrataError) -> None:
            if isinstance(answer, StrataError):
                self._reply(request, answer)
            elif self._is_open:
                self._let_go(request[1])
                self.send(write_shards(request[0], answer))

        try:
            check_call(self.principal, "GetDataShard")
            question.job_id = qualify_name(self.principal, question.job_id or c.DEFAULT_JOB)
        except StrataError as error:
            self._reply(request, error)
            return
        self._sessions.lookups.answer(self._dispatcher, question, tell, is_wanted=lambda: self in self._sessions.open)


def check_command(command: c.Command, principal: Principal = LOCAL) -> c.Command:
    """Return a command with the full name of its job.

    What only the coordinator itself may say is refused, and so are fields that nobody may send, and what is not for
    this caller.
    """
    if type(command) not in MAY_COMMAND[principal.role]:
        raise refuse_command(principal, type(command))
    return qualify(principal, check_fields(command))


def _log_refusal(answer: Reply | StrataError) -> None:
    if isinstance(answer, StrataError):
        log.debug("a closed channel: %s", answer)
