"""What one client can make the coordinator hold or reckon: bounded, and nobody else waits for it."""

from __future__ import annotations

import sys
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any, Self

import grpc
import pytest

from strata.client.client import Client
from strata.client.unary import ask, ask_audit, ask_for_shards
from strata.cluster import commands as c
from strata.cluster.replies import ShardLease
from strata.coordinator.stream import UnaryAnswers
from strata.wire._generated import coordinator_pb2 as pb
from strata.wire._generated import coordinator_pb2_grpc as stubs
from tests.integration.coordinator.test_coordinator_abuse import command, good_worker, memory_bytes
from tests.testbed.coordinator import CoordinatorProcess
from tests.testbed.network.raw_channel import RawChannel, frame
from tests.testbed.pace import stretch
from tests.testbed.process import start
from tests.testbed.waiting import wait_until

pytestmark = pytest.mark.full

SHARDS = 300_000
# A large answer in the making, and what the process grows by whatever it does.
SLACK_BYTES = 100 << 20
# The worker whose shards are asked for is registered and gone; on a slow machine it must count as there for longer.
PATIENT = ("--lease", "300", "--grace", "300")


@pytest.fixture
def service(tmp_path: Path) -> CoordinatorProcess:
    return CoordinatorProcess(tmp_path, *PATIENT)


def lookup(number: int, epoch: int = 0) -> pb.ClientFrame:
    """A question of 20 bytes with an answer of 3 MB."""
    return pb.ClientFrame(id=number, get_data_shard=pb.GetDataShard(dataset_id="d", worker_id="w", epoch=epoch))


def register(service: CoordinatorProcess, *, shards: int = SHARDS) -> None:
    with RawChannel(service.channel_port) as raw:
        raw.send(command(1, c.RegisterWorker(worker_id="w", incarnation="1")))
        raw.receive()
        raw.send(command(2, c.RegisterDataset(dataset_id="d", total_samples=shards, shard_size=1)))
        raw.receive()


class Peak:
    """The most memory that a process had, looked at again and again by a thread."""

    def __init__(self, pid: int) -> None:
        self._pid = pid
        self._before = self._most = memory_bytes(pid)
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._look)

    @property
    def grown_bytes(self) -> int:
        return self._most - self._before

    def _look(self) -> None:
        while not self._stop.wait(0.01):
            self._most = max(self._most, memory_bytes(self._pid))

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stop.set()
        self._thread.join()


@pytest.mark.parametrize("epochs", [1, 600], ids=["one answer again and again", "600 answers"])
def test_a_few_bytes_of_questions_cannot_make_it_hold_gigabytes_of_answers(
    service: CoordinatorProcess, epochs: int
) -> None:
    questions = b"".join(frame(lookup(number, number % epochs).SerializeToString()) for number in range(600))
    assert len(questions) < 20_000
    with service.serving() as process, good_worker(service) as good:
        register(service)
        with RawChannel(service.channel_port, receive_buffer_bytes=4096) as slow, Peak(process.pid) as peak:
            slow.socket.sendall(questions)
            wait_until(lambda: b"a channel is closed" in service.log())
        assert good.heartbeat(timeout_s=stretch(20)).world_size == 1
    assert peak.grown_bytes < SLACK_BYTES


def test_many_slow_readers_together_are_bounded_too(tmp_path: Path) -> None:
    service = CoordinatorProcess(tmp_path, *PATIENT, "--max-unsent", "32")
    with service.serving() as process, good_worker(service) as good, ExitStack() as stack:
        register(service)
        slow = [stack.enter_context(RawChannel(service.channel_port, receive_buffer_bytes=4096)) for _ in range(100)]
        with Peak(process.pid) as peak:
            for raw in slow:
                raw.send(lookup(1).SerializeToString())
                raw.send(lookup(2).SerializeToString())
            wait_until(lambda: b"33554432 bytes wait for clients" in service.log())
            good.meet("meanwhile", timeout_s=stretch(20))
        assert peak.grown_bytes < SLACK_BYTES + 2 * (32 << 20)


