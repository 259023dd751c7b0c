"""Three coordinators on three nodes of etcd: one leads, and another one does when it cannot."""

from __future__ import annotations

import json
import math
import signal
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from pathlib import Path

import grpc
import pytest
from grpc_health.v1 import health_pb2, health_pb2_grpc

from strata.coordinator.server import SERVICE
from strata.errors import NotLeaderError
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
def etcd(tmp_path: Path) -> Iterator[EtcdCluster]:
    with EtcdCluster(tmp_path).serving() as cluster:
        yield cluster


@pytest.fixture
def replicas(etcd: EtcdCluster, tmp_path: Path) -> Iterator[Replicas]:
    # Nobody sends heartbeats here, and nobody is to be failed for it.
    with Replicas(tmp_path, etcd.url, "--lease", "600").serving() as replicas:
        yield replicas


def register(replicas: Replicas, place: int, worker: str) -> pb.Registered:
    with grpc.insecure_channel(replicas.addresses[place]) as channel:
        request = pb.RegisterWorker(worker_id=worker, incarnation="1")
        return stubs.CoordinatorStub(channel).RegisterWorker(request, timeout=stretch(10))


def workers(replicas: Replicas, place: int) -> dict[str, str]:
    with grpc.insecure_channel(replicas.addresses[place]) as channel:
        status = stubs.CoordinatorStub(channel).GetStatus(pb.GetStatus(), timeout=stretch(10))
    return {worker.worker_id: worker.state for job in status.jobs for worker in job.workers}


def ready(replicas: Replicas, place: int, query: str = "") -> tuple[int, dict[str, object]]:
    try:
        with urllib.request.urlopen(f"{replicas.http_urls[place]}/api/ready{query}", timeout=stretch(10)) as answer:
            return answer.status, json.load(answer)
    except urllib.error.HTTPError as error:
        return error.code, json.load(error)


def health(replicas: Replicas, place: int, service: str) -> object:
    with grpc.insecure_channel(replicas.addresses[place]) as channel:
        stub = health_pb2_grpc.HealthStub(channel)
        return stub.Check(health_pb2.HealthCheckRequest(service=service), timeout=stretch(10)).status


def test_one_leads_and_the_others_say_who_and_are_ready(replicas: Replicas) -> None:
    leader = replicas.leader()
    register(replicas, leader, "w")
    standbys = [place for place in range(3) if place != leader]
    address = replicas.addresses[leader]
    for place in standbys:
        wait_until(lambda place=place: (replicas.describe(place) or pb.Description()).leader == address, "the standby")
        wait_until(lambda place=place: (replicas.describe(place) or pb.Description()).applied == 1, "the journal")
        with pytest.raises(grpc.RpcError) as caught:
            register(replicas, place, "other")
        error = from_error(pb.Error.FromString(dict(caught.value.trailing_metadata())[ERROR_TRAILER]))
        assert isinstance(error, NotLeaderError)
        assert error.leader == address
        assert ready(replicas, place)[1] == {
            "ready": True,
            "reason": "",
            "role": "standby",
            "leader": address,
            "term": 1,
        }
        assert ready(replicas, place, "?role=leader")[0] == 503
        assert health(replicas, place, "") == health_pb2.HealthCheckResponse.SERVING
        assert health(replicas, place, SERVICE) == health_pb2.HealthCheckResponse.NOT_SERVING
        with urllib.request.urlopen(f"{replicas.http_urls[place]}/api/jobs?x=1", timeout=stretch(10)) as answer:
            assert answer.url == f"{replicas.http_urls[leader]}/api/jobs?x=1"
        with urllib.request.urlopen(f"{replicas.http_urls[place]}/metrics", timeout=stretch(10)) as answer:
            assert b"strata_coordinator_is_leader 0.0" in answer.read()
    assert ready(replicas, leader, "?role=leader")[0] == 200
    assert health(replicas, leader, SERVICE) == health_pb2.HealthCheckResponse.SERVING
    wait_until(
        lambda: list((replicas.describe(leader) or pb.Description()).replicas) == sorted(replicas.addresses), "the list"
    )
    command = [sys.executable, "-m", "strata", "status", "--coordinator", replicas.url, "--json"]
    told = json.loads(run_program(command, capture_output=True, check=True, timeout=stretch(30)).stdout)
    assert {row["address"]: (row["role"], row["lag"]) for row in told["replicas"]} == {
        each: ("leader" if each == address else "standby", 0) for each in replicas.addresses
    }


