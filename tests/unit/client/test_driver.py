"""However a worker's connection ends, its socket is closed with it; and what the coordinator asks for is done."""

from __future__ import annotations

import asyncio
import gc
import threading
from collections.abc import AsyncIterator, Iterator
from concurrent.futures import Future
from contextlib import asynccontextmanager

import pytest
from picows import WSFrame, WSListener, WSMsgType, WSTransport, WSUpgradeRequest, ws_create_server

from strata.background import BackgroundLoop
from strata.client.client import Client
from strata.client.dial import Dial
from strata.client.driver import Driver
from strata.client.transport import ChannelTransport
from strata.client.worker.actions import Answer
from strata.cluster import commands as c
from strata.cluster.events import ManifestWanted
from strata.cluster.replies import Done, Reply, RestorePoint
from strata.cluster.values import CommitRecord
from strata.errors import (
    CheckpointAbortedError,
    CheckpointTimeoutError,
    ClientClosedError,
    ProtocolMismatchError,
    StaleGenerationError,
    StorageFullError,
    StrataError,
    UnsafeTokenError,
)
from strata.wire import PROTOCOL, convert
from strata.wire._generated import coordinator_pb2 as pb
from tests.testbed.coordinator import coordinator_thread
from tests.testbed.pace import stretch
from tests.testbed.waiting import wait_until

WORKER = c.RegisterWorker(worker_id="a", incarnation="1-p.1")


class Channel:
    """A coordinator's channel in a thread of its own, where workers register, and get the replies that are set."""

    def __init__(self) -> None:
        self.protocol = PROTOCOL
        self.reads = True
        self.open: set[WSTransport] = set()
        self.asked: list[pb.Command] = []
        # By the kind of a command; the last one is given again and again.
        self.replies: dict[str, list[Reply | StrataError]] = {}
        self._loop = BackgroundLoop("channel", owner="a Channel")
        self._server = self._loop.submit(self._serve()).result(stretch(10))
        self.url = f"ws://127.0.0.1:{self._server.sockets[0].getsockname()[1]}"

    async def _serve(self) -> asyncio.Server:
        def listen(_: WSUpgradeRequest) -> WSListener:
            return Listener(self)

        return await ws_create_server(listen, "127.0.0.1", 0)

    async def _end(self) -> None:
        self._server.close()
        for transport in self.open:
            transport.disconnect(graceful=False)

    def close(self) -> None:
        self._loop.submit(self._end()).result(stretch(10))
        wait_until(lambda: not self.open, "the end of every connection")
        self._loop.close()


class Listener(WSListener):
    def __init__(self, channel: Channel) -> None:
        super().__init__()
        self._channel = channel

    def on_ws_connected(self, transport: WSTransport) -> None:
        self._channel.open.add(transport)
        if not self._channel.reads:
            transport.underlying_transport.pause_reading()

    def on_ws_disconnected(self, transport: WSTransport) -> None:
        self._channel.open.discard(transport)

    def on_ws_frame(self, transport: WSTransport, frame: WSFrame) -> None:
        if frame.msg_type == WSMsgType.BINARY:
            asked = pb.ClientFrame.FromString(frame.get_payload_as_bytes())
            self._channel.asked.append(asked.command)
            if replies := self._channel.replies.get(asked.command.WhichOneof("kind") or ""):
                reply = convert.reply_to_message(asked.id, replies.pop(0) if len(replies) > 1 else replies[0])
            else:
                registered = pb.Registered(protocol=self._channel.protocol, world_size=1, generation=1, lease_s=100.0)
                reply = pb.Reply(id=asked.id, registered=registered)
            transport.send(WSMsgType.BINARY, pb.ServerFrame(reply=reply).SerializeToString())


@pytest.fixture
def channel(monkeypatch: pytest.MonkeyPatch) -> Iterator[Channel]:
    channel = Channel()

    def describe(*_: object, **__: object) -> pb.Description:
        return pb.Description(channel_url=channel.url)

    monkeypatch.setattr("strata.client.driver.describe", describe)
    yield channel
    channel.close()


async def run_and_stop(background: BackgroundLoop, *, turns: int, is_refused: bool) -> threading.Thread:
    """Stop the loop so many turns after a driver began, or was refused; return the loop's thread."""
    driver = Driver("127.0.0.1:1", WORKER)
    background.submit(driver.run())
    if is_refused:
        with pytest.raises(ProtocolMismatchError):
            await driver.heartbeat()
    for _ in range(turns):
        await asyncio.sleep(0)
    background.stop()
    return threading.current_thread()


def check_nothing_is_left(*, turns: int, is_refused: bool) -> None:
    background = BackgroundLoop("strata-test", owner="a Test")
    ended = background.submit(run_and_stop(background, turns=turns, is_refused=is_refused))
    ended.result(stretch(20)).join(stretch(20))
    # A socket that is left open says so when it is collected, and warnings are errors.
    gc.collect()