def test_a_grpc_stream_that_is_not_read_is_bounded(service: CoordinatorProcess) -> None:
    with service.serving() as process, good_worker(service) as good, grpc.insecure_channel(service.url) as channel:
        register(service)
        with Peak(process.pid) as peak:
            ended = threading.Event()

            def questions() -> Iterator[pb.ClientFrame]:
                yield from (lookup(number) for number in range(600))
                ended.wait()  # without more questions the stream would be over

            # The replies are never asked for, so gRPC's own flow control stops them.
            call = stubs.CoordinatorStub(channel).Channel(questions())
            call.add_callback(ended.set)
            # It is hung up on if many questions were read before the first answer was made; else no more are read.
            for _ in range(100):
                good.heartbeat(timeout_s=stretch(20))
                if ended.wait(0.05):
                    break
            call.cancel()
        assert peak.grown_bytes < SLACK_BYTES


STOPS = """
import os, signal, sys, grpc
from strata.wire._generated import coordinator_pb2 as pb, coordinator_pb2_grpc as stubs
channel = grpc.insecure_channel(sys.argv[1], options=[("grpc.max_receive_message_length", -1)])
stub = stubs.CoordinatorStub(channel)
calls = [stub.GetDataShard.future(pb.GetDataShard(dataset_id="d", worker_id="w")) for _ in range(600)]
calls[0].exception()  # answered, or refused because too much waits
os.kill(os.getpid(), signal.SIGSTOP)
"""


def test_single_calls_whose_answers_are_not_read_are_bounded(service: CoordinatorProcess) -> None:
    with service.serving() as process, good_worker(service):
        register(service)
        with Peak(process.pid) as peak, start([sys.executable, "-c", STOPS, service.url]) as stopped:
            try:
                wait_until(lambda: Path(f"/proc/{stopped.pid}/stat").read_text().split()[2] == "T")
                # Answers are made in the order of the questions.
                ask_for_shards(service.url, "default", "d", rank=0, epoch=7)
            finally:
                stopped.kill()
        assert peak.grown_bytes < SLACK_BYTES + (64 << 20)


class _Call:
    """A single call as its answer sees it."""

    def __init__(self, client: str) -> None:
        self._client = client
        self.finish: Callable[[object], None] = lambda _: None

    def peer(self) -> str:
        return self._client

    def add_done_callback(self, callback: Callable[[object], None]) -> None:
        self.finish = callback

    async def abort(self, code: grpc.StatusCode, words: str) -> None:
        raise RuntimeError(f"{code.name}: {words}")


async def test_answers_to_single_calls_have_a_limit_for_each_client_and_one_for_all() -> None:
    answers, size_bytes = UnaryAnswers(40 << 20), 8 << 20

    async def keep(client: str, size_bytes: int) -> _Call:
        call: Any = _Call(client)
        await answers.keep(call, size_bytes)
        return call

    calls = [await keep(f"client {number % 3}", size_bytes) for number in range(5)]
    with pytest.raises(
        RuntimeError, match=f"RESOURCE_EXHAUSTED: {2 * size_bytes} bytes of answers wait for this client"
    ):
        await keep("client 0", size_bytes)
    with pytest.raises(RuntimeError, match=f"RESOURCE_EXHAUSTED: {5 * size_bytes} bytes of answers wait for clients"):
        await keep("client 3", size_bytes)
    await keep("client 3", 1_000)
    calls[0].finish(None)
    await keep("client 3", size_bytes)


def test_a_client_that_asks_faster_than_the_disk_gets_all_its_answers(service: CoordinatorProcess) -> None:
    with service.serving(), RawChannel(service.channel_port) as raw:
        total = 5_000
        sent = b"".join(frame(command(n, c.RegisterWorker(worker_id=f"w{n}", incarnation="1"))) for n in range(total))
        with ThreadPoolExecutor() as threads:
            sending = threads.submit(raw.socket.sendall, sent)
            numbers: set[int] = set()
            while len(numbers) < total:
                answer = raw.receive()
                assert answer is not None
                message = pb.ServerFrame.FromString(answer)
                if message.HasField("reply"):
                    numbers.add(message.reply.id)
            sending.result()


