"""Clients of several coordinators, of which one leads: workers, tools and the keep-alive process find it."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack
from typing import Any

import pytest

from strata.client.client import Client
from strata.client.leader_finder import LeaderFinder
from strata.client.name_records import find_records
from strata.client.unary import get_key, set_key
from strata.coordinator.replication.leadership import Leader
from strata.coordinator.server import Coordinator, CoordinatorConfig
from strata.errors import CoordinatorLostError, NotLeaderError
from tests.testbed.pace import stretch
from tests.testbed.process import free_ports
from tests.testbed.waiting import wait_until


def address_of(coordinator: Coordinator) -> str:
    return f"127.0.0.1:{coordinator.grpc_port}"


@pytest.fixture
async def pair() -> AsyncIterator[tuple[Coordinator, Coordinator]]:
    """A standby and the leader that it names."""
    config = CoordinatorConfig(grpc_address="127.0.0.1:0", channel_address="127.0.0.1:0")
    async with AsyncExitStack() as stack:
        standby = await stack.enter_async_context(Coordinator(config))
        leader = await stack.enter_async_context(Coordinator(config))
        standby.leadership.follow(Leader(grpc=address_of(leader), term=1))
        leader.leadership.lead(Leader(grpc=address_of(leader), term=1), until_s=float("inf"))
        yield standby, leader


async def test_a_worker_and_tools_find_the_leader_behind_a_standby(pair: tuple[Coordinator, Coordinator]) -> None:
    standby, leader = pair
    url = f"strata://{address_of(standby)},{address_of(leader)}"

    def use() -> None:
        with Client(url, "w") as client:
            assert client.wait_registered(stretch(30)).world_size == 1
            assert set_key(url, "default", "k", b"v", token=0).is_set
            # Also where only the standby is known: it says who leads.
            assert get_key(address_of(standby), "default", "k").value == b"v"
            assert client.transport == "channel"

    await asyncio.to_thread(use)
    assert "default" in leader.dispatcher.cluster
    assert "default" not in standby.dispatcher.cluster


async def test_a_worker_goes_over_to_the_next_leader_and_asks_again(pair: tuple[Coordinator, Coordinator]) -> None:
    first, second = pair[1], pair[0]
    url = f"strata://{address_of(second)},{address_of(first)}"
    with await asyncio.to_thread(Client, url, "w") as client:
        await asyncio.to_thread(client.wait_registered, stretch(30))
        first.leadership.follow(Leader(grpc=address_of(second), term=2))
        second.leadership.lead(Leader(grpc=address_of(second), term=2), until_s=float("inf"))
        await asyncio.to_thread(client.heartbeat, timeout_s=stretch(30))
        assert "default" in second.dispatcher.cluster

        def knows_both() -> bool:
            return len(client._driver.channels) == 2

        # Where the keep-alive process speaks when this one cannot.
        await asyncio.to_thread(wait_until, knows_both)
        await asyncio.to_thread(client.close)


async def test_who_finds_no_leader_is_told_so_within_its_time(pair: tuple[Coordinator, Coordinator]) -> None:
    for each in pair:
        each.leadership.follow(Leader(term=3))
    url = f"{address_of(pair[0])},{address_of(pair[1])}"
    with pytest.raises(NotLeaderError):
        await asyncio.to_thread(LeaderFinder(url, give_up_s=1.0).describe_leader)


def test_addresses_at_which_nobody_listens_are_all_named() -> None:
    addresses = ",".join(f"127.0.0.1:{port}" for port in free_ports(2))
    with pytest.raises(CoordinatorLostError, match=addresses):
        LeaderFinder(f"strata://{addresses}", give_up_s=1.0).describe_leader()


async def test_a_name_with_several_records_is_several_coordinators(monkeypatch: pytest.MonkeyPatch) -> None:
    (port,) = free_ports(1)
    records = ("127.0.0.2", "127.0.0.3")
    real = socket.getaddrinfo

    def resolve(host: Any, *arguments: Any, **fields: Any) -> Any:
        if host != "replicas.test":
            return real(host, *arguments, **fields)
        return [(socket.AF_INET, socket.SOCK_STREAM, 6, "", (record, port)) for record in records]

    monkeypatch.setattr(socket, "getaddrinfo", resolve)
    assert find_records(f"replicas.test:{port}") == tuple(f"{record}:{port}" for record in records)
    async with AsyncExitStack() as stack:
        configs = [CoordinatorConfig(grpc_address=f"{each}:{port}", channel_address=f"{each}:0") for each in records]
        standby, leader = [await stack.enter_async_context(Coordinator(config)) for config in configs]
        # It does not know who leads, so each record must be tried.
        standby.leadership.follow(Leader(term=1))
        with await asyncio.to_thread(Client, f"strata://replicas.test:{port}", "w") as client:
            await asyncio.to_thread(client.wait_registered, stretch(30))
            await asyncio.to_thread(client.close)
        assert "default" in leader.dispatcher.cluster


def test_one_address_and_both_families_of_one_machine_are_no_choice(monkeypatch: pytest.MonkeyPatch) -> None:
    assert find_records("127.0.0.1:1") == ()
    both = [
        (socket.AF_INET, socket.SOCK_STREAM, 6, "", ("127.0.0.1", 1)),
        (socket.AF_INET6, socket.SOCK_STREAM, 6, "", ("::1", 1, 0, 0)),
    ]
    monkeypatch.setattr(socket, "getaddrinfo", lambda *_, **__: both)
    assert find_records("localhost:1") == ()
