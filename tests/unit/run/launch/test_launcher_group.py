"""One launcher's part in what the launchers of all machines agree on, at a real coordinator."""

from __future__ import annotations

import threading
import uuid
from collections.abc import Iterator
from dataclasses import replace

import pytest

from strata.client.unary import get_key
from strata.errors import CoordinatorLostError
from strata.run.launch.group import launcher_group
from strata.run.launch.group.agreement import Agreement
from strata.run.launch.group.claim import RENEW_S, STALE_S, JobClaim, LauncherRecord
from strata.run.launch.group.launcher_group import KEY, LauncherGroup, Silence
from tests.testbed.coordinator import coordinator_thread


@pytest.fixture(scope="module")
def url() -> Iterator[str]:
    with coordinator_thread() as coordinator:
        yield f"127.0.0.1:{coordinator.grpc_port}"


class Machines:
    """Launchers of several machines in one process, and the time that they see."""

    def __init__(self, url: str, nnodes: int, *, min_workers: int | None = None) -> None:
        self.now_s = 0.0
        self.claims: list[JobClaim] = []
        self.groups: list[LauncherGroup] = []
        job = uuid.uuid4().hex
        for node_rank in range(nnodes):
            record = LauncherRecord(name=f"m{node_rank}", nproc=2, node_rank=node_rank, host=f"h{node_rank}", pid=1)
            claim = JobClaim(url, job, record, nnodes=nnodes)
            claim.take(takeover=True)
            self.claims.append(claim)
            group = LauncherGroup(claim, nnodes=nnodes, min_workers=min_workers, clock=lambda: self.now_s)
            self.groups.append(group)
        for group in self.groups:
            assert group.join([claim.record for claim in self.claims])

    def prepare(self) -> Agreement:
        """Let all be ready for the present round, at the same time; return what they agree on."""
        threads = [
            threading.Thread(target=group.prepare, args=(0,), kwargs={"workers": 2, "port": port})
            for port, group in enumerate(self.groups)
        ]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        return self.groups[0].look()

    def renew(self, *node_ranks: int) -> None:
        for node_rank in node_ranks:
            self.claims[node_rank].renew()


def test_launchers_that_are_ready_at_the_same_time_see_one_start(url: str) -> None:
    machines = Machines(url, 5)
    agreement = machines.prepare()
    starts = [group.start_of(group.look(), [0, 1]) for group in machines.groups]
    assert agreement.begun is not None
    for index, start in enumerate(starts):
        assert start is not None
        assert (start.ranks, start.world_size) == ({0: 2 * index, 1: 2 * index + 1}, 10)
        assert (start.group_rank, start.group_world_size, start.master_addr) == (index, 5, "127.0.0.1")


def test_a_launcher_that_is_silent_for_too_long_is_lost_and_is_noticed_by_one_other(url: str) -> None:
    machines = Machines(url, 3)
    machines.prepare()
    first, second, _ = machines.groups
    second.look()
    first.look()
    while not second.look().lost:
        assert first.look().lost == []
        assert machines.now_s <= STALE_S + RENEW_S
        machines.now_s += RENEW_S
        machines.renew(0, 1)
    assert machines.now_s > STALE_S
    assert second.look().lost == [2]
    assert first.look().lost == [2]


def test_a_launcher_that_left_or_whose_claim_another_one_has_is_lost_at_once(url: str) -> None:
    machines = Machines(url, 2)
    machines.prepare()
    other = JobClaim(url, machines.claims[1].job_id, replace(machines.claims[1].record, host="other"), nnodes=2)
    other.take(takeover=True)
    machines.now_s += RENEW_S
    assert machines.groups[0].look().lost == [1]


def test_nobody_is_lost_because_the_coordinator_was_away(url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    machines = Machines(url, 2)
    machines.prepare()
    group = machines.groups[0]
    group.look()

    def refuse(*_: object) -> None:
        raise CoordinatorLostError(url, waited_s=0.0)

    with monkeypatch.context() as outage:
        outage.setattr(launcher_group, "get_key", refuse)
        with pytest.raises(CoordinatorLostError):
            group.look()
    machines.now_s += 10 * STALE_S
    assert group.look().lost == []


def test_an_outage_starts_the_silence_anew() -> None:
    silence = Silence()
    record = LauncherRecord(name="m", nproc=1, host="h", pid=1)
    assert not silence.is_lost(record.process, record, now_s=0.0)
    assert not silence.is_lost(record.process, record, now_s=STALE_S)
    assert silence.is_lost(record.process, record, now_s=STALE_S + 1)
    assert not silence.is_lost(record.process, replace(record, beat=1), now_s=STALE_S + 2)
    assert silence.is_lost(record.process, None, now_s=STALE_S + 2)


def test_the_last_launcher_that_leaves_removes_the_key(url: str) -> None:
    machines = Machines(url, 2)
    for group in machines.groups:
        assert get_key(url, machines.claims[0].job_id, KEY).value
        group.leave()
    assert get_key(url, machines.claims[0].job_id, KEY).value == b""


def test_those_who_are_not_ready_are_named(url: str) -> None:
    group = Machines(url, 3).groups[1]
    group.prepare(0, workers=1, port=1)
    assert group.absent == [0, 2]
    group.prepare(7, workers=1, port=1)
    assert group.absent == [0, 2], "that is not the present round"
