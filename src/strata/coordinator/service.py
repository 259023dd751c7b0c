"""The gRPC service: it only translates; every decision is made in the cluster."""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import AsyncIterator
from typing import Any, NoReturn, TypeVar

import grpc
from google.protobuf.message import Message

from strata.cluster import commands as c
from strata.coordinator.dispatcher import Dispatcher
from strata.coordinator.sessions import Session, Sessions, check_command
from strata.coordinator.status import describe
from strata.errors import StrataError
from strata.sharding import RangeSet
from strata.wire import PROTOCOL, convert
from strata.wire._generated import coordinator_pb2 as pb
from strata.wire._generated import coordinator_pb2_grpc as stubs
from strata.wire.errors import ERROR_TRAILER, status_of, to_error

# Frames to a client that does not read are dropped with its stream when there are so many.
MAX_UNSENT_FRAMES = 10_000
EVENT_POLL_S = 0.2
# An audit lists so many ranges of each kind; their number of samples is always exact.
MAX_RANGES = 10_000

M = TypeVar("M", bound=Message)
Context = grpc.aio.ServicerContext[Any, Any]


class CoordinatorService(stubs.CoordinatorServicer):
    """The calls of proto/strata/v1/coordinator.proto."""

    def __init__(self, dispatcher: Dispatcher, sessions: Sessions) -> None:
        self._dispatcher = dispatcher
        self._sessions = sessions

    async def RegisterWorker(self, request: pb.RegisterWorker, context: Context) -> pb.Registered:
        """Join a job; durable before it is said."""
        reply = pb.Registered(channel_url=self._sessions.channel_url, protocol=PROTOCOL)
        return await self._ask(c.RegisterWorker, request, reply, context)

    async def Heartbeat(self, request: pb.Heartbeat, context: Context) -> pb.Heard:
        """Say that a worker lives."""
        return await self._ask(c.Heartbeat, request, pb.Heard(), context)

    async def StreamHeartbeats(self, request_iterator: AsyncIterator[pb.Heartbeat], context: Context) -> Any:
        """Say so again and again on one stream; each beat has its answer."""
        async for request in request_iterator:
            yield await self._ask(c.Heartbeat, request, pb.Heard(), context)

    async def DeregisterWorker(self, request: pb.Goodbye, context: Context) -> pb.Done:
        """Leave on purpose."""
        return await self._ask(c.Goodbye, request, pb.Done(), context)

    async def ConfigureJob(self, request: pb.ConfigureJob, context: Context) -> pb.Done:
        """Set how many workers a job needs and may have."""
        return await self._ask(c.ConfigureJob, request, pb.Done(), context)

    async def RegisterDataset(self, request: pb.RegisterDataset, context: Context) -> pb.Done:
        """Make a dataset known."""
        return await self._ask(c.RegisterDataset, request, pb.Done(), context)

    async def TakeHand(self, request: pb.TakeHand, context: Context) -> pb.Hand:
        """Get what is left for a worker to read."""
        return await self._ask(c.TakeHand, request, pb.Hand(), context)

    async def ReportProgress(self, request: pb.ReportProgress, context: Context) -> pb.Done:
        """Say what the model has seen."""
        return await self._ask(c.ReportProgress, request, pb.Done(), context)

    async def NotifyCheckpoint(self, request: pb.AckPart, context: Context) -> pb.Done:
        """Say that a part is durable."""
        return await self._ask(c.AckPart, request, pb.Done(), context)

    async def ConfirmCommit(self, request: pb.ConfirmCommit, context: Context) -> pb.Done:
        """Say that a manifest is in storage."""
        return await self._ask(c.ConfirmCommit, request, pb.Done(), context)

    async def AskRestorePoint(self, request: pb.AskRestorePoint, context: Context) -> pb.RestorePoint:
        """Ask where this generation goes on."""
        return await self._ask(c.AskRestorePoint, request, pb.RestorePoint(), context)

    async def WaitBarrier(self, request: pb.ArriveAtBarrier, context: Context) -> pb.BarrierReleased:
        """Meet the others; returns when all are there."""
        try:
            command = convert.read_command(c.ArriveAtBarrier, request)
            assert isinstance(command, c.ArriveAtBarrier)
            released = await self._sessions.wait_for_barrier(self._dispatcher, command)
        except (StrataError, ValueError) as error:
            await _abort(context, error)
        message: pb.BarrierReleased = convert.effect_to_message(released).barrier_released
        return message

    async def GetDataShard(self, request: pb.GetDataShard, context: Context) -> pb.DataShards:
        """Return a worker's whole shards of an epoch, in the order in which it reads them."""
        try:
            shards = self._sessions.lookups.find(self._dispatcher.cluster, request)
            await self._dispatcher.settled()
            return pb.DataShards.FromString(shards)
        except (StrataError, ValueError) as error:
            await _abort(context, error)

    async def GetLatestCheckpoint(self, request: pb.GetLatestCheckpoint, context: Context) -> pb.RestorePoint:
        """Return the newest committed checkpoint."""
        reply = pb.RestorePoint()
        try:
            latest = self._dispatcher.cluster.job(request.job_id or "default").commits.latest()
        except StrataError as error:
            await _abort(context, error)
        if latest is not None:
            convert.fill_checkpoint(reply.checkpoint, latest)
        return reply

    async def ListCheckpoints(self, request: pb.ListCheckpoints, context: Context) -> pb.Checkpoints:
        """Return all committed checkpoints, oldest first."""
        reply = pb.Checkpoints()
        try:
            committed = self._dispatcher.cluster.job(request.job_id or "default").commits.committed
        except StrataError as error:
            await _abort(context, error)
        for _, checkpoint in sorted(committed.items()):
            convert.fill_checkpoint(reply.checkpoints.add(), checkpoint)
        return reply

    async def SetKey(self, request: pb.SetKey, context: Context) -> pb.KeyValue:
        """Set a small value, if nobody did since the caller read it."""
        return await self._ask(c.SetKey, request, pb.KeyValue(), context)

    async def GetKey(self, request: pb.GetKey, context: Context) -> pb.KeyValue:
        """Return a small value and its token."""
        return await self._ask(c.GetKey, request, pb.KeyValue(), context)

    async def AuditData(self, request: pb.AuditData, context: Context) -> pb.DataAudit:
        """Return which samples of an epoch the model has not seen, or more than once."""
        try:
            job = self._dispatcher.cluster.job(request.job_id or "default")
            audit = job.ledger.audit(request.dataset_id, request.epoch)
        except (StrataError, ValueError) as error:
            await _abort(context, error)
        return pb.DataAudit(
            total_samples=audit.total_samples,
            missing=_ranges(audit.missing),
            repeated=_ranges(audit.repeated),
            skipped=_ranges(audit.skipped),
        )

    async def GetStatus(self, request: pb.GetStatus, context: Context) -> pb.Status:
        """Return what all jobs are doing."""
        return describe(self._dispatcher.cluster, now_s=self._dispatcher.now_s())

    async def StreamEvents(self, request: pb.StreamEvents, context: Context) -> AsyncIterator[pb.Event]:
        """Return what has happened, and go on with what happens."""
        following = 0
        while True:
            following, events = self._dispatcher.cluster.events.since(following)
            for event in events:
                if request.job_id in ("", event.job_id):
                    yield pb.Event(
                        time_s=self._dispatcher.wall_of(event.at_s),
                        job_id=event.job_id,
                        worker_id=event.worker_id or "",
                        kind=event.kind,
                        reason=event.reason,
                    )
            if request.once:
                return
            await asyncio.sleep(EVENT_POLL_S)

    async def Channel(self, request_iterator: AsyncIterator[pb.ClientFrame], context: Context) -> None:
        """Everything on one stream, and what the coordinator says by itself."""
        unsent: asyncio.Queue[bytes] = asyncio.Queue(MAX_UNSENT_FRAMES)

        def send(data: bytes) -> None:
            try:
                unsent.put_nowait(data)
            except asyncio.QueueFull:
                context.cancel()  # type: ignore[attr-defined] # missing in the published types

        session = Session(self._sessions, self._dispatcher, send)

        async def receive() -> None:
            async for frame in request_iterator:
                session.receive(frame)
            raise EOFError

        async def write() -> None:
            while True:
                await context.write(pb.ServerFrame.FromString(await unsent.get()))

        try:
            async with asyncio.TaskGroup() as group:
                group.create_task(receive())
                group.create_task(write())
        except* EOFError:
            pass
        finally:
            session.lost()

    async def _ask(self, kind: type[c.JobCommand], request: Message, reply: M, context: Context) -> M:
        try:
            command = convert.read_command(kind, request)
            check_command(command)
            answer = await self._dispatcher.ask(command)
        except (StrataError, ValueError) as error:
            await _abort(context, error)
        convert.fill_reply(reply, answer)
        return reply


def _ranges(samples: RangeSet) -> pb.SampleRanges:
    first = itertools.islice(samples, MAX_RANGES)
    return pb.SampleRanges(
        samples=samples.count, ranges=[pb.SampleRange(start=start, stop=stop) for start, stop in first]
    )


async def _abort(context: Context, error: Exception) -> NoReturn:
    trailers = []
    if isinstance(error, StrataError):
        trailers.append((ERROR_TRAILER, to_error(error).SerializeToString()))
    await context.abort(status_of(error), str(error), tuple(trailers))
    raise AssertionError("abort raises")
