"""The worker's lasting connection to the coordinator: it joins, beats, asks, and comes back by itself.

What was asked and not answered is asked again on the next connection, in its order; every command may be sent twice.
"""

from __future__ import annotations

import asyncio
import itertools
import logging
import random
import uuid
from collections.abc import Callable
from contextlib import suppress
from dataclasses import replace
from typing import Any, TypeVar
from urllib.parse import urlsplit

from strata.client.transport import ChannelTransport, StreamTransport, Transport, TransportLostError
from strata.client.vouching import BEATS_PER_LEASE
from strata.clock import backoff_s
from strata.cluster import commands as c
from strata.cluster.commands import JobCommand, WorkerState
from strata.cluster.events import BarrierFailed, BarrierReleased, Effect, GenerationChanged
from strata.cluster.replies import Heard, Registered, Reply
from strata.cluster.seat import Seat
from strata.errors import (
    CoordinatorLostError,
    DuplicateWorkerError,
    JournalUnavailableError,
    OutboxFullError,
    ProtocolMismatchError,
    StaleIncarnationError,
    StrataError,
)
from strata.wire import PROTOCOL, convert
from strata.wire._generated import coordinator_pb2 as pb

log = logging.getLogger(__name__)

DEFAULT_PORT = 50_051
# More than this cannot wait for a coordinator that is away: what is asked then fails at once.
MAX_UNANSWERED = 10_000
FIRST_BACKOFF_S = 0.05
MAX_BACKOFF_S = 2.0
# How often an arrival at a barrier is said again: a release may have been lost with a connection.
ARRIVE_AGAIN_S = 2.0


W = TypeVar("W", bound=c.WorkerCommand)
F = TypeVar("F", bound=c.FencedCommand)


