"""The addresses that a coordinator is given: what it tells others can be parsed, and what cannot is refused at once."""

from __future__ import annotations

import asyncio
import socket
import sys
from pathlib import Path
from typing import Any

import pytest

from strata.address import reachable
from strata.client.unary import ask
from strata.coordinator.server import Coordinator, CoordinatorConfig
from strata.wire._generated import coordinator_pb2 as pb
from tests.testbed.pace import stretch
from tests.testbed.process import run_program

ADVERTISED = ("advertise_grpc", "advertise_channel", "advertise_http")


@pytest.mark.parametrize("name", [*ADVERTISED, "grpc_address", "channel_address", "http_address"])
@pytest.mark.parametrize(
    ("address", "words"),
    [
        ("::1:50051", r"an IPv6 address needs brackets, such as \[::1\]:50051"),
        ("fd00::5", r"an IPv6 address needs brackets, such as \[fd00::5\]:50051"),
        ("host", "it has no port; use host:port"),
        ("http://host:50051", "use host:port"),
    ],
)
def test_an_address_that_nobody_could_parse_is_refused(name: str, address: str, words: str) -> None:
    given: dict[str, Any] = {name: address}
    with pytest.raises(ValueError, match=words):
        CoordinatorConfig(**given)


@pytest.mark.parametrize("name", ADVERTISED)
def test_nobody_is_told_to_connect_to_port_0(name: str) -> None:
    given: dict[str, Any] = {name: "host:0"}
    with pytest.raises(ValueError, match="nobody is reached at port 0"):
        CoordinatorConfig(**given)


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["coordinator", "--advertise-grpc", "::1:50051"], "an IPv6 address needs brackets, such as [::1]:50051"),
        (["coordinator", "--listen", "127.0.0.1:50051"], "use a name or an address without a port"),
        (["coordinator", "--http-host", "[::1]:8080"], "use a name or an address without a port"),
        (["dashboard", "--host", "127.0.0.1:3000"], "use a name or an address without a port"),
    ],
)
def test_the_command_line_shows_the_right_form(tmp_path: Path, arguments: list[str], words: str) -> None:
    command = [sys.executable, "-m", "strata", *arguments]
    refused = run_program(command, cwd=tmp_path, capture_output=True, text=True, timeout=stretch(30))
    assert refused.returncode == 2
    assert words in " ".join(refused.stderr.replace("│", "").split())
    assert list(tmp_path.iterdir()) == []


def has_ipv6() -> bool:
    try:
        socket.create_server(("::1", 0), family=socket.AF_INET6).close()
    except OSError:
        return False
    return True


@pytest.mark.skipif(not has_ipv6(), reason="this machine has no IPv6")
async def test_a_coordinator_on_ipv6_tells_addresses_that_a_client_can_use() -> None:
    config = CoordinatorConfig(
        grpc_address="[::1]:0",
        channel_address="[::1]:0",
        http_address="[::1]:0",
        advertise_http="[fd00::5]:8080",
        version="test",
    )
    async with Coordinator(config) as coordinator:
        address = f"[::1]:{coordinator.grpc_port}"
        told = await asyncio.to_thread(ask, address, lambda stub: stub.Describe(pb.Describe(), timeout=stretch(5)))
    assert reachable(told.channel_url, address) == f"ws://[::1]:{coordinator.channel_port}"
    assert reachable(told.http_url, address) == "http://[fd00::5]:8080"
