"""Coordinators on an etcd that is slow, full, or has lost its quorum: what they say meanwhile, and afterwards."""

from __future__ import annotations

import json
import signal
import threading
import time
import urllib.error
import urllib.request
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import grpc
import pytest

from strata.client.client import Client
from strata.client.unary import get_key, set_key
from strata.errors import JournalUnavailableError
from strata.wire._generated import coordinator_pb2 as pb
from strata.wire._generated import coordinator_pb2_grpc as stubs
from tests.ha.etcd_proxy import EtcdProxy
from tests.testbed.ha.etcd import EtcdCluster
from tests.testbed.ha.replicas import Replicas
from tests.testbed.pace import stretch
from tests.testbed.waiting import wait_until

pytestmark = [pytest.mark.part("etcd"), pytest.mark.timeout(400)]

QUOTA_BYTES = 24 << 20
SLOW_S = 0.1  # each way: 200 ms for a call
OUTAGE_S = 30.0


@pytest.fixture
def etcd(tmp_path: Path) -> Iterator[EtcdCluster]:
    with EtcdCluster(tmp_path, f"--quota-backend-bytes={QUOTA_BYTES}").serving() as cluster:
        yield cluster


def term_of(replicas: Replicas, place: int) -> tuple[bool, int]:
    told = replicas.describe(place) or pb.Description()
    return told.is_leader, told.term


def ready(replicas: Replicas, place: int) -> tuple[int, str]:
    try:
        with urllib.request.urlopen(f"{replicas.http_urls[place]}/api/ready", timeout=stretch(10)) as answer:
            return answer.status, json.load(answer)["reason"]
    except urllib.error.HTTPError as error:
        with error:
            return error.code, json.load(error)["reason"]


def leads(replicas: Replicas, place: int) -> bool:
    url = f"{replicas.http_urls[place]}/api/ready?role=leader"
    try:
        with urllib.request.urlopen(url, timeout=stretch(10)):
            return True
    except urllib.error.HTTPError as error:
        error.close()
        return False


def test_a_full_etcd_refuses_in_words_keeps_the_leader_and_goes_on_by_itself(etcd: EtcdCluster, tmp_path: Path) -> None:
    with (
        Replicas(tmp_path, etcd.url, "--leader-lease", "15").serving() as replicas,
        Client(replicas.url, "w") as worker,
    ):
        generation = worker.wait_registered(stretch(60)).generation
        leader = replicas.leader()
        before = term_of(replicas, leader)
        kept = set_key(replicas.url, "default", "k", b"before", token=0)
        etcd.fill(QUOTA_BYTES)
        try:
            with pytest.raises(JournalUnavailableError, match="etcd is out of space: compact and defragment it"):
                set_key(replicas.addresses[leader], "default", "k", b"refused", token=kept.token)
            status, reason = ready(replicas, leader)
            assert status == 503
            assert "out of space" in reason
            # What needs no journal goes on.
            assert worker.heartbeat(timeout_s=stretch(30)).generation == generation
            assert get_key(replicas.url, "default", "k").token == kept.token
        finally:
            etcd.make_room()
        wait_until(lambda: ready(replicas, leader)[0] == 200, "it takes commands again, without a restart")
        assert set_key(replicas.url, "default", "k", b"after", token=kept.token).is_set
        assert term_of(replicas, leader) == before
        assert worker.heartbeat(timeout_s=stretch(30)).generation == generation


@pytest.mark.slow
def test_an_etcd_that_takes_200_ms_costs_no_takeover_and_allows_one(etcd: EtcdCluster, tmp_path: Path) -> None:
    targets = [(host, int(port)) for host, _, port in (each.partition(":") for each in etcd.endpoints)]
    proxy = EtcdProxy("127.0.0.1", targets)
    try:
        state = f"etcd://{','.join(proxy.endpoints)}/strata"
        # The default for an idle machine; a call may take as long as a beat of it.
        lease_s = str(int(stretch(3)) + 1)
        with (
            Replicas(tmp_path, state, "--leader-lease", lease_s).serving() as replicas,
            Client(replicas.url, "w") as worker,
        ):
            generation = worker.wait_registered(stretch(60)).generation
            leader = replicas.leader()
            before = term_of(replicas, leader)
            proxy.delay_s = SLOW_S
            token = 0
            began_s = time.monotonic()
            # Each is durable before the next is sent; all of them take longer than the lease.
            while time.monotonic() - began_s < 2 * float(lease_s):
                token = set_key(replicas.url, "default", "k", b"v", token=token).token
            assert term_of(replicas, leader) == before
            replicas.kill(leader)
            successor = replicas.leader()
            assert term_of(replicas, successor)[1] > before[1]
            assert get_key(replicas.url, "default", "k").token == token
            assert worker.heartbeat(timeout_s=stretch(60)).generation == generation
    finally:
        proxy.close()


