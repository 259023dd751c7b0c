"""Where a user's http_proxy is set, connections within the cluster are still direct."""

from __future__ import annotations

import socket
from pathlib import Path

import pytest

from strata.client.client import Client
from strata.client.description import describe
from strata.client.dial import Dial
from strata.client.http_reader import HttpReader
from strata.coordinator.etcd.etcd_client import EtcdClient
from strata.errors import CoordinatorLostError
from strata.wire._generated import etcd_pb2 as ep
from tests.testbed.coordinator import serving_in_thread
from tests.testbed.ha.etcd import new_target
from tests.testbed.network.one_connection import one_connection
from tests.testbed.pace import stretch
from tests.testbed.process import free_ports
from tests.testbed.servers import EtcdServer


@pytest.fixture(autouse=True)
def _dead_proxy(monkeypatch: pytest.MonkeyPatch) -> None:
    """Send what uses a proxy to a port where nobody listens."""
    (port,) = free_ports(1)
    for name in ("http_proxy", "https_proxy", "all_proxy"):
        for variable in (name, name.upper()):
            monkeypatch.setenv(variable, f"http://127.0.0.1:{port}")
    for variable in ("no_proxy", "NO_PROXY", "grpc_proxy"):
        monkeypatch.delenv(variable, raising=False)


def test_a_worker_and_a_reader_reach_the_coordinator_without_the_proxy(tmp_path: Path) -> None:
    with serving_in_thread(tmp_path) as service, Client(service.url, "w") as client:
        client.wait_registered(timeout_s=stretch(20))
        assert client.heartbeat(timeout_s=stretch(20)).world_size == 1
        (job,) = HttpReader.of_leader(service.url).get("/api/jobs")["jobs"]
        assert job["job_id"] == "default"


def test_a_proxy_that_is_meant_for_grpc_is_used(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    asked = []

    def refuse(connection: socket.socket) -> None:
        asked.append(connection.recv(4096).splitlines()[0])
        connection.sendall(b"HTTP/1.1 403 Forbidden\r\n\r\n")

    with serving_in_thread(tmp_path) as service, one_connection(refuse) as proxy:
        monkeypatch.setenv("grpc_proxy", f"http://{proxy}")
        with pytest.raises(CoordinatorLostError):
            describe(Dial.to(service.url), service.url, name=service.url, timeout_s=stretch(20))
        assert asked == [f"CONNECT {service.url} HTTP/1.1".encode()]


def test_etcd_is_reached_without_the_proxy(etcd_server: EtcdServer) -> None:
    client = EtcdClient(new_target(etcd_server))
    assert client.range(ep.RangeRequest(key=b"nothing"), timeout_s=stretch(20)).count == 0
    client.close()
