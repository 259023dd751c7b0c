"""Sessions: who is connected, in which connection each worker speaks, and who is to be told what."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable

from strata.cluster import commands as c
from strata.cluster.events import BarrierFailed, BarrierReleased, Effect, GenerationChanged
from strata.cluster.replies import Reply
from strata.coordinator.dispatcher import Dispatcher
from strata.coordinator.frames import read_command, write_effect, write_reply, write_shards
from strata.coordinator.lookups import ShardLookups
from strata.errors import BadCommandError, StrataError
from strata.wire._generated import coordinator_pb2 as pb

log = logging.getLogger(__name__)

# What time, a transport or the coordinator itself decides is not for others to say.
_INTERNAL = frozenset({c.FailWorkers, c.ChannelLost, c.AskForManifest, c.ExpireBarrier})
_Worker = tuple[str, str]


class Sessions:
    """All connections of a coordinator. An effect goes to the connection in which its worker spoke last."""

    def __init__(self, *, channel_url: str = "") -> None:
        self.channel_url = channel_url
        self._of_worker: dict[_Worker, Session] = {}
        self._waiters: dict[tuple[str, str, str], set[asyncio.Future[BarrierReleased]]] = {}
        self._changed: dict[str, GenerationChanged] = {}
        self.lookups = ShardLookups()
        self.open: set[Session] = set()

    def bind(self, worker: _Worker, session: Session) -> None:
        """Let a worker's effects go to this session from now on."""
        self._of_worker[worker] = session

    def unbind(self, worker: _Worker, session: Session) -> bool:
        """Forget a session of a worker; return whether it was the one that counts."""
        if self._of_worker.get(worker) is not session:
            return False
        del self._of_worker[worker]
        return True

    def deliver(self, effect: Effect) -> None:
        """Send an effect to everyone that it is addressed to and that is connected."""
        if isinstance(effect, GenerationChanged):
            # Of several at once only the last counts: when a thousand workers join, each is not told a thousand times.
            if not self._changed:
                asyncio.get_running_loop().call_soon(self._announce_changes)
            self._changed[effect.job_id] = effect
            return
        self._send(effect)
        if isinstance(effect, BarrierReleased | BarrierFailed) and self._waiters:
            for worker_id in effect.to:
                self._end_wait((effect.job_id, worker_id, effect.name), effect)

    def _announce_changes(self) -> None:
        changed, self._changed = self._changed, {}
        for effect in changed.values():
            self._send(effect)

    def _send(self, effect: Effect) -> None:
        frame: bytes | None = None
        for worker_id in effect.to:
            session = self._of_worker.get((effect.job_id, worker_id))
            if session is not None:
                frame = frame or write_effect(effect)
                session.send(frame)

    async def wait_for_barrier(self, dispatcher: Dispatcher, command: c.ArriveAtBarrier) -> BarrierReleased:
        """Arrive, and return when the barrier is released, or raise why it will not be."""
        key = command.job_id, command.worker_id, command.name
        future: asyncio.Future[BarrierReleased] = asyncio.get_running_loop().create_future()
        self._waiters.setdefault(key, set()).add(future)
        try:
            await dispatcher.ask(command)
            return await future
        finally:
            waiting = self._waiters.get(key, set())
            waiting.discard(future)
            if not waiting:
                self._waiters.pop(key, None)

    def _end_wait(self, key: tuple[str, str, str], effect: BarrierReleased | BarrierFailed) -> None:
        for future in self._waiters.get(key, set()):
            if not future.done():
                if isinstance(effect, BarrierFailed):
                    future.set_exception(effect.error)
                else:
                    future.set_result(effect)


class Session:
    """One connection. ``send`` takes the bytes of a ServerFrame and must not wait."""

    def __init__(self, sessions: Sessions, dispatcher: Dispatcher, send: Callable[[bytes], None]) -> None:
        self._sessions = sessions
        self._dispatcher = dispatcher
        self.send = send
        self._workers: dict[_Worker, str] = {}
        sessions.open.add(self)

    def receive(self, frame: pb.ClientFrame) -> None:
        """Take one frame; its answer is sent when it may be told."""
        number = frame.id
        if frame.HasField("get_data_shard"):
            self._find_shards(number, frame.get_data_shard)
            return
        try:
            command = read_command(frame.command)
            check_command(command)
        except ValueError as error:
            self._reply(number, error if isinstance(error, StrataError) else BadCommandError(str(error)))
            return
        if isinstance(command, c.RegisterWorker | c.Heartbeat):
            self._bind(command)
        elif isinstance(command, c.Goodbye):
            self._workers.pop((command.job_id, command.worker_id), None)
        self._dispatcher.dispatch(command, lambda answer: self._reply(number, answer))

    def lost(self) -> None:
        """The connection closed: its workers have a short grace to come back, unless they have come already."""
        self._sessions.open.discard(self)
        for (job_id, worker_id), incarnation in self._workers.items():
            if self._sessions.unbind((job_id, worker_id), self):
                lost = c.ChannelLost(job_id=job_id, worker_id=worker_id, incarnation=incarnation)
                self._dispatcher.dispatch(lost, _log_refusal)
        self._workers.clear()

    def _bind(self, command: c.RegisterWorker | c.Heartbeat) -> None:
        worker = command.job_id, command.worker_id
        if self._workers.get(worker) != command.incarnation:
            self._workers[worker] = command.incarnation
            self._sessions.bind(worker, self)

    def _reply(self, number: int, answer: Reply | StrataError) -> None:
        self.send(write_reply(number, answer, channel_url=self._sessions.channel_url))

    def _find_shards(self, number: int, question: pb.GetDataShard) -> None:
        try:
            shards = self._sessions.lookups.find(self._dispatcher.cluster, question)
        except (StrataError, ValueError) as error:
            refusal = error if isinstance(error, StrataError) else BadCommandError(str(error))
            self._dispatcher.when_durable(lambda: self._reply(number, refusal))
        else:
            self._dispatcher.when_durable(lambda: self.send(write_shards(number, shards)))


def check_command(command: c.JobCommand) -> None:
    """Refuse what only the coordinator itself may say."""
    if type(command) in _INTERNAL:
        raise BadCommandError(f"{type(command).__name__} is for the coordinator alone")


def _log_refusal(answer: Reply | StrataError) -> None:
    if isinstance(answer, StrataError):
        log.debug("a closed channel: %s", answer)
