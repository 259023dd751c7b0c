"""``strata events --follow`` and ``strata status --watch`` on three coordinators, of which the leader is killed."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import grpc
import pytest

from strata.wire._generated import coordinator_pb2 as pb
from strata.wire._generated import coordinator_pb2_grpc as stubs
from tests.testbed.ha.etcd import EtcdCluster
from tests.testbed.ha.replicas import Replicas
from tests.testbed.pace import stretch
from tests.testbed.process import end, start
from tests.testbed.waiting import wait_until

pytestmark = [pytest.mark.part("etcd"), pytest.mark.timeout(240)]


@pytest.fixture
def replicas(tmp_path: Path) -> Iterator[Replicas]:
    with (
        EtcdCluster(tmp_path).serving() as etcd,
        # Nobody sends heartbeats here, and nobody is to be failed for it.
        Replicas(tmp_path, etcd.url, "--lease", "600").serving() as replicas,
    ):
        yield replicas


class Shown:
    """What a command that goes on until Ctrl-C has printed."""

    def __init__(self, path: Path) -> None:
        self._path = path

    @property
    def text(self) -> str:
        return self._path.read_text()

    def events(self) -> list[dict[str, Any]]:
        return [json.loads(line) for line in self.text.splitlines(keepends=True) if line.endswith("\n")]

    def wait_for(self, words: str) -> None:
        wait_until(lambda: words in self.text, lambda: f"{words!r}; it printed\n{self.text[-2_000:]}")


@contextmanager
def shown(folder: Path, *arguments: str) -> Iterator[Shown]:
    command = [sys.executable, "-m", "strata", *arguments]
    with (folder / "shown").open("wb") as output, (folder / "errors").open("wb") as errors:
        process = start(command, stdin=subprocess.DEVNULL, stdout=output, stderr=errors)
    try:
        yield Shown(folder / "shown")
        assert process.poll() is None, (folder / "errors").read_text()
        process.send_signal(signal.SIGINT)
        assert process.wait(stretch(20)) == 130
        assert (folder / "errors").read_text() == ""
    finally:
        end(process)


def join(replicas: Replicas, place: int, *workers: str) -> None:
    with grpc.insecure_channel(replicas.addresses[place]) as channel:
        for worker in workers:
            request = pb.RegisterWorker(worker_id=worker, incarnation="1")
            stubs.CoordinatorStub(channel).RegisterWorker(request, timeout=stretch(10))


def stall(replicas: Replicas, place: int, worker: str) -> None:
    """Let a leader tell what is not in the journal: whoever leads next counts one event less."""
    command = pb.Command(report_stall=pb.ReportStall(worker_id=worker, incarnation="1", reason="its data is late"))
    with grpc.insecure_channel(replicas.addresses[place]) as channel:
        frames = stubs.CoordinatorStub(channel).Channel(iter([pb.ClientFrame(id=1, command=command)]))
        assert next(iter(frames)).reply.HasField("done")


def test_events_go_on_at_the_next_leader_and_each_is_told_once(replicas: Replicas, tmp_path: Path) -> None:
    join(replicas, replicas.leader(), "before")
    with shown(tmp_path, "events", "--follow", "--json", "--coordinator", replicas.url) as told:
        told.wait_for("before joined")
        first = replicas.leader()
        join(replicas, first, "a", "b")
        stall(replicas, first, "a")
        told.wait_for("its data is late")
        # This one may be told by the first leader or by the second, and is told by one of them.
        join(replicas, first, "at-the-last")
        replicas.kill(first)
        second = replicas.leader()
        join(replicas, second, "c")
        told.wait_for("c joined")
        replicas.start(first)
        assert replicas.stop(second) == 0
        third = replicas.leader()
        join(replicas, third, "d")
        told.wait_for("d joined")
        lines = [(each["kind"], each["reason"].partition(": ")[2]) for each in told.events()]
    joined = [("generation changed", f"{who} joined") for who in ("before", "a", "b", "at-the-last", "c", "d")]
    assert lines == [*joined[:3], ("stalled", ""), *joined[3:]]


def test_status_goes_on_at_the_next_leader(replicas: Replicas, tmp_path: Path) -> None:
    first = replicas.leader()
    join(replicas, first, "a")
    with shown(tmp_path, "status", "--watch", "--coordinator", replicas.url) as told:
        told.wait_for("generation 1")
        replicas.kill(first)
        join(replicas, replicas.leader(), "b")
        told.wait_for("generation 2")