def test_an_etcd_that_stops_for_less_than_the_lease_fails_no_worker_and_refuses_nobody(
    etcd: EtcdCluster, tmp_path: Path
) -> None:
    lease_s = str(int(stretch(9)))
    with (
        Replicas(tmp_path, etcd.url, "--leader-lease", lease_s).serving() as replicas,
        Client(replicas.url, "a") as first,
        Client(replicas.url, "b") as second,
    ):
        leader = replicas.leader()
        for client in (first, second):
            client.wait_registered(stretch(60))
        generation = first.heartbeat(timeout_s=stretch(30)).generation
        steps: Counter[str] = Counter()
        problems: list[Exception] = []
        ended = threading.Event()

        def train(client: Client, name: str) -> None:
            try:
                is_last = False
                while not is_last:
                    payload = b"last" if ended.is_set() else b""
                    met = client.meet("step", timeout_s=stretch(120), generation=generation, payload=payload)
                    steps[name] += 1
                    is_last = b"last" in met.payloads
            except Exception as error:  # noqa: BLE001 - the test reports it
                problems.append(error)

        threads = [threading.Thread(target=train, args=each) for each in ((first, "a"), (second, "b"))]
        for thread in threads:
            thread.start()
        wait_until(lambda: steps["a"] > 10, "they train")
        before = term_of(replicas, leader)
        for node in range(3):
            etcd.signal(node, signal.SIGSTOP)
        try:
            wait_until(lambda: not leads(replicas, leader), "the leader is in doubt")
            with grpc.insecure_channel(replicas.addresses[leader]) as channel:
                stub = stubs.CoordinatorStub(channel)
                held = [
                    stub.SetKey.future(pb.SetKey(key="k", value=b"held", writer="w"), timeout=stretch(60)),
                    stub.GetStatus.future(pb.GetStatus(), timeout=stretch(60)),
                ]
                wait_until(lambda: term_of(replicas, leader) == before, "it answers for itself meanwhile")
                for node in range(3):
                    etcd.signal(node, signal.SIGCONT)
                assert held[0].result().is_set
                assert {worker.worker_id for job in held[1].result().jobs for worker in job.workers} == {"a", "b"}
        finally:
            for node in range(3):
                etcd.signal(node, signal.SIGCONT)
        so_far = steps["a"]
        wait_until(lambda: steps["a"] > so_far + 10 or bool(problems), "they train on")
        ended.set()
        for thread in threads:
            thread.join()
        assert problems == []
        assert term_of(replicas, leader) == before
        assert first.heartbeat(timeout_s=stretch(30)).generation == generation


@pytest.mark.slow
def test_30_s_without_a_quorum_fail_no_worker_and_lose_no_barrier(etcd: EtcdCluster, tmp_path: Path) -> None:
    with (
        Replicas(tmp_path, etcd.url).serving() as replicas,
        Client(replicas.url, "a") as first,
        Client(replicas.url, "b") as second,
    ):
        for client in (first, second):
            client.wait_registered(stretch(60))
        generation = first.heartbeat(timeout_s=stretch(30)).generation
        etcd.kill(0)
        etcd.kill(1)
        wait_until(lambda: replicas.find_leaders() == [], "nobody leads")
        released: list[str] = []

        def meet(client: Client) -> None:
            released.append(client.meet("b", timeout_s=stretch(300), generation=generation).name)

        threads = [threading.Thread(target=meet, args=(client,)) for client in (first, second)]
        for thread in threads:
            thread.start()
        # Three times as long as a worker's lease.
        time.sleep(OUTAGE_S)
        assert released == []
        assert replicas.find_leaders() == []
        etcd.start(0)
        etcd.start(1)
        for thread in threads:
            thread.join()
        assert released == ["b", "b"]
        # Nobody was failed for what etcd lacked.
        assert first.heartbeat(timeout_s=stretch(60)).generation == generation
