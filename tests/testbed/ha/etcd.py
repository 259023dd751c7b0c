"""Journals in a real etcd, and clusters of three nodes that can be killed one by one."""

from __future__ import annotations

import json
import os
import subprocess
import uuid
from contextlib import contextmanager, suppress
from typing import TYPE_CHECKING

from scripts.parts import find_program
from strata.coordinator.etcd.etcd_client import ATTEMPT_S, EtcdClient, EtcdRefusedError
from strata.coordinator.etcd.target import EtcdTarget
from strata.coordinator.journal.etcd.etcd_journal import EtcdJournal, Term
from strata.demo.etcd_nodes import etcd_command
from strata.wire._generated import etcd_pb2 as ep
from strata.wire._generated import journal_pb2 as jp
from tests.testbed.pace import stretch
from tests.testbed.process import end, free_ports, start
from tests.testbed.servers import request
from tests.testbed.waiting import wait_until

if TYPE_CHECKING:
    import signal
    from collections.abc import Iterator, Sequence
    from pathlib import Path

    from strata.coordinator.journal import Journal
    from tests.testbed.servers import EtcdServer

LEASE_S = 60
FILLER_BYTES = 1 << 20


def new_target(server: EtcdServer) -> EtcdTarget:
    """Return a place in etcd where nothing is."""
    return EtcdTarget(endpoints=(server.endpoint.removeprefix("http://"),), prefix=f"test-{uuid.uuid4().hex}")


class PatientClient(EtcdClient):
    """A client for what a test itself reads and changes: it repeats a call for as long as a busy machine needs."""

    def range(self, request: ep.RangeRequest, *, timeout_s: float = ATTEMPT_S) -> ep.RangeResponse:
        """Read keys."""
        return self.insist(lambda: EtcdClient.range(self, request, timeout_s=timeout_s), give_up_s=stretch(30))

    def transact(self, request: ep.TxnRequest, *, timeout_s: float = ATTEMPT_S) -> ep.TxnResponse:
        """Carry out a transaction, of which it does not matter whether it is carried out twice."""
        return self.insist(lambda: EtcdClient.transact(self, request, timeout_s=timeout_s), give_up_s=stretch(30))

    def grant_lease(self, ttl_s: int, *, timeout_s: float = ATTEMPT_S) -> ep.LeaseGrantResponse:
        """Make a lease."""
        return self.insist(lambda: EtcdClient.grant_lease(self, ttl_s, timeout_s=timeout_s), give_up_s=stretch(30))


def lead(target: EtcdTarget) -> EtcdJournal:
    """Return a journal that may be written, as its leader; there must be no other one."""
    client, journal = PatientClient(target), EtcdJournal(target)
    lease = client.grant_lease(LEASE_S).ID
    term = stand(client, journal, lease)
    client.close()
    assert term is not None, "another one leads"
    journal.begin_term(term)
    return journal


def stand(client: EtcdClient, journal: EtcdJournal, lease: int) -> Term | None:
    """Let a journal try to lead until etcd answers, as a coordinator does."""
    return client.insist(lambda: journal.stand(jp.Replica(grpc="127.0.0.1:1"), lease=lease), give_up_s=stretch(30))


def resign(journal: Journal) -> None:
    """End a leadership, if it has not ended."""
    assert isinstance(journal, EtcdJournal)
    journal.resign()


class EtcdCluster:
    """Etcd nodes on this machine, each a process that can be killed, frozen and started again on its data."""

    def __init__(self, folder: Path, *options: str, nodes: int = 3) -> None:
        ports = free_ports(2 * nodes)
        self._folder = folder
        self._options = options
        self._ports = list(zip(ports[:nodes], ports[nodes:], strict=True))
        self.processes: list[subprocess.Popen[bytes] | None] = [None] * nodes
        self.endpoints = tuple(f"127.0.0.1:{port}" for port, _ in self._ports)
        self.url = f"etcd://{','.join(self.endpoints)}/strata"

    @contextmanager
    def serving(self) -> Iterator[EtcdCluster]:
        """Run all nodes until the block ends."""
        try:
            for node in range(len(self._ports)):
                self.start(node)
            self.wait_healthy()
            yield self
        finally:
            for process in self.processes:
                if process is not None:
                    end(process)

    def start(self, node: int) -> None:
        """Start a node, or start it again."""
        command = [*etcd_command(node, self._folder, self._ports), *self._options]
        with (self._folder / f"etcd-{node}.log").open("ab") as log:
            self.processes[node] = start(command, stdin=subprocess.DEVNULL, stdout=log, stderr=log)

    def kill(self, node: int) -> None:
        """Kill -9 of a node."""
        process = self.processes[node]
        assert process is not None
        end(process)
        self.processes[node] = None

    def signal(self, node: int, number: signal.Signals) -> None:
        """Send a signal to a node, such as SIGSTOP."""
        process = self.processes[node]
        assert process is not None
        process.send_signal(number)

    def leader(self) -> int:
        """Return the node that leads etcd, as the nodes that answer say."""
        wait_until(lambda: self._find_leader() is not None, "a leader of etcd")
        found = self._find_leader()
        assert found is not None
        return found

    def wait_healthy(self) -> None:
        """Wait until every node that runs takes writes."""
        for node, process in enumerate(self.processes):
            if process is not None:
                wait_until(lambda node=node: self._answers(node), f"etcd node {node}")

    def target(self) -> EtcdTarget:
        """Return a place in this cluster where nothing is."""
        return EtcdTarget(endpoints=self.endpoints, prefix=f"test-{uuid.uuid4().hex}")

    def control(self, *arguments: str, endpoints: Sequence[str] | None = None) -> str:
        """Run etcdctl and return what it prints."""
        program = find_program("etcdctl")
        assert program is not None
        command = [program, f"--endpoints={','.join(endpoints or self.endpoints)}", *arguments]
        environment = {**os.environ, "ETCDCTL_API": "3"}
        done = subprocess.run(command, env=environment, capture_output=True, text=True, check=True, timeout=stretch(30))
        return done.stdout

    def fill(self, quota_bytes: int) -> None:
        """Write until etcd refuses for want of space, and raises its alarm."""
        client = PatientClient(EtcdTarget(endpoints=self.endpoints, prefix="filler"))
        try:
            for number in range(2 * quota_bytes // FILLER_BYTES):
                put = ep.PutRequest(key=b"filler/%d" % number, value=bytes(FILLER_BYTES))
                request = ep.TxnRequest(success=[ep.RequestOp(request_put=put)])
                client.transact(request)
        except EtcdRefusedError:
            return
        finally:
            client.close()
        raise AssertionError("etcd takes more than its quota")

    def make_room(self) -> None:
        """Do what an operator does after it was filled: compact, defragment, then disarm the alarm."""
        self.control("del", "--prefix", "filler/")
        found = self.control("get", "filler/none", "-w", "json")
        self.control("compact", found.partition('"revision":')[2].partition(",")[0].rstrip("}\n"))
        for endpoint in self.endpoints:
            self.control("--command-timeout=30s", "defrag", endpoints=[endpoint])
        self.control("alarm", "disarm")

    def _answers(self, node: int) -> bool:
        with suppress(OSError, ValueError):
            return b"true" in request("GET", f"http://{self.endpoints[node]}/health")
        return False

    def _find_leader(self) -> int | None:
        for node, process in enumerate(self.processes):
            if process is None:
                continue
            with suppress(OSError, ValueError):
                status = json.loads(request("POST", f"http://{self.endpoints[node]}/v3/maintenance/status", b"{}"))
                if status.get("leader") == status["header"]["member_id"]:
                    return node
        return None