def test_kill_9_of_the_leader_lets_another_one_go_on_with_all_that_was_told(replicas: Replicas) -> None:
    first = replicas.leader()
    for number in range(5):
        register(replicas, first, f"w{number}")
    replicas.kill(first)
    second = replicas.leader()
    assert workers(replicas, second) == {f"w{number}": "initializing" for number in range(5)}
    register(replicas, second, "w5")
    assert (replicas.describe(second) or pb.Description()).term == 2
    replicas.start(first)
    wait_until(lambda: (replicas.describe(first) or pb.Description()).applied == 6, "the one that was killed")
    assert replicas.find_leaders() == [second]


def test_sigterm_hands_over_before_the_lease_ends(replicas: Replicas) -> None:
    first = replicas.leader()
    register(replicas, first, "w")
    assert replicas.stop(first) == 0
    # Its key is gone, so nobody has to wait for its lease.
    assert "this coordinator could not resign" not in replicas.log(first)
    second = replicas.leader()
    assert workers(replicas, second) == {"w": "initializing"}


def test_a_leader_that_was_frozen_beyond_its_lease_is_harmless(replicas: Replicas) -> None:
    first = replicas.leader()
    register(replicas, first, "w")
    replicas.signal(first, signal.SIGSTOP)
    second = replicas.leader(but=first)
    register(replicas, second, "later")
    replicas.signal(first, signal.SIGCONT)
    with pytest.raises(grpc.RpcError) as caught:
        register(replicas, first, "lost")
    assert caught.value.code() is grpc.StatusCode.UNAVAILABLE
    wait_until(lambda: (replicas.describe(first) or pb.Description()).applied == 2, "the one that was frozen")
    assert set(workers(replicas, second)) == {"w", "later"}
    assert replicas.find_leaders() == [second]


def test_kill_9_of_etcds_leader_costs_no_takeover(etcd: EtcdCluster, tmp_path: Path) -> None:
    # The default for an idle machine: etcd elects another leader in 1 to 2 s of it.
    lease_s = str(math.ceil(stretch(3)))
    with Replicas(tmp_path, etcd.url, "--lease", "600", "--leader-lease", lease_s).serving() as replicas:
        first = replicas.leader()
        register(replicas, first, "w")
        term = (replicas.describe(first) or pb.Description()).term
        killed = etcd.leader()
        etcd.kill(killed)
        assert etcd.leader() != killed
        register_until_taken(replicas, "later")
        # In the same term: nobody else has led meanwhile, not even for a moment.
        after = replicas.describe(first) or pb.Description()
        assert (after.is_leader, after.term, replicas.find_leaders()) == (True, term, [first])
        etcd.start(killed)
        etcd.wait_healthy()
        assert set(workers(replicas, first)) == {"w", "later"}
        assert (replicas.describe(first) or pb.Description()).term == term


def register_until_taken(replicas: Replicas, worker: str) -> None:
    def is_taken() -> bool:
        for place in replicas.find_leaders():
            try:
                register(replicas, place, worker)
            except grpc.RpcError:
                continue
            return True
        return False

    wait_until(is_taken, "a registration")


def test_without_a_quorum_of_etcd_nobody_answers_and_afterwards_all_is_as_it_was(
    etcd: EtcdCluster, replicas: Replicas
) -> None:
    first = replicas.leader()
    register(replicas, first, "w")
    etcd.kill(0)
    etcd.kill(1)
    wait_until(lambda: replicas.find_leaders() == [], "the leader's silence")
    with pytest.raises(grpc.RpcError):
        register(replicas, first, "lost")
    time.sleep(2)
    etcd.start(0)
    etcd.start(1)
    register_until_taken(replicas, "later")
    assert set(workers(replicas, replicas.leader())) == {"w", "later"}


def test_all_replicas_are_restarted_one_after_the_other(replicas: Replicas) -> None:
    register(replicas, replicas.leader(), "w")
    for place in range(3):
        assert replicas.stop(place) == 0
        replicas.start(place)
        replicas.leader()
        wait_until(lambda place=place: ready_role(replicas, place) is not None, "the restarted one")
    assert workers(replicas, replicas.leader()) == {"w": "initializing"}


def ready_role(replicas: Replicas, place: int) -> object:
    try:
        status, answer = ready(replicas, place)
    except OSError:
        return None
    return answer["role"] if status == 200 else None
