"""Clients that misbehave: slow readers, garbage, halves, floods, and disks that are full. Nobody else notices."""

from __future__ import annotations

import errno
import random
import signal
import socket
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from typing import Any

import grpc
import pytest
from google.protobuf import descriptor_pb2, descriptor_pool, message_factory
from grpc_reflection.v1alpha import reflection_pb2, reflection_pb2_grpc

from strata.client.client import Client
from strata.client.worker import requests as requests_module
from strata.cluster import commands as c
from strata.coordinator.channel import MAX_FRAME_BYTES
from strata.errors import JournalUnavailableError, OutboxFullError
from strata.wire import convert
from strata.wire._generated import coordinator_pb2 as pb
from tests.testbed import mounts
from tests.testbed.client_process import worker_process
from tests.testbed.coordinator import CoordinatorProcess
from tests.testbed.network.raw_channel import HANDSHAKE, RawChannel, frame
from tests.testbed.pace import stretch
from tests.testbed.parts import require_open_files, require_root
from tests.testbed.waiting import wait_until

SEED = 20_261
# What a socket says whose other side is gone already.
HUNG_UP = {errno.ECONNRESET, errno.EPIPE, errno.ENOTCONN}


def command(number: int, value: c.JobCommand) -> bytes:
    return pb.ClientFrame(id=number, command=convert.command_to_message(value)).SerializeToString()


@pytest.fixture
def service(tmp_path: Path) -> CoordinatorProcess:
    return CoordinatorProcess(tmp_path)


@contextmanager
def good_worker(service: CoordinatorProcess) -> Iterator[Client]:
    """A worker that must not notice anything; at the end it is still there, in its first connection."""
    with Client(service.url, "good", job_id="good") as client:
        client.wait_registered()
        yield client
        assert client.heartbeat(timeout_s=stretch(20)).generation == 1


def memory_bytes(pid: int) -> int:
    for line in Path(f"/proc/{pid}/status").read_text().splitlines():
        if line.startswith("VmRSS:"):
            return int(line.split()[1]) * 1024
    raise AssertionError("no VmRSS")


def test_a_reader_that_does_not_read_is_not_read_from_and_slows_nobody(service: CoordinatorProcess) -> None:
    payload = bytes(1 << 20)
    with service.serving() as process, good_worker(service) as good:
        with RawChannel(service.channel_port, receive_buffer_bytes=4096) as slow:
            slow.send(command(1, c.RegisterWorker(job_id="slow", worker_id="w", incarnation="1")))
            slow.socket.settimeout(2)
            before = memory_bytes(process.pid)
            is_held = False
            # Every exchange with itself sends it a megabyte that it does not read.
            for number in range(60):
                arrive = c.ArriveAtBarrier(
                    job_id="slow", worker_id="w", incarnation="1", generation=1, name=f"b{number}", payload=payload[64:]
                )
                try:
                    slow.send(command(number + 2, arrive))
                except TimeoutError:
                    is_held = True
                    break
                good.meet(f"b{number}", timeout_s=stretch(20))
            assert is_held, "sixty megabytes were taken from who reads nothing"
            good.meet("after", timeout_s=stretch(20))
            assert memory_bytes(process.pid) - before < 100 << 20
        wait_until(lambda: "failed" in {w.state for job in service.jobs() for w in job.workers})


