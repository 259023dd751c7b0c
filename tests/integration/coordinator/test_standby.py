"""A standby answers every client, on every transport, with where the leader is."""

from __future__ import annotations

import asyncio
import math
from collections.abc import AsyncIterator

import grpc
import pytest

from strata.coordinator.replication.leadership import Leader
from strata.coordinator.server import Coordinator, CoordinatorConfig
from strata.errors import NotLeaderError
from strata.wire._generated import coordinator_pb2 as pb
from strata.wire._generated import coordinator_pb2_grpc as stubs
from strata.wire.errors import ERROR_TRAILER, from_error
from tests.testbed.network.model_etcd import serving_model
from tests.testbed.network.raw_channel import RawChannel
from tests.testbed.pace import stretch
from tests.testbed.waiting import wait_until

LEADER = Leader(grpc="10.0.0.7:50051", http="http://10.0.0.7:8080", term=3)
BEAT = pb.Heartbeat(worker_id="w", incarnation="1")


@pytest.fixture
async def standby() -> AsyncIterator[Coordinator]:
    config = CoordinatorConfig(grpc_address="127.0.0.1:0", channel_address="127.0.0.1:0")
    async with Coordinator(config) as coordinator:
        coordinator.leadership.follow(LEADER)
        yield coordinator


def check(error: pb.Error) -> None:
    found = from_error(error)
    assert isinstance(found, NotLeaderError)
    assert (found.leader, found.term) == (LEADER.grpc, LEADER.term)


async def test_without_replicas_a_coordinator_describes_itself_as_the_leader() -> None:
    config = CoordinatorConfig(grpc_address="127.0.0.1:0", channel_address="127.0.0.1:0")
    async with Coordinator(config) as coordinator, grpc.aio.insecure_channel(f"127.0.0.1:{coordinator.grpc_port}") as c:
        found = await stubs.CoordinatorStub(c).Describe(pb.Describe())
        assert (found.is_leader, found.leader, found.term) == (True, f"127.0.0.1:{coordinator.grpc_port}", 0)


async def test_every_unary_call_and_stream_says_where_the_leader_is(standby: Coordinator) -> None:
    async with grpc.aio.insecure_channel(f"127.0.0.1:{standby.grpc_port}") as channel:
        stub = stubs.CoordinatorStub(channel)
        found = await stub.Describe(pb.Describe())
        assert (found.is_leader, found.leader, found.term) == (False, LEADER.grpc, LEADER.term)
        calls = {
            method.name: getattr(pb, method.input_type.name)
            for method in pb.DESCRIPTOR.services_by_name["Coordinator"].methods
            if method.name not in ("Describe", "Channel", "StreamHeartbeats")
        }
        for name, request in calls.items():
            message = request()
            if "worker_id" in request.DESCRIPTOR.fields_by_name:
                message.worker_id = "w"
            if "incarnation" in request.DESCRIPTOR.fields_by_name:
                message.incarnation = "1"
            call = getattr(stub, name)(message)
            with pytest.raises(grpc.aio.AioRpcError) as caught:
                _ = [each async for each in call] if name == "StreamEvents" else await call
            sent = dict(caught.value.trailing_metadata() or ())
            if caught.value.code() is grpc.StatusCode.INVALID_ARGUMENT:
                continue  # refused before anyone is asked
            assert caught.value.code() is grpc.StatusCode.UNAVAILABLE, name
            check(pb.Error.FromString(sent[ERROR_TRAILER]))
        beats = stub.StreamHeartbeats(iter([BEAT]))
        with pytest.raises(grpc.aio.AioRpcError) as caught:
            _ = [each async for each in beats]
        check(pb.Error.FromString(dict(caught.value.trailing_metadata() or ())[ERROR_TRAILER]))
        frames = stub.Channel(iter([pb.ClientFrame(id=7, command=pb.Command(heartbeat=BEAT))]))
        reply = (await frames.read()).reply
        frames.cancel()
        assert reply.id == 7
        check(reply.error)


async def test_a_channel_that_was_open_says_where_the_leader_is_and_no_new_one_is_opened(standby: Coordinator) -> None:
    frames = (
        pb.ClientFrame(id=1, command=pb.Command(heartbeat=BEAT)),
        pb.ClientFrame(id=2, command=pb.Command(register_worker=pb.RegisterWorker(worker_id="w", incarnation="1"))),
        pb.ClientFrame(id=3, get_data_shard=pb.GetDataShard(dataset_id="d", worker_id="w")),
    )

    def ask(channel: RawChannel) -> list[pb.Reply]:
        for frame in frames:
            channel.send(frame.SerializeToString())
        return [pb.ServerFrame.FromString(channel.receive() or b"").reply for _ in frames]

    standby.leadership.lead(Leader(), until_s=math.inf)
    with await asyncio.to_thread(RawChannel, standby.channel_port) as channel:
        standby.leadership.follow(LEADER)
        replies = await asyncio.to_thread(ask, channel)
    assert [reply.id for reply in replies] == [1, 2, 3]
    for reply in replies:
        check(reply.error)
    with await asyncio.to_thread(RawChannel, standby.channel_port) as refused:
        assert b" 503 " in refused.answer
        rest = await asyncio.to_thread(refused.wait_closed)
        assert LEADER.grpc.encode() in refused.answer + rest


async def test_a_coordinator_that_leads_no_more_hangs_up_on_every_stream_also_on_one_that_does_not_read(
    standby: Coordinator,
) -> None:
    register = pb.Command(register_worker=pb.RegisterWorker(worker_id="w", incarnation="1"))
    standby.leadership.lead(Leader(), until_s=math.inf)
    async with grpc.aio.insecure_channel(f"127.0.0.1:{standby.grpc_port}") as channel, asyncio.timeout(stretch(20)):
        stub = stubs.CoordinatorStub(channel)
        calls = [stub.Channel(), stub.Channel()]
        for call in calls:
            await call.write(pb.ClientFrame(id=1, command=register))
        assert (await calls[0].read()).reply.registered.world_size == 1
        error = NotLeaderError(LEADER.grpc, term=LEADER.term)
        standby.sessions.hang_up(error)
        for call in calls:
            with pytest.raises(grpc.aio.AioRpcError) as caught:
                while True:
                    await call.read()
            assert (caught.value.code(), caught.value.details()) == (grpc.StatusCode.UNAVAILABLE, str(error))
    assert not standby.sessions.open


async def test_a_coordinator_on_etcd_serves_everyone_once_it_leads_where_no_token_was_made() -> None:
    with serving_model() as etcd:
        config = CoordinatorConfig(
            grpc_address="127.0.0.1:0", channel_address="127.0.0.1:0", state=str(etcd.target), leader_lease_s=600
        )
        async with Coordinator(config) as coordinator:
            address = f"127.0.0.1:{coordinator.grpc_port}"
            async with grpc.aio.insecure_channel(address) as channel:
                stub = stubs.CoordinatorStub(channel)
                loop, elector = asyncio.get_running_loop(), coordinator.elector
                assert elector is not None

                def leads() -> bool:
                    loop.call_soon_threadsafe(elector._wake.set)
                    return coordinator.leadership.is_leader

                await asyncio.to_thread(wait_until, leads, "the leadership")
                registered = await stub.RegisterWorker(pb.RegisterWorker(worker_id="w", incarnation="1"))
                assert registered.world_size == 1
                found = await stub.Describe(pb.Describe())
                assert (found.is_leader, found.leader, found.term) == (True, address, 1)
        # Its leadership ended with it: another one can lead at once.
        assert [key for key, kv in etcd.find(b"strata/").items() if kv.lease] == []
