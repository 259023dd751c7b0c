"""The driver: it carries out what the worker's protocol says, on one event loop with one connection at a time.

It decides nothing: what to send, where and when to connect, and what an error means is in
:mod:`strata.client.worker.protocol`.
"""

from __future__ import annotations

import asyncio
import logging
import random
from collections.abc import Callable, Coroutine
from contextlib import suppress
from functools import partial
from typing import TYPE_CHECKING, Any

from strata.background import cancel_each
from strata.client.description import TrustedUrl, describe, leads, trusted_url
from strata.client.dial import Dial
from strata.client.name_records import find_records
from strata.client.transport import ChannelTransport, StreamTransport, Transport, TransportLostError, run_in_thread
from strata.client.worker import actions as a
from strata.client.worker.protocol import WorkerProtocol
from strata.client.worker.states import State
from strata.cluster import commands as c
from strata.cluster.commands import JobCommand
from strata.cluster.events import BarrierReleased, Cause, Effect, ManifestWanted, RepairWanted
from strata.cluster.replies import HeartbeatReply, Reply, RestorePoint
from strata.cluster.values import PartReport
from strata.errors import (
    AccessError,
    CheckpointError,
    CheckpointTimeoutError,
    ClientClosedError,
    CoordinatorLostError,
    MembershipError,
    ProtocolMismatchError,
    StorageError,
    StrataError,
    TokenFileError,
    UnauthenticatedError,
    UnsafeTokenError,
    UntrustedCoordinatorError,
)
from strata.wire import PROTOCOL, convert
from strata.wire._generated import coordinator_pb2 as pb

if TYPE_CHECKING:
    from strata.checkpoint.commit.protocol import ManifestWriter

log = logging.getLogger(__name__)

RESTORE_AGAIN_S = 0.2
DESCRIBE_S = 2.0