def test_bytes_without_sense_on_both_ports_are_refused_and_disturb_nobody(service: CoordinatorProcess) -> None:
    chance = random.Random(SEED)
    openings = [b"", b"GET / HTTP/1.1\r\n", HANDSHAKE, b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n", b"\x16\x03\x01\x02\x00"]
    with service.serving() as process, good_worker(service):
        for _ in range(150):
            port = chance.choice([service.grpc_port, service.channel_port])
            with RawChannel(port, handshake=False) as raw:
                try:
                    raw.socket.sendall(chance.choice(openings) + chance.randbytes(chance.randint(0, 3000)))
                    raw.socket.shutdown(socket.SHUT_WR)
                except OSError as error:
                    assert error.errno in HUNG_UP
                    continue  # it was quicker to hang up
                raw.wait_closed()
        assert process.poll() is None


def test_frames_without_sense_close_their_connection_and_no_other(service: CoordinatorProcess) -> None:
    chance = random.Random(SEED)
    good_frame = command(1, c.Heartbeat(job_id="good", worker_id="good", incarnation="?"))
    with service.serving(), good_worker(service):
        for number in range(300):
            with RawChannel(service.channel_port) as raw:
                assert b" 101 " in raw.answer
                damaged = bytearray(good_frame)
                for _ in range(chance.randint(1, 6)):
                    damaged[chance.randrange(len(damaged))] = chance.randrange(256)
                raw.send(bytes(damaged) if number % 2 else chance.randbytes(chance.randint(0, 300)))
                # Either it is a command that is refused or a frame that is not one: in both cases there is an answer.
                raw.socket.shutdown(socket.SHUT_WR)
                raw.wait_closed()


@pytest.mark.parametrize(
    "sent",
    [
        pytest.param(frame(bytes(10), first=0x81), id="text"),
        pytest.param(frame(bytes(10), first=0x02), id="first of several"),
        pytest.param(frame(bytes(MAX_FRAME_BYTES + 10)), id="too large"),
        pytest.param(b"\x82\xff" + (1 << 62).to_bytes(8, "big") + bytes(4), id="said to be huge"),
        pytest.param(frame(bytes(10), first=0xF2), id="reserved bits"),
    ],
)
def test_a_frame_that_is_not_allowed_closes_its_connection(service: CoordinatorProcess, sent: bytes) -> None:
    with service.serving() as process, good_worker(service), RawChannel(service.channel_port) as raw:
        before = memory_bytes(process.pid)
        with suppress(ConnectionError):  # it need not take all of it
            raw.socket.sendall(sent)
        raw.wait_closed()
        assert memory_bytes(process.pid) - before < 50 << 20


def test_half_a_message_waits_for_its_other_half_and_holds_up_nobody(service: CoordinatorProcess) -> None:
    whole = frame(command(7, c.RegisterWorker(job_id="half", worker_id="w", incarnation="1")))
    with service.serving(), good_worker(service) as good, RawChannel(service.channel_port) as raw:
        raw.socket.sendall(whole[:10])
        good.meet("meanwhile", timeout_s=stretch(20))
        raw.socket.sendall(whole[10:])
        answer = raw.receive()
        assert answer is not None
        assert pb.ServerFrame.FromString(answer).reply.id == 7


def test_a_call_with_bytes_that_are_no_message_is_refused(service: CoordinatorProcess) -> None:
    chance = random.Random(SEED)
    methods = [method.name for method in pb.DESCRIPTOR.services_by_name["Coordinator"].methods]
    with service.serving(), good_worker(service), grpc.insecure_channel(service.url) as channel:
        for method in methods:
            if method in ("Channel", "StreamHeartbeats", "StreamEvents", "WaitBarrier"):
                continue
            call: Any = channel.unary_unary(f"/strata.v1.Coordinator/{method}")
            for _ in range(10):
                # The first byte names wire type 7, which does not exist.
                with pytest.raises(grpc.RpcError) as refused:
                    call(b"\x0f" + chance.randbytes(chance.randint(0, 60)), timeout=stretch(20))
                assert "Error parsing message" in refused.value.details(), method
        too_large: Any = channel.unary_unary("/strata.v1.Coordinator/RegisterWorker")
        with pytest.raises(grpc.RpcError) as caught:
            too_large(bytes(5 << 20), timeout=stretch(20))
        assert caught.value.code() is grpc.StatusCode.RESOURCE_EXHAUSTED


def test_a_flood_of_connections_is_refused_clearly_and_the_others_are_served(tmp_path: Path) -> None:
    service = CoordinatorProcess(tmp_path, "--max-channels", "500")
    require_open_files(3_000)
    with service.serving() as process, ExitStack() as stack, good_worker(service) as good:
        before = memory_bytes(process.pid)
        flood = [stack.enter_context(RawChannel(service.channel_port)) for _ in range(2_000)]
        refused = [raw for raw in flood if b" 503 " in raw.answer]
        assert len(flood) - len(refused) == 499
        assert b"this coordinator serves its 500 channels" in refused[0].wait_closed()
        assert good.heartbeat(timeout_s=stretch(20)).world_size == 1
        assert memory_bytes(process.pid) - before < 100 << 20
        for raw in flood:
            raw.close()

        def is_welcome() -> bool:
            with RawChannel(service.channel_port) as raw:
                return b" 101 " in raw.answer

        wait_until(is_welcome)


def test_connections_that_never_speak_are_hung_up_on(service: CoordinatorProcess) -> None:
    require_open_files(3_000)
    with service.serving() as process, good_worker(service) as good, ExitStack() as stack:
        before = memory_bytes(process.pid)
        silent = [stack.enter_context(RawChannel(service.channel_port, handshake=False)) for _ in range(2_000)]
        assert good.heartbeat(timeout_s=stretch(20)).world_size == 1
        for raw in silent:
            raw.wait_closed()
        assert memory_bytes(process.pid) - before < 100 << 20


@pytest.mark.part("faults")
def test_a_full_disk_refuses_what_must_last_serves_the_rest_and_recovers(tmp_path: Path) -> None:
    require_root()
    with mounts.tmpfs(tmp_path / "small", size_bytes=4 << 20) as folder:
        service = CoordinatorProcess(folder)
        ballast = folder / "ballast"
        with service.serving(), good_worker(service) as good:
            with ballast.open("wb", buffering=0) as file, pytest.raises(OSError, match="No space left"):
                while True:
                    file.write(bytes(4096))
            known = []
            with pytest.raises(JournalUnavailableError, match="full"):
                while True:
                    name = f"d{len(known)}"
                    dataset = c.RegisterDataset(job_id="good", dataset_id=name, total_samples=9, shard_size=1)
                    good.ask(dataset, timeout_s=stretch(5))
                    known.append(name)
            # What needs no disk is answered, and what was promised is there, no more and no less.
            assert good.heartbeat(step=5, timeout_s=stretch(20)).world_size == 1
            (job,) = service.jobs()
            assert {dataset.dataset_id for dataset in job.datasets} == set(known)
            late = good.tell(c.RegisterDataset(job_id="good", dataset_id="late", total_samples=9, shard_size=1))
            with pytest.raises(TimeoutError):
                late.result(2)
            ballast.unlink()
            late.result(stretch(30))  # it was asked again until the disk took it
        with service.serving():
            (job,) = service.jobs()
            assert {dataset.dataset_id for dataset in job.datasets} == {*known, "late"}


def test_more_than_may_wait_for_a_coordinator_that_is_away_fails_at_once(
    service: CoordinatorProcess, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(requests_module, "MAX_UNANSWERED", 20)
    with service.serving() as process, Client(service.url, "a") as client:
        client.wait_registered()
        process.kill()
        process.wait()
        asked = [client.tell(c.RegisterDataset(dataset_id=f"d{n}", total_samples=9, shard_size=1)) for n in range(21)]
        with pytest.raises(OutboxFullError, match="20 commands are queued for a coordinator"):
            asked[-1].result(stretch(20))
        with service.serving():
            for answered in asked[:15]:
                answered.result(stretch(30))


def test_ctrl_c_says_goodbye(service: CoordinatorProcess) -> None:
    with service.serving(), worker_process(service.url, "a") as worker:
        worker.send_signal(signal.SIGINT)
        worker.wait()
        wait_until(lambda: service.states()["a"] == "left")


def test_a_client_that_knows_nothing_but_the_address_can_call_everything(service: CoordinatorProcess) -> None:
    """As grpcurl does: the contract comes from the server, and messages are made from it."""
    with service.serving(), grpc.insecure_channel(service.url) as channel:
        ask = reflection_pb2_grpc.ServerReflectionStub(channel).ServerReflectionInfo
        (answer,) = ask(
            iter([reflection_pb2.ServerReflectionRequest(file_containing_symbol="strata.v1.Coordinator")]),
            timeout=stretch(20),
        )
        pool = descriptor_pool.DescriptorPool()
        for data in answer.file_descriptor_response.file_descriptor_proto:
            pool.Add(descriptor_pb2.FileDescriptorProto.FromString(data))
        described = pool.FindServiceByName("strata.v1.Coordinator")

        def call(method: str, **fields: Any) -> Any:
            of = described.methods_by_name[method]
            request = message_factory.GetMessageClass(of.input_type)(**fields)
            reply = message_factory.GetMessageClass(of.output_type)
            path = f"/{described.full_name}/{method}"
            send: Any = channel.unary_unary(path, lambda m: m.SerializeToString(), reply.FromString)
            return send(request, timeout=stretch(20))

        assert call("RegisterWorker", worker_id="w", incarnation="1").world_size == 1
        call("RegisterDataset", dataset_id="d", total_samples=10, shard_size=5)
        assert [s.shard_id for s in call("GetDataShard", dataset_id="d", worker_id="w").shards] == [0, 1]
        assert call("GetStatus").jobs[0].workers[0].worker_id == "w"


def test_a_commit_of_what_nobody_saved_is_refused_alike_on_both_transports(service: CoordinatorProcess) -> None:
    with service.serving(), good_worker(service) as good, RawChannel(service.channel_port) as raw:
        fields = {"step": 999, "epoch": 0, "generation": 1, "manifest": "m", "cursors": "[]"}
        message = convert.command_to_message(good.worker_command(c.ConfirmCommit, **fields))
        raw.send(pb.ClientFrame(id=1, command=message).SerializeToString())
        answer = raw.receive()
        assert answer is not None
        told = pb.ServerFrame.FromString(answer).reply.error
        assert (told.kind, "no worker has reported a part of it" in told.message) == ("CommitRefusedError", True)
        with grpc.insecure_channel(service.url) as channel, pytest.raises(grpc.RpcError) as caught:
            send: Any = channel.unary_unary("/strata.v1.Coordinator/ConfirmCommit")
            send(message.confirm_commit.SerializeToString(), timeout=stretch(20))
        assert caught.value.code() is grpc.StatusCode.FAILED_PRECONDITION
    with service.serving():
        (job,) = service.jobs()
        assert list(job.checkpoints) == []


POISON = c.ConfirmCommit(
    job_id="good", worker_id="good", incarnation="1", step=1, epoch=0, generation=1, manifest="m", cursors="null"
)


@pytest.mark.parametrize(
    ("method", "hostile"),
    [
        ("RegisterWorker", c.RegisterWorker(worker_id="\x1b[2J", incarnation="1")),
        ("RegisterWorker", c.RegisterWorker(worker_id="w" * 1000, incarnation="1")),
        ("WaitBarrier", c.ArriveAtBarrier(worker_id="w", incarnation="1", generation=1, name="b", timeout_s=-1.0)),
        ("ConfigureJob", c.ConfigureJob(max_workers=-1)),
        ("ConfirmCommit", POISON),
    ],
    ids=["escapes", "long", "timeout", "count", "cursors"],
)
def test_what_nobody_may_send_is_refused_alike_on_both_transports(
    service: CoordinatorProcess, method: str, hostile: c.JobCommand
) -> None:
    message = convert.command_to_message(hostile)
    with service.serving(), good_worker(service), RawChannel(service.channel_port) as raw:
        raw.send(pb.ClientFrame(id=1, command=message).SerializeToString())
        answer = raw.receive()
        assert answer is not None
        told = pb.ServerFrame.FromString(answer).reply.error
        assert told.kind in ("BadCommandError", "InvalidIdError")
        assert told.message.isprintable()
        field = convert.COMMANDS[type(hostile)]
        with grpc.insecure_channel(service.url) as channel, pytest.raises(grpc.RpcError) as caught:
            send: Any = channel.unary_unary(f"/strata.v1.Coordinator/{method}")
            send(getattr(message, field).SerializeToString(), timeout=stretch(20))
        assert caught.value.code() is grpc.StatusCode.INVALID_ARGUMENT
        (job,) = service.jobs()
        assert (job.job_id, len(job.workers), len(job.checkpoints)) == ("good", 1, 0)
