"""By which address the other workers reach the store of the process group."""

from __future__ import annotations

import socket
from typing import Any

import pytest

from tests.testbed.parts import LazyModule

process_group: Any = LazyModule("strata.integrations.torch_process_group")
pytestmark = pytest.mark.part("torch")


@pytest.mark.parametrize(
    "url", ["", "127.0.0.1:50051", "stratas://127.0.0.1:50051,127.0.0.2:50051", "strata://127.0.0.1,127.0.0.2"]
)
def test_a_coordinator_with_several_addresses_is_looked_for_at_the_first(
    url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COORDINATOR_URL", url)
    assert process_group._own_address() == "127.0.0.1"


def test_the_way_to_a_coordinator_may_be_of_ipv6(monkeypatch: pytest.MonkeyPatch) -> None:
    try:
        socket.create_server(("::1", 0), family=socket.AF_INET6).close()
    except OSError:
        pytest.skip("this machine has no IPv6")
    monkeypatch.setenv("COORDINATOR_URL", "[::1]:50051")
    assert process_group._own_address() == "::1"


def test_without_a_way_to_the_coordinator_the_store_is_for_this_machine_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    # The kernel lets nobody connect to the address of all.
    monkeypatch.setenv("COORDINATOR_URL", "255.255.255.255:50051")
    assert process_group._own_address() == "127.0.0.1"
