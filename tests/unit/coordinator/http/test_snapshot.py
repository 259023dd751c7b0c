"""Copies of the cluster: of one moment although others have their turn in between, and only of what is durable."""

from __future__ import annotations

import asyncio
from collections.abc import Generator
from typing import Any

import pytest

from strata.cluster import Cluster
from strata.cluster import commands as c
from strata.coordinator.http import snapshot as module
from strata.coordinator.http.snapshot import ATTEMPTS, JobCopy, copy_jobs
from strata.coordinator.replication.leadership import Leader
from strata.errors import JournalUnavailableError
from tests.testbed.pace import stretch
from tests.testbed.slow_journal import SlowJournal
from tests.unit.coordinator.http.served_api import serving_api


def cluster_of(workers: int) -> Cluster:
    cluster = Cluster()
    for number in range(workers):
        join(cluster, number)
    return cluster


def join(cluster: Cluster, number: int) -> None:
    cluster.apply(c.RegisterWorker(job_id="job", worker_id=f"w{number:02}", incarnation="1"), 100.0)


def finish(copying: Generator[None, None, dict[str, JobCopy]]) -> JobCopy:
    """Let the copy be finished with nothing in between."""
    while True:
        try:
            next(copying)
        except StopIteration as done:
            return done.value["job"]


def test_a_job_that_changes_while_it_is_copied_is_copied_again(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "SLICE", 4)
    cluster = cluster_of(10)
    copying = copy_jobs(cluster)
    next(copying)  # four of ten
    cluster.apply(c.Goodbye(job_id="job", worker_id="w01", incarnation="1"), 100.0)
    copied = finish(copying)
    assert copied.generation == 11
    assert [(worker.worker_id, worker.rank) for worker in copied.present] == [
        (member.worker_id, member.rank) for member in cluster.job("job").membership.present()
    ]
    assert [worker.worker_id for worker in copied.workers if not worker.is_present] == ["w01"]


def test_a_job_that_never_stands_still_is_copied_all_the_same(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "SLICE", 6)  # each attempt yields once
    cluster = cluster_of(7)
    copying = copy_jobs(cluster)
    for attempt in range(ATTEMPTS):
        next(copying)
        join(cluster, 50 + attempt)
    copied = finish(copying)
    # Those who joined after the last attempt began are not in it.
    assert [worker.worker_id for worker in copied.present] == [f"w{number:02}" for number in (*range(7), 50, 51)]


def test_a_job_that_is_removed_before_its_turn_is_left_out() -> None:
    cluster = cluster_of(1)
    cluster.apply(c.ConfigureJob(job_id="other"), 100.0)
    copying = copy_jobs(cluster)
    next(copying)
    cluster.apply(c.RemoveJob(job_id="other"), 100.0)
    assert finish(copying).job_id == "job"


async def wait(task: asyncio.Task[Any]) -> Any:
    async with asyncio.timeout(stretch(20)):
        return await task


async def test_what_the_journal_refuses_is_in_no_copy() -> None:
    journal = SlowJournal()
    async with serving_api(journal) as api:
        await api.join("a")
        journal.gate.clear()
        joining = asyncio.create_task(api.join("b"))
        await asyncio.sleep(0)
        assert api.dispatcher.cluster.job("job").membership.ids() == ("a", "b")
        taking = asyncio.create_task(api.snapshots.take())
        await asyncio.sleep(0)
        journal.full = True
        journal.gate.set()
        with pytest.raises(JournalUnavailableError):
            await wait(joining)
        snapshot = await wait(taking)
        assert [worker.worker_id for worker in snapshot.jobs["job"].workers] == ["a"]
        assert "disk is full" in snapshot.refusal


async def test_a_coordinator_that_is_deposed_while_it_copies_shows_no_job() -> None:
    async with serving_api() as api:
        await api.join("a")
        taking = asyncio.create_task(api.snapshots.take())
        await asyncio.sleep(0)
        assert not taking.done()
        api.leadership.follow(Leader("10.0.0.7:50051", term=2))
        assert (await wait(taking)).jobs == {}
