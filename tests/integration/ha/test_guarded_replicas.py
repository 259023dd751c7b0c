"""Replicas that ask for tokens: those of the journal count at every leader, and a standby lets nobody in."""

from __future__ import annotations

import sys
import urllib.error
import urllib.request
from collections.abc import Iterator
from pathlib import Path

import grpc
import pytest

from strata.client.client import Client
from strata.coordinator.entry.secret_tokens import make_token
from strata.errors import NotLeaderError, UnauthenticatedError
from strata.wire._generated import coordinator_pb2 as pb
from strata.wire._generated import coordinator_pb2_grpc as stubs
from strata.wire.errors import ERROR_TRAILER, from_error
from tests.testbed.ha.etcd import EtcdCluster
from tests.testbed.ha.replicas import Replicas
from tests.testbed.pace import stretch
from tests.testbed.process import run_program
from tests.testbed.waiting import wait_until

pytestmark = [pytest.mark.part("etcd"), pytest.mark.timeout(240)]


@pytest.fixture
def replicas(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Replicas]:
    admin = make_token().text
    file = tmp_path / "admin-token"
    file.write_text(admin)
    file.chmod(0o600)
    monkeypatch.setenv("STRATA_TOKEN", admin)
    with (
        EtcdCluster(tmp_path).serving() as etcd,
        Replicas(tmp_path, etcd.url, "--admin-token-file", str(file), token=admin).serving() as replicas,
    ):
        yield replicas


def create_token(replicas: Replicas) -> str:
    command = [sys.executable, "-m", "strata", "token", "create", "--role", "worker", "--coordinator", replicas.url]
    return run_program(command, check=True, capture_output=True, text=True, timeout=stretch(60)).stdout.split()[-1]


def test_a_worker_of_the_last_leader_is_let_in_by_the_next(replicas: Replicas, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("STRATA_TOKEN", create_token(replicas))
    with Client(replicas.url, "a") as worker:
        before = worker.wait_registered(stretch(30))
        replicas.kill(replicas.leader())
        wait_until(lambda: replicas.find_leaders() != [], "another one leads")
        assert worker.heartbeat(timeout_s=stretch(60)).generation == before.generation
    monkeypatch.setenv("STRATA_TOKEN", make_token().text)
    with Client(replicas.url, "b") as stranger, pytest.raises(UnauthenticatedError):
        stranger.wait_registered(stretch(60))


def test_a_standby_says_where_the_leader_is_and_nothing_else_whatever_the_token(replicas: Replicas) -> None:
    leader = replicas.leader()
    standby = next(place for place in range(3) if place != leader)
    with grpc.insecure_channel(replicas.addresses[standby]) as channel:
        stub = stubs.CoordinatorStub(channel)
        address = replicas.addresses[leader]
        wait_until(
            lambda: stub.Describe(pb.Describe(), timeout=stretch(10), wait_for_ready=True).leader == address,
            "it knows the leader",
        )
        for call, request in ((stub.GetStatus, pb.GetStatus()), (stub.GetKey, pb.GetKey(key="k"))):
            with pytest.raises(grpc.RpcError) as caught:
                call(request, timeout=stretch(10))
            trailers = dict(caught.value.trailing_metadata())
            assert isinstance(from_error(pb.Error.FromString(trailers[ERROR_TRAILER])), NotLeaderError)
    with pytest.raises(urllib.error.HTTPError) as refused:
        urllib.request.urlopen(f"{replicas.http_urls[standby]}/api/jobs", timeout=stretch(10))
    with refused.value:
        assert refused.value.code in (401, 503)
