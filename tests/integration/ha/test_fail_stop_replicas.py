"""What ends one coordinator is survived by its replicas; what ends all of them is an etcd that lost the journal."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from strata.client.client import Client
from strata.client.unary import get_key, set_key
from strata.cluster import commands as c
from strata.coordinator.etcd.etcd_client import EtcdClient
from strata.coordinator.etcd.target import EtcdTarget
from strata.coordinator.failing.fail_stop import EXIT_CODE
from strata.coordinator.journal.etcd.records import Keys
from strata.wire._generated import etcd_pb2 as ep
from tests.testbed.ha.etcd import EtcdCluster
from tests.testbed.ha.replicas import Replicas
from tests.testbed.pace import stretch
from tests.testbed.waiting import wait_until

pytestmark = [pytest.mark.part("etcd"), pytest.mark.timeout(300)]


def applied(replicas: Replicas, place: int) -> int:
    told = replicas.describe(place)
    return 0 if told is None else told.applied


def exit_code(replicas: Replicas, place: int) -> int:
    process = replicas.processes[place]
    assert process is not None
    return process.wait(stretch(60))


def test_etcd_that_was_killed_and_wiped_ends_every_coordinator_and_none_leads_with_nothing(tmp_path: Path) -> None:
    with EtcdCluster(tmp_path, nodes=1).serving() as etcd, Replicas(tmp_path, etcd.url).serving() as replicas:
        set_key(replicas.url, "default", "k", b"v", token=0)
        for place in range(3):
            wait_until(lambda place=place: applied(replicas, place) >= 1, "it knows what the journal holds")
        etcd.kill(0)
        (data,) = [folder for folder in tmp_path.iterdir() if (folder / "member").is_dir()]
        shutil.rmtree(data)
        etcd.start(0)
        assert [exit_code(replicas, place) for place in range(3)] == [EXIT_CODE] * 3
        for place in range(3):
            (line,) = [line for line in replicas.log(place).splitlines() if '"CRITICAL"' in line]
            assert "it was wiped, or put back to an older state" in line
            assert "import an export under a new prefix" in line
            assert "leading in term" not in replicas.log(place).split("CRITICAL")[1]


def test_a_leader_that_ends_by_itself_is_followed_by_a_standby_that_has_everything(tmp_path: Path) -> None:
    with (
        EtcdCluster(tmp_path, nodes=1).serving() as etcd,
        Replicas(tmp_path, etcd.url).serving() as replicas,
        Client(replicas.url, "w") as worker,
    ):
        kept = set_key(replicas.url, "default", "k", b"v", token=0)
        generation = worker.wait_registered(stretch(60)).generation
        leader = replicas.leader()
        client = EtcdClient(EtcdTarget(endpoints=etcd.endpoints, prefix="strata"))
        head = Keys("strata").head
        try:
            # A head that cannot be read: the leader's next write finds that the journal is damaged.
            good = client.range(ep.RangeRequest(key=head), timeout_s=stretch(10)).kvs[0].value
            put(client, head, b"\xff\xff\xff")
            written = worker.tell(c.RegisterDataset(dataset_id="d", total_samples=9, shard_size=1))
            assert exit_code(replicas, leader) == EXIT_CODE
            put(client, head, good)
        finally:
            client.close()
        written.result(stretch(60))
        assert replicas.leader() != leader
        assert get_key(replicas.url, "default", "k").token == kept.token
        assert worker.heartbeat(timeout_s=stretch(60)).generation == generation


def put(client: EtcdClient, key: bytes, value: bytes) -> None:
    operation = ep.RequestOp(request_put=ep.PutRequest(key=key, value=value))
    client.transact(ep.TxnRequest(success=[operation]), timeout_s=stretch(10))
