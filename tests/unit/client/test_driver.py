"""However a worker's connection ends, its socket is closed with it."""

from __future__ import annotations

import asyncio
import gc
import threading
from collections.abc import Iterator

import pytest
from picows import WSFrame, WSListener, WSMsgType, WSTransport, WSUpgradeRequest, ws_create_server

from strata.background import BackgroundLoop
from strata.client.client import Client
from strata.client.dial import Dial
from strata.client.driver import Driver
from strata.client.transport import ChannelTransport
from strata.cluster import commands as c
from strata.errors import ProtocolMismatchError, UnsafeTokenError
from strata.wire import PROTOCOL
from strata.wire._generated import coordinator_pb2 as pb
from tests.testbed.pace import stretch
from tests.testbed.waiting import wait_until

WORKER = c.RegisterWorker(worker_id="a", incarnation="1-p.1")


class Channel:
    """A coordinator's channel in a thread of its own, where workers register and nothing else."""

    def __init__(self) -> None:
        self.protocol = PROTOCOL
        self.reads = True
        self.open: set[WSTransport] = set()
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
            registered = pb.Registered(protocol=self._channel.protocol, world_size=1, generation=1, lease_s=100.0)
            reply = pb.ServerFrame(reply=pb.Reply(id=asked.id, registered=registered))
            transport.send(WSMsgType.BINARY, reply.SerializeToString())


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