@pytest.mark.parametrize("turns", range(6))
def test_a_loop_that_is_stopped_while_a_refused_worker_ends_leaves_no_connection_open(
    channel: Channel, turns: int
) -> None:
    channel.protocol += 1
    check_nothing_is_left(turns=turns, is_refused=True)


@pytest.mark.parametrize("turns", [*range(12), 20, 40, 80, 1_000])
def test_a_loop_that_is_stopped_while_a_worker_joins_leaves_no_connection_open(channel: Channel, turns: int) -> None:
    check_nothing_is_left(turns=turns, is_refused=False)


async def test_a_connection_whose_other_end_reads_nothing_more_is_closed_all_the_same(
    channel: Channel, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("strata.client.transport.CLOSE_TIMEOUT_S", 0.1)
    channel.reads = False
    transport = await ChannelTransport.connect(channel.url, Dial.to("127.0.0.1:1"))
    payload = bytes(16 << 20)
    transport.send(pb.ClientFrame(command=pb.Command(arrive_at_barrier=pb.ArriveAtBarrier(payload=payload))))
    async with asyncio.timeout(stretch(20)):
        await transport.close()
        await transport.wait_lost()


def test_a_client_with_an_address_that_is_none_leaves_no_thread_behind() -> None:
    before = threading.active_count()
    with pytest.raises(ValueError, match="use http:"):
        Client("http://:", "a")
    assert threading.active_count() == before


async def test_a_replica_that_must_not_get_the_token_does_not_keep_the_others_from_being_found(
    channel: Channel, monkeypatch: pytest.MonkeyPatch
) -> None:
    def describe(_: object, address: str, **__: object) -> pb.Description:
        if address == "10.0.0.5:1":
            raise UnsafeTokenError(address)
        return pb.Description(channel_url=channel.url if address == "127.0.0.1:1" else "ws://127.0.0.1:9")

    monkeypatch.setattr("strata.client.driver.describe", describe)
    driver = Driver("127.0.0.1:1,127.0.0.1:3,10.0.0.5:1", WORKER)
    running = asyncio.create_task(driver.run())
    await asyncio.to_thread(wait_until, lambda: len(driver.channels) == 2, "the channel of the third replica")
    assert [each.url for each in driver.channels] == [channel.url, "ws://127.0.0.1:9"]
    running.cancel()
    await asyncio.gather(running, return_exceptions=True)


@asynccontextmanager
async def joining(url: str = "127.0.0.1:1") -> AsyncIterator[Driver]:
    """Give a driver whose worker is in its job."""
    joined = asyncio.Event()
    driver = Driver(url, WORKER, on_join=joined.set)
    running = asyncio.create_task(driver.run())
    try:
        async with asyncio.timeout(stretch(20)):
            await joined.wait()
        yield driver
    finally:
        running.cancel()
        await asyncio.gather(running, return_exceptions=True)


STALE = StaleGenerationError("a", sent=1, current=2)
SAVED = CommitRecord(step=7, epoch=0, manifest="m", cursors="[]")


async def test_a_restore_point_is_asked_for_again_when_another_generation_begins(
    channel: Channel, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("strata.client.driver.RESTORE_AGAIN_S", 0.0)
    channel.replies["ask_restore_point"] = [STALE, RestorePoint(checkpoint=SAVED)]
    async with joining() as driver:
        assert await driver.find_restore_point(timeout_s=stretch(20)) == 7
    asked = [each.ask_restore_point for each in channel.asked if each.HasField("ask_restore_point")]
    assert [each.generation for each in asked] == [1, 2]


async def test_a_job_without_a_checkpoint_goes_on_from_the_beginning(channel: Channel) -> None:
    channel.replies["ask_restore_point"] = [RestorePoint(checkpoint=None)]
    async with joining() as driver:
        assert await driver.find_restore_point(timeout_s=stretch(20)) is None


async def test_a_restore_point_that_does_not_come_in_time_says_what_was_waited_for(channel: Channel) -> None:
    channel.replies["ask_restore_point"] = [STALE]
    async with joining() as driver:
        with pytest.raises(CheckpointTimeoutError) as caught:
            await driver.find_restore_point(timeout_s=0.1)
    assert (caught.value.what, caught.value.phase) == ("the restore", "waiting for the coordinator")
    assert caught.value.timeout_s == 0.1


async def test_a_search_ends_quietly_where_no_thread_is_to_be_had(
    channel: Channel, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As once a program has ended: an error that escapes from a task would be printed."""
    refused: list[object] = []

    def refuse(*_: object) -> None:
        refused.append(None)
        raise RuntimeError("cannot schedule new futures after shutdown")

    loop = asyncio.get_running_loop()
    escaped: list[dict[str, object]] = []
    loop.set_exception_handler(lambda _, context: escaped.append(context))
    async with joining() as driver:
        monkeypatch.setattr(loop, "run_in_executor", refuse)
        driver._do(driver.protocol.lost(loop.time()))
        async with asyncio.timeout(stretch(30)):
            while len(refused) < 3:  # noqa: ASYNC110 - the patched loop tells nobody
                await asyncio.sleep(0.01)
    gc.collect()
    assert escaped == []


async def test_a_driver_that_ends_answers_everyone_who_waits_that_it_was_closed(channel: Channel) -> None:
    async with joining() as driver:
        meeting = asyncio.create_task(driver.meet("b"))
        await asyncio.sleep(0)
    with pytest.raises(ClientClosedError, match="the Client of worker 'a' was closed"):
        await meeting


async def test_an_answer_that_nobody_waits_for_any_more_is_dropped() -> None:
    driver = Driver("127.0.0.1:1", WORKER)
    asking = asyncio.create_task(driver.ask(c.GetKey(key="k")))
    await asyncio.sleep(0)
    (number,) = driver._answers
    asking.cancel()
    # Before the task has noticed: its future is done, and takes no result any more.
    driver._do([Answer(number, Done()), Answer(number + 1, Done())])
    await asyncio.gather(asking, return_exceptions=True)
    assert asking.cancelled()
    assert driver._answers == {}


@pytest.mark.parametrize("channel_url", ["", "ws://no-port", "strata-next"])
async def test_a_coordinator_without_a_channel_that_can_be_read_is_spoken_to_by_grpc(
    monkeypatch: pytest.MonkeyPatch, channel_url: str
) -> None:
    def describe(*_: object, **__: object) -> pb.Description:
        return pb.Description(channel_url=channel_url)

    monkeypatch.setattr("strata.client.driver.describe", describe)
    with coordinator_thread() as coordinator:
        async with joining(f"127.0.0.1:{coordinator.grpc_port}") as driver:
            assert driver.kind == "stream"
            assert driver.channels == ()


class Writer:
    """Writes manifests, or fails to."""

    def __init__(self, error: Exception | None = None) -> None:
        self._error = error
        self.wanted: list[int] = []
        self.cleaned: list[int] = []

    def write_manifest(self, wanted: ManifestWanted) -> Future[CommitRecord]:
        self.wanted.append(wanted.step)
        done: Future[CommitRecord] = Future()
        if self._error is None:
            done.set_result(SAVED)
        else:
            done.set_exception(self._error)
        return done

    def clean_up(self, wanted: ManifestWanted) -> None:
        self.cleaned.append(wanted.step)


def want_manifest(driver: Driver) -> None:
    """Let the coordinator ask the worker for the manifest of step 7."""
    wanted = ManifestWanted(job_id="default", to=("a",), step=7, epoch=0, generation=1, reports=(), cursors="[]")
    assert driver._transport is not None
    driver._receive(driver._transport, pb.ServerFrame(effect=convert.effect_to_message(wanted)))


FULL = StorageFullError("m", problem="no space left", backend="local")


@pytest.mark.parametrize(
    ("error", "level", "words"),
    [
        (FULL, "WARNING", f"the manifest of step 7 is left to another worker: {FULL}"),
        (RuntimeError("closed"), "WARNING", "the manifest of step 7 is left to another worker: closed"),
        (CheckpointAbortedError(7, "a part is lost"), "ERROR", "step 7 cannot be committed: the checkpoint of step 7"),
    ],
)
async def test_a_checkpoint_is_given_up_only_if_no_worker_can_write_its_manifest(
    channel: Channel, caplog: pytest.LogCaptureFixture, error: Exception, level: str, words: str
) -> None:
    async with joining() as driver:
        writer = Writer(error)
        driver.serve_manifests(writer)
        want_manifest(driver)
        await asyncio.to_thread(wait_until, lambda: words in caplog.text, "the line of the log")
        # What is sent later arrives later.
        await driver.ask(c.GetKey(key="k"), timeout_s=stretch(20))
    assert [record.levelname for record in caplog.records if "step 7" in record.getMessage()] == [level]
    given_up = [each.give_up_checkpoint.reason for each in channel.asked if each.HasField("give_up_checkpoint")]
    assert given_up == ([str(error)] if level == "ERROR" else [])
    assert writer.cleaned == []


async def test_a_manifest_that_was_wanted_from_a_writer_that_is_gone_is_written_by_the_next(channel: Channel) -> None:
    channel.replies["confirm_commit"] = [Done()]
    async with joining() as driver:
        gone, writer = Writer(), Writer()
        driver.serve_manifests(gone)
        want_manifest(driver)
        driver.serve_manifests(None)
        await asyncio.sleep(0)
        driver.serve_manifests(writer)
        want_manifest(driver)
        await asyncio.to_thread(wait_until, lambda: writer.cleaned == [7], "the commit")
    assert gone.wanted == []
    assert writer.wanted == [7]


def test_a_connection_that_ends_by_a_bug_is_in_the_log(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    async def fail(_: Driver) -> None:
        raise AssertionError("a bug")

    monkeypatch.setattr(Driver, "run", fail)
    with Client("127.0.0.1:1", "a", keep_alive_s=0):
        wait_until(lambda: "the connection to the coordinator ended: a bug" in caplog.text, "the line of the log")