class Driver:
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
        self.dial = Dial.to(url)
        # The one that is tried or used now.
        self._address = self.dial.endpoints.first
        self._on_effect = on_effect
        self._on_join = on_join
        self._use_channel = use_channel
        self._told = ""
        self._loop = asyncio.get_running_loop()
        self.protocol = WorkerProtocol(
            worker, addresses=self.dial.endpoints.addresses, chance=random.SystemRandom().random
        )
        self._transport: Transport | None = None
        # Being closed: a task that is cancelled before its first turn does nothing.
        self._dropped: set[Transport] = set()
        self._answers: dict[int, asyncio.Future[Any]] = {}
        self._on_wait: dict[int, Callable[[tuple[str, ...]], None]] = {}
        self._writer: ManifestWriter | None = None
        self._tasks: set[asyncio.Task[None]] = set()
        self._timer: asyncio.TimerHandle | None = None
        self._ended = asyncio.Event()
        self._channel: TrustedUrl | None = None
        # Of each replica that was asked; None where there is none.
        self._channels: dict[str, TrustedUrl | None] = {}

    @property
    def channels(self) -> tuple[TrustedUrl, ...]:
        """The channels of all replicas as far as they are known, the present one first."""
        return tuple(dict.fromkeys(filter(None, (self._channel, *self._channels.values()))))

    @property
    def kind(self) -> str:
        """What carries the frames now: channel, stream, or nothing."""
        names = {ChannelTransport: "channel", StreamTransport: "stream"}
        return names.get(type(self._transport), "nothing")

    async def run(self) -> None:
        """Keep the worker in its job until cancelled, or until the coordinator refuses it for good."""
        try:
            self._do(self.protocol.start(self._loop.time()))
            await self._ended.wait()
        finally:
            self.protocol.close()
            closed = ClientClosedError(self.protocol.worker.worker_id)
            for future in self._answers.values():
                if not future.done():
                    future.set_exception(closed)
            if self._timer is not None:
                self._timer.cancel()
            await self._end()

    async def _end(self) -> None:
        cancel_each(self._tasks)
        try:
            await asyncio.gather(*self._tasks, return_exceptions=True)
            for transport in self._open_transports():
                await transport.close()
        finally:
            # Whoever stops the loop meanwhile cancels these waits too.
            for transport in self._open_transports():
                transport.abort()

    def _open_transports(self) -> list[Transport]:
        return [each for each in (self._transport, *self._dropped) if each is not None]

    # What the worker asks.

    async def ask(self, command: JobCommand, *, timeout_s: float | None = None) -> Reply:
        """Send a command and return its reply, or raise its error; wait while the coordinator is away."""
        reply: Reply = await self._answer(*self.protocol.ask(command, self._loop.time(), timeout_s=timeout_s))
        return reply

    async def heartbeat(self, *, timeout_s: float | None = None) -> HeartbeatReply:
        """Return the reply to a heartbeat that is sent now."""
        reply = await self._answer(*self.protocol.heartbeat(self._loop.time(), timeout_s=timeout_s))
        assert isinstance(reply, HeartbeatReply)
        return reply

    async def leave(self, cause: Cause, reason: str, *, timeout_s: float) -> None:
        """Say goodbye; return when the coordinator has noted it."""
        await self._answer(*self.protocol.leave(reason, self._loop.time(), timeout_s=timeout_s, cause=cause))

    async def meet(self, name: str, **fields: Any) -> BarrierReleased:
        """Arrive at a barrier and return when it is released, or raise why it will not be."""
        released = await self._answer(*self.protocol.meet(name, self._loop.time(), **fields))
        assert isinstance(released, BarrierReleased)
        return released

    async def report(self, *, generation: int, **fields: Any) -> None:
        """Say what the model has seen; return when the coordinator has noted it."""
        await self._answer(*self.protocol.report(self._loop.time(), generation=generation, **fields))

    async def commit_part(
        self,
        number: int,
        *,
        epoch: int,
        report: PartReport,
        timeout_s: float,
        on_wait: Callable[[tuple[str, ...]], None],
    ) -> None:
        """Return when the checkpoint of this part is committed, or raise why it will not be."""
        self._on_wait[number] = on_wait
        try:
            now_s = self._loop.time()
            actions = self.protocol.commit_part(number, now_s, epoch=epoch, report=report, timeout_s=timeout_s)
            await self._answer(number, actions)
        finally:
            del self._on_wait[number]

    def drop_part(self, number: int, reason: str) -> None:
        """Say that a save failed."""
        self._do(self.protocol.drop_part(number, reason, self._loop.time()))

    def serve_manifests(self, writer: ManifestWriter | None) -> None:
        """Let this writer write the manifests that the worker is asked for; without one they wait."""
        self._writer = writer
        self._do(self.protocol.serve_manifests(self._loop.time(), is_serving=writer is not None))

    async def find_restore_point(self, *, timeout_s: float, allow_suspect: bool = False) -> int | None:
        """Return the step that the present generation goes on from; a commit that is about to happen is waited for."""
        changed: MembershipError | None = None
        try:
            async with asyncio.timeout(timeout_s):
                while True:
                    try:
                        point = await self.ask(
                            self.protocol.generation_command(c.AskRestorePoint, allow_suspect=allow_suspect)
                        )
                    except MembershipError as error:
                        changed = error
                        await asyncio.sleep(RESTORE_AGAIN_S)
                    else:
                        assert isinstance(point, RestorePoint)
                        return None if point.checkpoint is None else point.checkpoint.step
        except TimeoutError:
            raise CheckpointTimeoutError(
                "the restore", phase="waiting for the coordinator", timeout_s=timeout_s
            ) from changed

    async def _answer(self, number: int, actions: list[a.Action]) -> Any:
        future: asyncio.Future[Any] = self._loop.create_future()
        self._answers[number] = future
        try:
            self._do(actions)
            return await future
        finally:
            del self._answers[number]
            self.protocol.forget(number)

    # What the protocol says.

    def _do(self, actions: list[a.Action]) -> None:
        for action in actions:
            match action:
                case a.Send():
                    self._send(action)
                case a.Answer():
                    self._give(action)
                case a.Deliver():
                    self._on_effect(action.effect)
                case a.Connect():
                    self._start(self._connect(action))
                case a.Disconnect():
                    log.warning("the connection to the coordinator at %s is dropped: %s", self._address, action.reason)
                    self._drop(self._transport)
                case a.Joined():
                    self._on_join()
                    self._start(self._describe_others())
                case a.Waiting():
                    if action.number in self._on_wait:
                        self._on_wait[action.number](action.workers)
                case a.WriteManifest():
                    self._start(self._write_manifest(action.wanted))
                case a.WriteRepair():
                    self._start(self._write_repair(action.wanted))
                case a.CleanUp():
                    if self._writer is not None:
                        self._writer.clean_up(action.wanted)
                case a.Refuse():
                    log.error("the coordinator refuses this worker: %s", action.error)
                    self._ended.set()
        self._arm()

    def _send(self, action: a.Send) -> None:
        if self._transport is not None:
            command = convert.command_to_message(action.command)
            self._transport.send(pb.ClientFrame(id=action.number, command=command))

    def _give(self, action: a.Answer) -> None:
        future = self._answers.get(action.number)
        if future is None or future.done():
            return
        if isinstance(action.reply, StrataError):
            future.set_exception(action.reply)
        else:
            future.set_result(action.reply)

    def _arm(self) -> None:
        """Set the timer for when the protocol has something to do; one that is set for earlier stays as it is."""
        at_s = self.protocol.next_tick_s()
        if at_s is None or self.protocol.state is State.CLOSED:
            return
        if self._timer is not None:
            if self._timer.when() <= at_s:
                return
            self._timer.cancel()
        self._timer = self._loop.call_at(at_s, self._tick)

    def _tick(self) -> None:
        self._timer = None
        self._do(self.protocol.tick(self._loop.time()))

    def _start(self, work: Coroutine[Any, Any, None]) -> None:
        task = self._loop.create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    # The connection.

    async def _connect(self, to: a.Connect) -> None:
        """Open the channel that the leader names, or a gRPC stream where its port is closed."""
        await asyncio.sleep(to.delay_s)
        self._address = to.address
        try:
            if to.address == to.name and (records := await run_in_thread(partial(find_records, to.address))):
                self._do(self.protocol.resolved(to.name, records, self._loop.time()))
                return
            description = await self._describe(to.address, to.name, to.timeout_s)
            if not leads(description):
                self._do(self.protocol.redirected(description.leader, description.term, self._loop.time()))
                return
            self._channel = self._channels[to.address]
            transport = await self._open(to.name)
        except (CoordinatorLostError, TransportLostError) as error:
            log.debug("%s", error)
            self._do(self.protocol.lost(self._loop.time()))
        except (TokenFileError, UntrustedCoordinatorError) as error:
            # Files may be replaced meanwhile, so it goes on; but someone must know what it waits for.
            if str(error) != self._told:
                log.warning("still trying to connect: %s", error)
            self._told = str(error)
            self._do(self.protocol.lost(self._loop.time()))
        except (UnauthenticatedError, UnsafeTokenError) as error:
            self._do(self.protocol.refuse(error, self._loop.time()))
        else:
            self._use(transport)

    async def _describe_others(self) -> None:
        """Learn where the other replicas have their channels: the keep-alive process must find the next leader."""
        names = {self._address: self._address}
        for name in self.dial.endpoints.addresses:
            try:
                records = await run_in_thread(partial(find_records, name))
            except TransportLostError:
                return
            names = {**dict.fromkeys(records or (name,), name), **names}
        # The records of a name may be others by now.
        self._channels = {address: channel for address, channel in self._channels.items() if address in names}
        for address, name in names.items():
            if address != self._address:
                with suppress(CoordinatorLostError, TransportLostError, AccessError):
                    await self._describe(address, name, DESCRIBE_S)

    async def _describe(self, address: str, name: str, timeout_s: float) -> pb.Description:
        description = await run_in_thread(partial(describe, self.dial, address, name=name, timeout_s=timeout_s))
        try:
            self._channels[address] = trusted_url(description.channel_url, address, name)
        except ValueError:
            # There is no channel, or no URL that this version can read: then gRPC serves.
            self._channels[address] = None
        return description

    async def _open(self, name: str) -> Transport:
        if self._use_channel and self._channel is not None:
            try:
                return await ChannelTransport.connect(self._channel.url, self.dial, host=self._channel.host)
            except TransportLostError as error:
                log.info("staying on gRPC: %s", error)
        return await StreamTransport.connect(self._address, self.dial, name=name)

    def _use(self, transport: Transport) -> None:
        self._transport = transport
        self._start(self._watch(transport))
        transport.start(partial(self._receive, transport))
        self._do(self.protocol.connected(self._loop.time()))

    async def _watch(self, transport: Transport) -> None:
        await transport.wait_lost()
        if self._transport is transport:
            self._drop(transport)
            self._do(self.protocol.lost(self._loop.time()))

    def _drop(self, transport: Transport | None) -> None:
        if self._transport is transport and transport is not None:
            self._transport = None
            self._dropped.add(transport)
            self._start(self._close(transport))

    async def _close(self, transport: Transport) -> None:
        await transport.close()
        self._dropped.discard(transport)

    def _receive(self, transport: Transport, frame: pb.ServerFrame) -> None:
        if transport is not self._transport:
            return  # of a connection that was left
        now_s = self._loop.time()
        if frame.HasField("effect"):
            self._do(self.protocol.receive_effect(convert.effect_from_message(frame.effect), now_s))
            return
        reply = convert.reply_from_message(frame.reply)
        if frame.reply.HasField("registered") and frame.reply.registered.protocol != PROTOCOL:
            reply = ProtocolMismatchError(self._address, theirs=frame.reply.registered.protocol, ours=PROTOCOL)
        self._do(self.protocol.receive(frame.reply.id, reply, now_s))

    # Manifests.

    async def _write_manifest(self, wanted: ManifestWanted) -> None:
        reason: str | None = None
        # A writer that is gone was told to be, and another worker is asked.
        if self._writer is None:
            self._do(self.protocol.manifest_failed(wanted.step, None, self._loop.time()))
            return
        try:
            record = await asyncio.wrap_future(self._writer.write_manifest(wanted))
        except CheckpointError as error:
            log.error("step %d cannot be committed: %s", wanted.step, error)  # noqa: TRY400 - the message says it all
            reason = str(error)
        except (StorageError, RuntimeError) as error:
            log.warning("the manifest of step %d is left to another worker: %s", wanted.step, error)
        else:
            self._do(self.protocol.manifest_written(wanted.step, record, self._loop.time()))
            return
        self._do(self.protocol.manifest_failed(wanted.step, reason, self._loop.time()))

    async def _write_repair(self, wanted: RepairWanted) -> None:
        repair: PartReport | None = None
        if self._writer is not None:
            try:
                repair = await asyncio.wrap_future(self._writer.write_repair(wanted))
            except (CheckpointError, StorageError, RuntimeError) as error:
                log.warning("step %d is not repaired by this worker: %s", wanted.step, error)
        self._do(self.protocol.repair_written(wanted.step, wanted.generation, repair, self._loop.time()))
