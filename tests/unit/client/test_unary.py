"""Calls of tools: each gRPC error is reported in words."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor

import grpc
import pytest

from strata.client.unary import ask
from strata.errors import CoordinatorLostError, StrataError
from strata.wire._generated import coordinator_pb2 as pb
from tests.testbed.pace import stretch
from tests.testbed.process import free_ports


def get_status(address: str) -> object:
    return ask(address, lambda stub: stub.GetStatus(pb.GetStatus(), timeout=stretch(20)))


def test_a_service_that_is_not_a_coordinators_is_quoted() -> None:
    server = grpc.server(ThreadPoolExecutor(1))
    address = f"127.0.0.1:{server.add_insecure_port('127.0.0.1:0')}"
    server.start()
    try:
        with pytest.raises(StrataError) as caught:
            get_status(address)
    finally:
        server.stop(None).wait()
    assert str(caught.value) == f"the coordinator at {address} answered UNIMPLEMENTED: Method not found!"


def test_a_port_that_nobody_listens_on_is_a_coordinator_that_is_lost() -> None:
    (port,) = free_ports(1)
    with pytest.raises(CoordinatorLostError) as caught:
        get_status(f"127.0.0.1:{port}")
    assert caught.value.address == f"127.0.0.1:{port}"