@contextmanager
def counting_beats(client: Client) -> Iterator[Callable[[], int]]:
    """Beats one after the other for as long as the block lasts, each when the last one was answered."""
    answered = 0
    stop = threading.Event()

    def beat() -> None:
        nonlocal answered
        while not stop.is_set():
            client.heartbeat(timeout_s=stretch(60))
            answered += 1

    thread = threading.Thread(target=beat)
    thread.start()
    try:
        yield lambda: answered
    finally:
        stop.set()
        thread.join()


LARGE = 10_000_000


@pytest.mark.timing
def test_heartbeats_are_answered_while_a_large_epoch_is_audited(service: CoordinatorProcess) -> None:
    with service.serving(), Client(service.url, "a") as client:
        client.wait_registered()
        client.ask(c.RegisterDataset(dataset_id="d", total_samples=20 * LARGE, shard_size=1_000, shuffle=True))
        client.ask(
            client.worker_command(
                c.ReportProgress, generation=1, sequence=1, dataset_id="d", epoch=0, step=1, spans=((0, 0, 7),)
            )
        )
        audit = ask_audit(service.url, "default", "d", epoch=0)
    assert (audit.total_samples, audit.missing.samples) == (20 * LARGE, 20 * LARGE - 7)
    # Some are named, and which ones those are did not take 200 million lookups.
    assert 0 < len(audit.missing.ranges) <= 10_000


@pytest.mark.timing
@pytest.mark.slow
@pytest.mark.timeout(300)
def test_heartbeats_are_answered_while_ten_million_shards_are_dealt_and_looked_up(service: CoordinatorProcess) -> None:
    with service.serving() as process, Client(service.url, "a") as client:
        client.wait_registered()
        with counting_beats(client) as count:
            client.ask(c.RegisterDataset(dataset_id="d", total_samples=LARGE, shard_size=1, shuffle=True))
            before = count()
            lease = client.ask(
                client.worker_command(c.LeaseShards, generation=1, dataset_id="d", epoch=0), timeout_s=stretch(200)
            )
            during_lease = count() - before
            before = count()
            refusal = pytest.raises(Exception, match="LeaseShards gives in pieces")
            with refusal:
                ask_for_shards(service.url, "default", "d", rank=0, epoch=0)
            during_lookup = count() - before
            assert process.poll() is None
        assert isinstance(lease, ShardLease)
        assert 0 < len(lease.spans) <= 4_096
        # A loop that is held answers one or two.
        assert during_lease > 20
        assert during_lookup > 20


def test_a_lease_is_the_whole_share_piece_by_piece(service: CoordinatorProcess) -> None:
    with service.serving(), Client(service.url, "a") as client:
        client.wait_registered()
        client.ask(c.RegisterDataset(dataset_id="d", total_samples=60_000, shard_size=1, shuffle=True))
        seen: list[int] = []
        sequence = 0
        while True:
            sequence += 1
            lease = client.ask(
                client.worker_command(c.LeaseShards, generation=1, dataset_id="d", epoch=0, sequence=sequence)
            )
            assert isinstance(lease, ShardLease)
            if not len(lease.spans):
                break
            seen += lease.spans[:, 0].tolist()
        assert sorted(seen) == list(range(60_000))
        looked_up = ask(
            service.url,
            lambda stub: stub.GetDataShard(pb.GetDataShard(dataset_id="d", worker_id="a"), timeout=stretch(20)),
        )
        assert [(shard.shard_id, shard.start_index, shard.end_index) for shard in looked_up.shards] == [
            (shard, shard, shard + 1) for shard in seen
        ]
