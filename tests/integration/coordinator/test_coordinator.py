"""A coordinator and its workers on real sockets, over both transports."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack
from pathlib import Path

import grpc
import pytest
from grpc_health.v1 import health_pb2, health_pb2_grpc
from grpc_reflection.v1alpha import reflection_pb2, reflection_pb2_grpc

from strata.client.driver import Driver
from strata.cluster import Limits
from strata.cluster import commands as c
from strata.cluster.events import CheckpointCommitted, Effect, GenerationChanged, ManifestWanted
from strata.cluster.replies import HeartbeatReply
from strata.cluster.values import CommitRecord, PartReport
from strata.coordinator.server import SERVICE, Coordinator, CoordinatorConfig
from strata.errors import (
    BadCommandError,
    BarrierTimeoutError,
    CoordinatorLostError,
    GenerationChangedError,
    PortTakenError,
    UnknownDatasetError,
)
from strata.wire._generated import coordinator_pb2 as pb
from strata.wire._generated import coordinator_pb2_grpc as stubs
from strata.wire.errors import ERROR_TRAILER, from_error
from tests.testbed.network.raw_channel import RawChannel
from tests.testbed.pace import stretch

LIMITS = Limits(lease_s=2.0, grace_s=0.3)


class Party:
    """A coordinator and workers that come and go; everything is closed at the end."""

    def __init__(self, stack: AsyncExitStack, transport: str, state: str) -> None:
        self._stack = stack
        self._transport = transport
        self._state = state
        self._ports = (0, 0)
        self.coordinator: Coordinator
        self.effects: dict[str, list[Effect]] = {}

    async def serve(self) -> None:
        """Start the coordinator, or start it again on the same ports."""
        config = CoordinatorConfig(
            grpc_address=f"127.0.0.1:{self._ports[0]}",
            channel_address=f"127.0.0.1:{self._ports[1]}",
            state=self._state,
            limits=LIMITS,
        )
        self.coordinator = await Coordinator(config).__aenter__()
        self._ports = self.coordinator.grpc_port, self.coordinator.channel_port

    async def stop(self) -> None:
        await self.coordinator.__aexit__()

    async def join(self, worker_id: str) -> Driver:
        """Connect a worker and wait until it is in."""
        heard: list[Effect] = self.effects.setdefault(worker_id, [])
        connection = Driver(
            f"http://127.0.0.1:{self._ports[0]}",
            c.RegisterWorker(worker_id=worker_id, incarnation="1"),
            on_effect=heard.append,
            use_channel=self._transport == "channel",
        )
        running = asyncio.create_task(connection.run())
        self._stack.push_async_callback(_cancel, running)
        connection.running = running
        await connection.ask(beat(worker_id), timeout_s=20)
        return connection


async def _cancel(task: asyncio.Task[None]) -> None:
    task.cancel()
    await asyncio.gather(task, return_exceptions=True)


def beat(worker_id: str) -> c.Heartbeat:
    return c.Heartbeat(worker_id=worker_id, incarnation="1")


@pytest.fixture(params=["channel", "stream"])
async def party(request: pytest.FixtureRequest, tmp_path: Path) -> AsyncIterator[Party]:
    async with AsyncExitStack() as stack:
        party = Party(stack, request.param, f"sqlite://{tmp_path}/journal.db")
        await party.serve()
        yield party
        await stack.aclose()
        await party.stop()


async def test_workers_join_and_know_their_place(party: Party, request: pytest.FixtureRequest) -> None:
    first, second = await party.join("a"), await party.join("b")
    assert first.protocol.registered is not None
    assert second.protocol.registered is not None
    assert (first.protocol.registered.rank, second.protocol.registered.rank) == (0, 1)
    assert first.kind == request.node.callspec.params["party"]
    heard = await first.ask(beat("a"))
    assert isinstance(heard, HeartbeatReply)
    assert heard.world_size == 2
    assert any(isinstance(effect, GenerationChanged) for effect in party.effects["a"])


async def test_a_barrier_with_payloads_meets(party: Party) -> None:
    workers = [await party.join(worker) for worker in "abc"]
    while len({worker.protocol.generation for worker in workers}) > 1:
        await asyncio.gather(*(worker.ask(beat(name)) for worker, name in zip(workers, "abc", strict=True)))
    released = await asyncio.gather(
        *(worker.meet("sync", payload=name) for worker, name in zip(workers, [b"0", b"1", b"2"], strict=True))
    )
    assert {each.payloads for each in released} == {(b"0", b"1", b"2")}


async def test_a_barrier_that_times_out_names_the_missing(party: Party) -> None:
    await party.join("b")
    worker = await party.join("a")
    with pytest.raises(BarrierTimeoutError, match=r"missing b \(rank 0"):
        await worker.meet("sync", timeout_s=0.1)


async def test_a_worker_that_vanishes_is_failed_after_its_grace_and_waiters_are_told(party: Party) -> None:
    staying, leaving = await party.join("a"), await party.join("b")
    while staying.protocol.generation < 2:
        await staying.ask(beat("a"))
    waiting = asyncio.create_task(staying.meet("sync"))
    await asyncio.sleep(0)
    await _cancel(leaving.running)
    with pytest.raises(GenerationChangedError):
        await waiting
    assert party.coordinator.dispatcher.cluster.job("default").membership.ids() == ("a",)


async def test_a_restarted_coordinator_has_everything_and_the_workers_come_back(party: Party) -> None:
    workers = [await party.join(worker) for worker in "ab"]
    await workers[0].ask(c.RegisterDataset(dataset_id="d", total_samples=20, shard_size=5))
    await party.stop()
    late = asyncio.create_task(workers[0].ask(c.RegisterDataset(dataset_id="e", total_samples=20, shard_size=5)))
    await party.serve()
    await late
    await asyncio.gather(*(worker.ask(beat(name)) for worker, name in zip(workers, "ab", strict=True)))
    job = party.coordinator.dispatcher.cluster.job("default")
    assert set(job.ledger.datasets) == {"d", "e"}
    assert job.membership.ids() == ("a", "b")
    assert job.membership.generation == 2


async def test_a_commit_goes_from_parts_to_the_announcement(party: Party) -> None:
    workers = {name: await party.join(name) for name in "ab"}
    generation = party.coordinator.dispatcher.cluster.job("default").membership.generation
    for name, worker in workers.items():
        await worker.ask(
            c.ReportPart(
                worker_id=name,
                incarnation="1",
                generation=generation,
                step=5,
                epoch=0,
                report=PartReport(f"step_5/{name}", 1, ""),
            )
        )
    wanted = await _first(party.effects["a"], ManifestWanted)
    await workers["a"].ask(
        c.ConfirmCommit(
            worker_id="a", incarnation="1", step=5, epoch=0, generation=2, manifest="m", cursors=wanted.cursors
        )
    )
    committed = await _first(party.effects["b"], CheckpointCommitted)
    assert committed.step == 5


async def _first(effects: list[Effect], kind: type[Effect]) -> Effect:
    async with asyncio.timeout(stretch(10)):
        while True:
            for effect in effects:
                if isinstance(effect, kind):
                    return effect
            await asyncio.sleep(0.01)


async def test_an_error_arrives_as_the_error_it_is(party: Party) -> None:
    worker = await party.join("a")
    with pytest.raises(UnknownDatasetError) as caught:
        await worker.ask(c.LeaseShards(worker_id="a", incarnation="1", generation=1, dataset_id="x", epoch=0))
    assert caught.value.dataset_id == "x"
    with pytest.raises(BadCommandError, match="FailWorkers is for the coordinator alone"):
        await worker.ask(c.FailWorkers(workers=(("a", "1"),), reason="mischief"))
    with pytest.raises(BadCommandError, match="total_samples is 0"):
        await worker.ask(c.RegisterDataset(dataset_id="z", total_samples=0, shard_size=1))


async def test_asking_a_coordinator_that_is_away_ends_in_time(party: Party) -> None:
    worker = await party.join("a")
    await party.stop()
    with pytest.raises(CoordinatorLostError, match="cannot be reached"):
        await worker.ask(beat("a"), timeout_s=0.2)
    await party.serve()


async def test_a_port_that_is_taken_is_a_clear_error(party: Party) -> None:
    taken = party.coordinator.grpc_port
    with pytest.raises(PortTakenError, match=f"gRPC cannot listen on 127.0.0.1:{taken}"):
        async with Coordinator(CoordinatorConfig(grpc_address=f"127.0.0.1:{taken}", channel_address="127.0.0.1:0")):
            pass
    with pytest.raises(PortTakenError, match="channel cannot listen"):
        async with Coordinator(
            CoordinatorConfig(grpc_address="127.0.0.1:0", channel_address=f"127.0.0.1:{party.coordinator.channel_port}")
        ):
            pass


@pytest.fixture
async def stub(party: Party) -> AsyncIterator[stubs.CoordinatorStub]:
    async with grpc.aio.insecure_channel(f"127.0.0.1:{party.coordinator.grpc_port}") as channel:
        yield stubs.CoordinatorStub(channel)


@pytest.mark.parametrize("party", ["stream"], indirect=True)
class TestOtherLanguages:
    """What a client without this library sees: unary calls, statuses, health and reflection."""

    async def test_a_job_by_unary_calls_alone(self, stub: stubs.CoordinatorStub) -> None:
        for number in range(2):
            reply = await stub.RegisterWorker(pb.RegisterWorker(worker_id=f"w{number}", incarnation="1"))
        assert (reply.rank, reply.world_size) == (1, 2)
        assert reply.channel_url.startswith("ws://127.0.0.1:")
        await stub.RegisterDataset(pb.RegisterDataset(dataset_id="d", total_samples=95, shard_size=10))
        shards = [
            shard
            for number in range(2)
            for shard in (await stub.GetDataShard(pb.GetDataShard(dataset_id="d", worker_id=f"w{number}"))).shards
        ]
        assert sorted(shard.shard_id for shard in shards) == list(range(10))
        arrive = [
            stub.WaitBarrier(
                pb.ArriveAtBarrier(worker_id=f"w{number}", incarnation="1", generation=2, name="b", payload=b"x")
            )
            for number in range(2)
        ]
        assert [list(released.payloads) for released in await asyncio.gather(*arrive)] == [[b"x", b"x"]] * 2
        assert not (await stub.GetLatestCheckpoint(pb.GetLatestCheckpoint())).HasField("checkpoint")
        await stub.DeregisterWorker(pb.Goodbye(worker_id="w0", incarnation="1"))

    async def test_shards_on_the_channel_are_those_of_the_call_also_after_someone_joined(
        self, party: Party, stub: stubs.CoordinatorStub
    ) -> None:
        await stub.RegisterDataset(pb.RegisterDataset(dataset_id="d", total_samples=95, shard_size=10))
        with RawChannel(party.coordinator.channel_port, handshake=False) as raw:
            await asyncio.to_thread(raw.shake_hands)
            for number in range(3):
                await stub.RegisterWorker(pb.RegisterWorker(worker_id=f"w{number}", incarnation="1"))
                question = pb.GetDataShard(dataset_id="d", worker_id="w0", epoch=1)
                for identity in (1, 300):  # the second answer is remembered
                    raw.send(pb.ClientFrame(id=identity, get_data_shard=question).SerializeToString())
                    answer = await asyncio.to_thread(raw.receive)
                    assert answer is not None
                    reply = pb.ServerFrame.FromString(answer).reply
                    assert reply.id == identity
                    assert reply.data_shards == await stub.GetDataShard(question)
            assert len(reply.data_shards.shards) < 10
            raw.send(pb.ClientFrame(id=4, get_data_shard=pb.GetDataShard(dataset_id="none")).SerializeToString())
            answer = await asyncio.to_thread(raw.receive)
            assert answer is not None
            assert pb.ServerFrame.FromString(answer).reply.error.kind == "UnknownDatasetError"

    async def test_an_error_has_a_status_and_all_its_fields(self, stub: stubs.CoordinatorStub) -> None:
        with pytest.raises(grpc.aio.AioRpcError) as caught:
            await stub.Heartbeat(pb.Heartbeat(job_id="nope", worker_id="w", incarnation="1"))
        assert caught.value.code() is grpc.StatusCode.NOT_FOUND
        trailer = dict(caught.value.trailing_metadata())[ERROR_TRAILER]
        assert str(from_error(pb.Error.FromString(trailer))) == caught.value.details()

    async def test_heartbeats_on_a_stream_are_each_answered(self, stub: stubs.CoordinatorStub) -> None:
        await stub.RegisterWorker(pb.RegisterWorker(worker_id="w", incarnation="1"))
        beats = [pb.Heartbeat(worker_id="w", incarnation="1", state="training", step=step) for step in range(5)]
        heard = [each async for each in stub.StreamHeartbeats(iter(beats))]
        assert len(heard) == 5

    async def test_committed_checkpoints_are_listed_oldest_first(
        self, party: Party, stub: stubs.CoordinatorStub
    ) -> None:
        records = tuple(CommitRecord(step, 0, f"step_{step}/metadata.json", "[]") for step in (20, 3))
        await party.coordinator.dispatcher.ask(c.AdoptCheckpoints(checkpoints=records))
        listed = (await stub.ListCheckpoints(pb.ListCheckpoints())).checkpoints
        assert [(each.step, each.manifest) for each in listed] == [
            (3, "step_3/metadata.json"),
            (20, "step_20/metadata.json"),
        ]

    async def test_events_end_where_that_is_asked_for_and_go_on_where_it_is_not(
        self, stub: stubs.CoordinatorStub
    ) -> None:
        await stub.RegisterWorker(pb.RegisterWorker(worker_id="w0", incarnation="1"))
        asked = pb.StreamEvents(job_id="default", once=True)
        assert [each.reason async for each in stub.StreamEvents(asked)] == ["1: w0 joined"]
        following = stub.StreamEvents(pb.StreamEvents(job_id="default"))
        assert (await following.read()).reason == "1: w0 joined"
        await stub.RegisterWorker(pb.RegisterWorker(worker_id="w1", incarnation="1"))
        async with asyncio.timeout(stretch(20)):
            assert (await following.read()).reason == "2: w1 joined"
        following.cancel()
        with pytest.raises(grpc.aio.AioRpcError) as caught:
            _ = [each async for each in stub.StreamEvents(pb.StreamEvents(job_id="nope", once=True))]
        assert caught.value.code() is grpc.StatusCode.NOT_FOUND

    async def test_health_and_reflection_answer(self, party: Party) -> None:
        async with grpc.aio.insecure_channel(f"127.0.0.1:{party.coordinator.grpc_port}") as channel:
            check = health_pb2_grpc.HealthStub(channel).Check
            status = await check(health_pb2.HealthCheckRequest(service=SERVICE))
            assert status.status == health_pb2.HealthCheckResponse.SERVING
            asked = reflection_pb2.ServerReflectionRequest(list_services="")
            (answer,) = [
                each
                async for each in reflection_pb2_grpc.ServerReflectionStub(channel).ServerReflectionInfo(iter([asked]))
            ]
            assert SERVICE in {service.name for service in answer.list_services_response.service}