class Connection:
    """One worker of one job. Made, used and closed on one event loop; ``on_effect`` is told what comes by itself.

    ``on_join`` is called each time that the worker is in, before anything that was asked is answered.
    """

    def __init__(
        self,
        url: str,
        worker: c.RegisterWorker,
        *,
        on_effect: Callable[[Effect], None] = lambda _: None,
        on_join: Callable[[], None] = lambda: None,
        use_channel: bool = True,
    ) -> None:
        self._address = parse_address(url)
        self._worker = worker
        self._on_effect = on_effect
        self._on_join = on_join
        self._use_channel = use_channel
        self._numbers = itertools.count(1)
        self._unanswered: dict[int, tuple[JobCommand, asyncio.Future[Reply]]] = {}
        self._meetings: dict[str, asyncio.Future[BarrierReleased]] = {}
        self._transport: Transport | None = None
        self._refusal: StrataError | None = None
        self._jitter = random.SystemRandom()
        self.beat = c.Heartbeat(job_id=worker.job_id, worker_id=worker.worker_id, incarnation=worker.incarnation)
        self.registered: Registered | None = None
        self.seat = Seat(rank=0, world_size=0, generation=0)
        self.generation = 0
        self._beat_soon = asyncio.Event()
        self.why_changed = ""
        self.channel_url = ""

    @property
    def job_id(self) -> str:
        """The job that the worker belongs to."""
        return self._worker.job_id

    @property
    def worker(self) -> c.RegisterWorker:
        """What the worker registers as; in another incarnation after it was declared dead."""
        return self._worker

    @property
    def kind(self) -> str:
        """What carries the frames now: channel, stream, or nothing."""
        names = {ChannelTransport: "channel", StreamTransport: "stream"}
        return names.get(type(self._transport), "nothing")

    async def run(self) -> None:
        """Keep the connection up until cancelled, or until the coordinator refuses the worker for good."""
        failures = 0
        while True:
            try:
                await self._connect()
                self._on_join()
                failures = 0
                await self._serve()
                if self._refusal is not None:
                    return
            except (TransportLostError, JournalUnavailableError) as error:
                failures += 1
                log.debug("%s", error)
            except StrataError as error:
                self._refuse(error)
                return
            finally:
                await self._drop()
            chance = self._jitter.random()
            await asyncio.sleep(backoff_s(failures, first_s=FIRST_BACKOFF_S, max_s=MAX_BACKOFF_S, chance=chance))

    async def ask(self, command: JobCommand, *, timeout_s: float | None = None) -> Reply:
        """Send a command and return its reply, or raise its error; wait while the coordinator is away."""
        if self._refusal is not None:
            raise self._refusal
        if len(self._unanswered) >= MAX_UNANSWERED:
            raise OutboxFullError(limit=MAX_UNANSWERED)
        number = next(self._numbers)
        future: asyncio.Future[Reply] = asyncio.get_running_loop().create_future()
        self._unanswered[number] = command, future
        self._send(number, command)
        try:
            async with asyncio.timeout(timeout_s):
                return await future
        except TimeoutError:
            raise CoordinatorLostError(self._address, waited_s=timeout_s or 0.0) from None
        finally:
            self._unanswered.pop(number, None)

    async def meet(self, name: str, *, generation: int | None = None, **fields: Any) -> BarrierReleased:
        """Arrive at a barrier and return when it is released, or raise why it will not be.

        It is a barrier of ``generation``, or of the one that is known now.
        """
        generation = self.generation if generation is None else generation
        arrival = self.own(c.ArriveAtBarrier, generation=generation, name=name, **fields)
        future = self._meetings.setdefault(name, asyncio.get_running_loop().create_future())
        try:
            while True:
                await self.ask(arrival)
                done, _ = await asyncio.wait([future], timeout=ARRIVE_AGAIN_S)
                if done:
                    return future.result()
        finally:
            self._meetings.pop(name, None)

    def own(self, kind: type[W], **fields: Any) -> W:
        """Return a command of this worker in its present life."""
        return kind(
            job_id=self._worker.job_id,
            worker_id=self._worker.worker_id,
            incarnation=self._worker.incarnation,
            **fields,
        )

    def fenced(self, kind: type[F], **fields: Any) -> F:
        """Return a command of this worker in the generation that it knows of."""
        return self.own(kind, generation=self.generation, **fields)

    async def _connect(self) -> None:
        """Join over gRPC, which every coordinator has, and go on over the channel if its port is open."""
        self._transport = await StreamTransport.connect(self._address, self._receive)
        url = await self._join()
        if not self._use_channel or not url:
            return
        try:
            channel = await ChannelTransport.connect(url, self._receive)
        except TransportLostError as error:
            log.info("staying on gRPC: %s", error)
            return
        stream, self._transport = self._transport, channel
        await self._join()
        await stream.close()

    async def _join(self) -> str:
        """Register on the present connection; return the channel's address."""
        self._answered: asyncio.Future[pb.Reply] = asyncio.get_running_loop().create_future()
        assert self._transport is not None
        command = convert.command_to_message(self._worker)
        self._transport.send(pb.ClientFrame(id=0, command=command))
        lost = asyncio.ensure_future(self._transport.wait_lost())
        either: list[asyncio.Future[Any]] = [self._answered, lost]
        try:
            await asyncio.wait(either, return_when=asyncio.FIRST_COMPLETED)
        finally:
            lost.cancel()
        if not self._answered.done():
            raise TransportLostError("the coordinator went away while the worker registered")
        message = self._answered.result()
        reply = convert.reply_from_message(message)
        if isinstance(reply, StaleIncarnationError):
            # It was declared dead while it was away: it joins as a new process would.
            self._worker = replace(self._worker, incarnation=uuid.uuid4().hex)
            return await self._join()
        if isinstance(reply, StrataError):
            raise reply
        assert isinstance(reply, Registered)
        if message.registered.protocol != PROTOCOL:
            raise ProtocolMismatchError(self._address, theirs=message.registered.protocol, ours=PROTOCOL)
        # The coordinator's word at this moment: after it lost its journal, generations begin anew.
        self.registered, self.seat = reply, reply.seat
        self.generation = reply.generation
        self.channel_url = message.registered.channel_url
        return self.channel_url

    async def _serve(self) -> None:
        for number, (command, _) in sorted(self._unanswered.items()):
            self._send(number, command)
        assert self._transport is not None
        assert self.registered is not None
        beating = asyncio.get_running_loop().create_task(self._beat(self.registered.lease_s / BEATS_PER_LEASE))
        try:
            await self._transport.wait_lost()
        finally:
            beating.cancel()

    async def _beat(self, interval_s: float) -> None:
        while True:
            try:
                async with asyncio.timeout(interval_s):
                    await self._beat_soon.wait()
            except TimeoutError:
                pass
            # A new generation may have given this worker another rank: the answer says so.
            self._beat_soon.clear()
            try:
                await self.ask(replace(self.beat, incarnation=self._worker.incarnation))
            except StaleIncarnationError as error:
                if error.state not in (WorkerState.FAILED, WorkerState.LEFT):
                    # Another process has joined under this name, and the newest counts: a restarted worker must win
                    # against what is left of its last life.
                    self._refuse(DuplicateWorkerError(self._worker.job_id, self._worker.worker_id))
                # Declared dead while it could not be heard: it joins again, over a new connection.
                await self._drop()
                return

    def _refuse(self, error: StrataError) -> None:
        """Let everyone who waits, and whoever will ask, know why this worker may not be in the job."""
        self._refusal = error
        for _, future in self._unanswered.values():
            if not future.done():
                future.set_exception(error)

    async def _drop(self) -> None:
        transport, self._transport = self._transport, None
        if transport is not None:
            with suppress(TransportLostError):
                await transport.close()

    def _send(self, number: int, command: JobCommand) -> None:
        if self._transport is not None:
            self._transport.send(pb.ClientFrame(id=number, command=convert.command_to_message(command)))

    def _receive(self, frame: pb.ServerFrame) -> None:
        if frame.HasField("effect"):
            self._take_effect(convert.effect_from_message(frame.effect))
        elif frame.reply.id == 0:
            if not self._answered.done():
                self._answered.set_result(frame.reply)
        elif (waiting := self._unanswered.get(frame.reply.id)) is not None and not waiting[1].done():
            reply = convert.reply_from_message(frame.reply)
            if isinstance(reply, StrataError):
                waiting[1].set_exception(reply)
            else:
                if isinstance(reply, Heard) and reply.generation > self.seat.generation:
                    self.seat = reply.seat
                    self.generation = max(self.generation, reply.generation)
                waiting[1].set_result(reply)

    def _take_effect(self, effect: Effect) -> None:
        if isinstance(effect, GenerationChanged):
            self.why_changed = effect.reason
            if effect.generation > self.generation:
                self.generation = effect.generation
                self._beat_soon.set()
        elif isinstance(effect, BarrierReleased | BarrierFailed):
            future = self._meetings.get(effect.name)
            if future is not None and not future.done():
                if isinstance(effect, BarrierFailed):
                    future.set_exception(effect.error)
                else:
                    future.set_result(effect)
        self._on_effect(effect)


def parse_address(url: str) -> str:
    """Return host:port of a coordinator's URL: http, grpc or strata://host:port, or host:port itself."""
    split = urlsplit(url if "://" in url else f"grpc://{url}")
    if split.scheme not in ("http", "grpc", "strata") or not split.hostname:
        raise ValueError(f"coordinator {url!r}; use http://host:50051 or host:50051")
    host = f"[{split.hostname}]" if ":" in split.hostname else split.hostname
    return f"{host}:{split.port or DEFAULT_PORT}"
