"""The gRPC service: it only translates; every decision is made in the cluster."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import replace
from functools import partial
from typing import Any, NoReturn, TypeVar

import grpc
from google.protobuf.message import Message

from strata.cluster import Cluster
from strata.cluster import commands as c
from strata.cluster.access import LOCAL
from strata.cluster.access import administration as t
from strata.cluster.access.names import present, qualify_name
from strata.cluster.events import NOBODY
from strata.cluster.ledger.epoch_ledger import EpochView, FoundSamples
from strata.coordinator.dispatcher import Dispatcher
from strata.coordinator.entry.gate import Gate
from strata.coordinator.entry.grpc_gate import GrpcGate, caller_of_call, peer_address, principal_of_call
from strata.coordinator.entry.roles import attribution
from strata.coordinator.flow import UnsentBudget
from strata.coordinator.replication.leadership import Leadership
from strata.coordinator.sessions import Sessions, check_command
from strata.coordinator.status import FollowedEvents, describe, describe_tenants, describe_tokens
from strata.coordinator.stream import FrameStream, UnaryAnswers, lasting_call
from strata.errors import QuotaExceededError, StrataError
from strata.sharding import RangeSet
from strata.wire import PROTOCOL, codec, convert
from strata.wire._generated import coordinator_pb2 as pb
from strata.wire._generated import coordinator_pb2_grpc as stubs
from strata.wire.errors import ERROR_TRAILER, status_of, to_error

EVENT_POLL_S = 0.2
# A call above the quota of requests is answered so much later at most: calls under way are bounded elsewhere.
MAX_SLOWED_S = 5.0
# An audit lists so many ranges of each kind; their number of samples is always exact.
MAX_RANGES = 10_000

M = TypeVar("M", bound=Message)
Context = grpc.aio.ServicerContext[Any, Any]


class _Handlers:
    """Takes the handlers of the calls in place of a server."""

    def __init__(self, service: CoordinatorService) -> None:
        self.by_name: dict[str, Any] = {}
        stubs.add_CoordinatorServicer_to_server(service, self)
        # What was encoded before, or is decoded later, passes as it is.
        self.by_name["GetDataShard"] = grpc.unary_unary_rpc_method_handler(
            service.GetDataShard, request_deserializer=pb.GetDataShard.FromString, response_serializer=None
        )
        self.by_name["Channel"] = grpc.stream_stream_rpc_method_handler(
            service.Channel, request_deserializer=None, response_serializer=None
        )

    def add_generic_rpc_handlers(self, _: object) -> None:
        """The same once more, for servers that look calls up by name."""

    def add_registered_method_handlers(self, _: str, handlers: dict[str, Any]) -> None:
        self.by_name |= handlers


def add_service(service: CoordinatorService, server: grpc.aio.Server, gate: GrpcGate | None) -> None:
    """Serve the calls of the contract, each behind the gate if there is one."""
    handlers = _Handlers(service).by_name
    if gate is not None:
        handlers = gate.guard(handlers)
    name = pb.DESCRIPTOR.services_by_name["Coordinator"].full_name
    # Both ways, so that no version of gRPC serves a call without its gate.
    server.add_generic_rpc_handlers((grpc.method_handlers_generic_handler(name, handlers),))
    server.add_registered_method_handlers(name, handlers)


class CoordinatorService(stubs.CoordinatorServicer):
    """The calls of proto/strata/v1/coordinator.proto."""

    def __init__(
        self,
        dispatcher: Dispatcher,
        sessions: Sessions,
        budget: UnsentBudget,
        gate: Gate,
        leadership: Leadership,
    ) -> None:
        self._gate = gate
        self._identify = principal_of_call
        self._budget = budget
        self._leadership = leadership
        self._answers = UnaryAnswers(budget.limit_bytes)
        self._dispatcher = dispatcher
        self._sessions = sessions

    async def RegisterWorker(self, request: pb.RegisterWorker, context: Context) -> pb.Registered:
        """Join a job; durable before it is said."""
        reply = pb.Registered(channel_url=self._sessions.channel_url, protocol=PROTOCOL)
        return await self._ask(c.RegisterWorker, request, reply, context)

    async def Heartbeat(self, request: pb.Heartbeat, context: Context) -> pb.HeartbeatReply:
        """Say that a worker lives."""
        return await self._ask(c.Heartbeat, request, pb.HeartbeatReply(), context)

    async def StreamHeartbeats(self, request_iterator: AsyncIterator[pb.Heartbeat], context: Context) -> None:
        """Say so again and again on one stream; each beat has its answer."""
        async with self._held(context):
            async for request in request_iterator:
                await context.write(await self._ask(c.Heartbeat, request, pb.HeartbeatReply(), context))

    async def DeregisterWorker(self, request: pb.Goodbye, context: Context) -> pb.Done:
        """Leave on purpose."""
        return await self._ask(c.Goodbye, request, pb.Done(), context)

    async def ConfigureJob(self, request: pb.ConfigureJob, context: Context) -> pb.Done:
        """Set how many workers a job needs and may have."""
        return await self._ask(c.ConfigureJob, request, pb.Done(), context)

    async def RemoveJob(self, request: pb.RemoveJob, context: Context) -> pb.Done:
        """Forget a job that nobody works on."""
        return await self._ask(c.RemoveJob, request, pb.Done(), context)

    async def ForgetCheckpoints(self, request: pb.ForgetCheckpoints, context: Context) -> pb.Done:
        """Take checkpoints out of the index."""
        return await self._ask(c.ForgetCheckpoints, request, pb.Done(), context)

    async def RewindJob(self, request: pb.RewindJob, context: Context) -> pb.Done:
        """Go on from an older checkpoint."""
        return await self._ask(c.RewindJob, request, pb.Done(), context)

    async def RegisterDataset(self, request: pb.RegisterDataset, context: Context) -> pb.Done:
        """Make a dataset known."""
        return await self._ask(c.RegisterDataset, request, pb.Done(), context)

    async def LeaseShards(self, request: pb.LeaseShards, context: Context) -> pb.ShardLease:
        """Get what is left for a worker to read."""
        return await self._ask(c.LeaseShards, request, pb.ShardLease(), context)

    async def ReportProgress(self, request: pb.ReportProgress, context: Context) -> pb.Done:
        """Say what the model has seen."""
        return await self._ask(c.ReportProgress, request, pb.Done(), context)

    async def NotifyCheckpoint(self, request: pb.ReportPart, context: Context) -> pb.Done:
        """Say that a part is durable."""
        return await self._ask(c.ReportPart, request, pb.Done(), context)

    async def ConfirmCommit(self, request: pb.ConfirmCommit, context: Context) -> pb.Done:
        """Say that a manifest is in storage."""
        return await self._ask(c.ConfirmCommit, request, pb.Done(), context)

    async def AskRestorePoint(self, request: pb.AskRestorePoint, context: Context) -> pb.RestorePoint:
        """Ask where this generation goes on."""
        return await self._ask(c.AskRestorePoint, request, pb.RestorePoint(), context)

    async def WaitBarrier(self, request: pb.ArriveAtBarrier, context: Context) -> pb.BarrierReleased:
        """Meet the others; returns when all are there."""
        await self._take_turn()
        try:
            command = check_command(convert.read_command(c.ArriveAtBarrier, request), self._identify(context))
            assert isinstance(command, c.ArriveAtBarrier)
            released = await self._sessions.wait_for_barrier(self._dispatcher, command, self._by(context))
        except (StrataError, ValueError) as error:
            await self._abort(context, error)
        released = present(self._identify(context), released)
        message: pb.BarrierReleased = convert.effect_to_message(released).barrier_released
        return message

    async def GetDataShard(self, request: pb.GetDataShard, context: Context) -> bytes:
        """Return a worker's whole shards of an epoch, in the order in which it reads them, encoded already."""
        await self._take_turn()
        request.job_id = await self._job(request.job_id, context)
        found: asyncio.Future[bytes | StrataError] = asyncio.get_running_loop().create_future()
        self._sessions.lookups.answer(
            self._dispatcher,
            request,
            lambda answer: None if found.done() else found.set_result(answer),
            is_wanted=lambda: not found.done(),
        )
        answer = await found
        if isinstance(answer, StrataError):
            await self._abort(context, answer)
        await self._answers.keep(context, len(answer))
        return answer

    async def GetLatestCheckpoint(self, request: pb.GetLatestCheckpoint, context: Context) -> pb.RestorePoint:
        """Return the newest committed checkpoint that is not suspect, or the newest if all are."""
        job_id = await self._job(request.job_id, context)

        def find(cluster: Cluster) -> pb.RestorePoint:
            reply = pb.RestorePoint()
            latest = cluster.job(job_id).commits.find_restore_point()
            if latest is not None:
                codec.fill(reply.checkpoint, latest)
            return reply

        return await self._look(find, context)

    async def ListCheckpoints(self, request: pb.ListCheckpoints, context: Context) -> pb.Checkpoints:
        """Return all committed checkpoints, oldest first."""
        job_id = await self._job(request.job_id, context)

        def find(cluster: Cluster) -> pb.Checkpoints:
            reply = pb.Checkpoints()
            for _, checkpoint in sorted(cluster.job(job_id).commits.committed.items()):
                codec.fill(reply.checkpoints.add(), checkpoint)
            return reply

        return await self._look(find, context)

    async def SetKey(self, request: pb.SetKey, context: Context) -> pb.KeyValue:
        """Set a small value, if nobody did since the caller read it."""
        return await self._ask(c.SetKey, request, pb.KeyValue(), context)

    async def GetKey(self, request: pb.GetKey, context: Context) -> pb.KeyValue:
        """Return a small value and its token."""
        return await self._ask(c.GetKey, request, pb.KeyValue(), context)

    async def AuditData(self, request: pb.AuditData, context: Context) -> pb.DataAudit:
        """Return which samples of an epoch the model has not seen, or more than once."""
        await self._take_turn()
        job_id = await self._job(request.job_id, context)

        def find(cluster: Cluster) -> tuple[EpochView, RangeSet]:
            return cluster.job(job_id).ledger.to_audit(request.dataset_id, request.epoch)

        try:
            view, skipped = await self._dispatcher.ask_state(find)
            audit = await self._dispatcher.heavy.run(lambda: view.audit(skipped))
        except (StrataError, ValueError) as error:
            await self._abort(context, error)
        return pb.DataAudit(
            total_samples=audit.total_samples,
            missing=_ranges(audit.missing),
            repeated=_ranges(audit.repeated),
            skipped=_ranges(audit.skipped),
            passed_over=_ranges(audit.passed_over),
        )

    async def Describe(self, request: pb.Describe, context: Context) -> pb.Description:
        """Say where the channel, HTTP and the leader are; a standby says it too."""
        sessions, leader = self._sessions, self._leadership.leader
        return pb.Description(
            channel_url=sessions.channel_url,
            http_url=sessions.http_url,
            protocol=PROTOCOL,
            leader=leader.grpc,
            # In doubt it holds commands, and a client that left now would find no other leader.
            is_leader=self._leadership.is_leader or self._leadership.is_in_doubt,
            term=leader.term,
            applied=self._leadership.applied,
            replicas=self._leadership.replicas,
        )

    async def GetStatus(self, request: pb.GetStatus, context: Context) -> pb.Status:
        """Return what all jobs of the caller's tenant are doing; an administrator sees those of all tenants."""
        principal = self._identify(context)
        return await self._look(lambda cluster: describe(cluster, principal, now_s=self._dispatcher.now_s()), context)

    async def StreamEvents(self, request: pb.StreamEvents, context: Context) -> None:
        """Return what has happened, and go on with what happens."""
        job_id = await self._job(request.job_id, context) if request.job_id else ""
        followed = FollowedEvents(job_id, self._identify(context))
        async with self._held(context):
            while True:
                try:
                    look = partial(followed.look, once=request.once)
                    followed, events = await self._dispatcher.ask_state(look)
                except StrataError as error:
                    await self._abort(context, error)
                for event in events:
                    await context.write(
                        pb.Event(
                            time_s=event.at_s,
                            job_id=event.job_id,
                            worker_id=event.worker_id or "",
                            kind=event.kind,
                            reason=event.reason,
                            cause=event.cause or "",
                            by=event.by,
                            address=event.address,
                        )
                    )
                if request.once:
                    return
                await asyncio.sleep(EVENT_POLL_S)

    async def CreateTenant(self, request: pb.CreateTenant, context: Context) -> pb.Done:
        """Make a tenant."""
        return await self._ask(t.CreateTenant, request, pb.Done(), context)

    async def SetTenant(self, request: pb.SetTenant, context: Context) -> pb.Done:
        """Change a tenant's quotas."""
        return await self._ask(t.SetTenant, request, pb.Done(), context)

    async def RemoveTenant(self, request: pb.RemoveTenant, context: Context) -> pb.Done:
        """Remove a tenant that nobody works for."""
        return await self._ask(t.RemoveTenant, request, pb.Done(), context)

    async def ListTenants(self, request: pb.ListTenants, context: Context) -> pb.Tenants:
        """Return tenants with their quotas and what they use; of others only an administrator hears."""
        principal = self._identify(context)
        return await self._look(
            lambda cluster: describe_tenants(cluster, principal, request.tenant, self._dispatcher.bounds), context
        )

    async def CreateToken(self, request: pb.CreateToken, context: Context) -> pb.Done:
        """Make a token known by the hash of its secret."""
        return await self._ask(t.CreateToken, request, pb.Done(), context)

    async def RevokeToken(self, request: pb.RevokeToken, context: Context) -> pb.Done:
        """Take a token back."""
        return await self._ask(t.RevokeToken, request, pb.Done(), context)

    async def ListTokens(self, request: pb.ListTokens, context: Context) -> pb.Tokens:
        """Return tokens without their hashes; of other tenants only an administrator hears."""
        principal = self._identify(context)
        return await self._look(lambda cluster: describe_tokens(cluster, principal, request.tenant), context)

    async def Channel(self, request_iterator: AsyncIterator[Any], context: Context) -> None:
        """Everything on one stream, and what the coordinator says by itself."""
        caller = replace(caller_of_call(), address=peer_address(context.peer()))
        try:
            self._dispatcher.bounds.check_channel(self._dispatcher.cluster, caller.principal.tenant)
        except QuotaExceededError as error:
            await self._abort(context, error)
        async with lasting_call(context) as end:
            stream = FrameStream(self._sessions, self._dispatcher, self._budget, context, caller, end)
            let_go = self._gate.hold(caller, stream.hang_up)
            try:
                await stream.serve(request_iterator)
            finally:
                let_go()

    async def _take_turn(self) -> None:
        """Count a call, and return when its tenant's quota of requests lets it be served."""
        if self._dispatcher.cluster.access.has_rates:
            await asyncio.sleep(min(MAX_SLOWED_S, self._dispatcher.take_request(caller_of_call().principal.tenant)))

    async def _look(self, question: Callable[[Cluster], M], context: Context) -> M:
        await self._take_turn()
        try:
            answer = await self._dispatcher.ask_state(question)
        except StrataError as error:
            await self._abort(context, error)
        await self._answers.keep(context, answer.ByteSize())
        return answer

    async def _ask(self, kind: type[c.Command], request: Message, reply: M, context: Context) -> M:
        await self._take_turn()
        try:
            command = check_command(convert.read_command(kind, request), self._identify(context))
            answer = await self._dispatcher.ask(command, self._by(context))
        except (StrataError, ValueError) as error:
            await self._abort(context, error)
        codec.fill(reply, answer)
        return reply

    def _by(self, context: Context) -> tuple[str, str]:
        principal = self._identify(context)
        return NOBODY if principal is LOCAL else attribution(principal, peer_address(context.peer()))

    @asynccontextmanager
    async def _held(self, context: Context) -> AsyncIterator[None]:
        """End a call that lasts when its token does."""
        async with lasting_call(context) as end:
            let_go = self._gate.hold(caller_of_call(), end)
            try:
                yield
            finally:
                let_go()

    async def _job(self, job_id: str, context: Context) -> str:
        """Return the full name of the job that a question is about."""
        try:
            return qualify_name(self._identify(context), job_id or c.DEFAULT_JOB)
        except StrataError as error:
            await self._abort(context, error)

    async def _abort(self, context: Context, error: Exception) -> NoReturn:
        trailers = []
        if isinstance(error, StrataError):
            error = present(self._identify(context), error)
            trailers.append((ERROR_TRAILER, to_error(error).SerializeToString()))
        await context.abort(status_of(error), str(error), tuple(trailers))
        raise AssertionError("abort raises")


def _ranges(samples: FoundSamples) -> pb.SampleRanges:
    ranges = [pb.SampleRange(start=start, stop=stop) for start, stop in samples.named.first(MAX_RANGES)]
    return pb.SampleRanges(samples=samples.count, ranges=ranges)
