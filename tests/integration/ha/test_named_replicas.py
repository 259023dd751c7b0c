"""Replicas behind one name with TLS: which names the certificate needs, and what happens without them."""

from __future__ import annotations

import socket
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from strata.client.client import Client
from strata.client.http_reader import HttpReader
from strata.client.unary import get_key, set_key
from strata.coordinator.entry.certificates import make_certificates
from strata.errors import UntrustedCoordinatorError
from tests.testbed.ha.etcd import EtcdCluster
from tests.testbed.ha.replicas import Replicas
from tests.testbed.pace import stretch
from tests.testbed.process import free_ports
from tests.testbed.waiting import wait_until

pytestmark = [pytest.mark.part("etcd"), pytest.mark.timeout(240)]

NAME = "coordinators.test"
HOSTS = ["127.0.0.2", "127.0.0.3", "127.0.0.4"]


@pytest.fixture
def port(monkeypatch: pytest.MonkeyPatch) -> int:
    """The port of all replicas: a name has only records of hosts."""
    (port,) = free_ports(1)
    real = socket.getaddrinfo

    def resolve(host: Any, *arguments: Any, **fields: Any) -> Any:
        if host != NAME:
            return real(host, *arguments, **fields)
        return [(socket.AF_INET, socket.SOCK_STREAM, 6, "", (record, port)) for record in HOSTS]

    monkeypatch.setattr(socket, "getaddrinfo", resolve)
    return port


@contextmanager
def replicas(folder: Path, port: int, *names: str) -> Iterator[Replicas]:
    """Run replicas whose certificate has these names."""
    files = make_certificates(folder / "tls", hosts=names, days=1)
    with EtcdCluster(folder).serving() as etcd:
        options = ("--lease", "600", "--tls-cert", str(files.cert), "--tls-key", str(files.key))
        trusted = files.ca, names[0]
        with Replicas(folder, etcd.url, *options, hosts=HOSTS, port=port, trusted=trusted).serving() as served:
            yield served


def test_one_name_leads_to_the_leader_on_the_channel_also_after_a_takeover(
    tmp_path: Path, port: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("STRATA_TLS_CA", str(tmp_path / "tls" / "ca.pem"))
    url = f"stratas://{NAME}:{port}"
    with replicas(tmp_path, port, NAME, *HOSTS) as served, Client(url, "w") as worker:
        before = worker.wait_registered(stretch(60))
        assert worker.transport == "channel"
        assert set_key(url, "default", "k", b"v", token=0).is_set
        # The keep-alive process learns where all of them are, though only the name was given.
        wait_until(lambda: len(worker._driver.channels) == len(HOSTS), "the channels of all records")
        served.kill(served.leader())
        served.leader()
        assert worker.heartbeat(timeout_s=stretch(60)).generation == before.generation
        assert worker.transport == "channel"
        assert get_key(url, "default", "k").value == b"v"


def test_the_name_alone_on_the_certificate_is_enough_for_channel_and_http(
    tmp_path: Path, port: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What replicas advertise are numbers, as those of pods, which no certificate has."""
    monkeypatch.setenv("STRATA_TLS_CA", str(tmp_path / "tls" / "ca.pem"))
    url = f"stratas://{NAME}:{port}"
    with replicas(tmp_path, port, NAME) as served, Client(url, "w") as worker:
        before = worker.wait_registered(stretch(60))
        assert worker.transport == "channel"
        served.kill(served.leader())
        served.leader()
        assert worker.heartbeat(timeout_s=stretch(60)).generation == before.generation
        assert worker.transport == "channel"
        assert set_key(url, "default", "k", b"v", token=0).is_set
        assert HttpReader.of_leader(url).get("/api/health")["status"] == "ok"


@pytest.mark.slow
def test_without_the_name_on_the_certificate_nobody_is_trusted(
    tmp_path: Path, port: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("STRATA_TLS_CA", str(tmp_path / "tls" / "ca.pem"))
    with replicas(tmp_path, port, *HOSTS), pytest.raises(UntrustedCoordinatorError, match="mismatch"):
        get_key(f"stratas://{NAME}:{port}", "default", "k")
