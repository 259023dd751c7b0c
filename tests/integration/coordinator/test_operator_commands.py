"""What operators see and do with their commands, against a coordinator in this process."""

from __future__ import annotations

import asyncio
import json
import queue
import time
from collections.abc import AsyncIterator
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest

from strata.checkpoint import CheckpointManager
from strata.cli import doctor
from strata.cli.app import main
from strata.cli.watch import followed_events
from strata.cli.watch.followed_events import follow_events
from strata.cli.watch.replicas import ask_replicas
from strata.cluster import Limits
from strata.cluster import commands as c
from strata.cluster.access import administration
from strata.cluster.values import PartReport
from strata.coordinator.server import Coordinator, CoordinatorConfig
from strata.errors import CoordinatorLostError, RewindError
from strata.wire._generated import coordinator_pb2 as pb
from tests.testbed.pace import stretch
from tests.testbed.process import free_ports


def make_coordinator(grpc_port: int = 0) -> Coordinator:
    config = CoordinatorConfig(
        grpc_address=f"127.0.0.1:{grpc_port}",
        channel_address="127.0.0.1:0",
        http_address="127.0.0.1:0",
        version="test",
        # Nobody sends heartbeats here, and nobody is to be failed for it.
        limits=Limits(lease_s=3_600.0, grace_s=3_600.0),
    )
    return Coordinator(config)


@pytest.fixture
async def coordinator() -> AsyncIterator[Coordinator]:
    async with make_coordinator() as coordinator:
        yield coordinator


def url_of(coordinator: Coordinator) -> str:
    return f"127.0.0.1:{coordinator.grpc_port}"


async def strata(coordinator: Coordinator, *arguments: str) -> None:
    """Run a command to its good end; what the coordinator refuses is raised."""
    with pytest.raises(SystemExit) as ended:
        await asyncio.to_thread(main, [*arguments, "--coordinator", url_of(coordinator)])
    assert ended.value.code == 0


async def join(coordinator: Coordinator, *workers: str, job: str = "default") -> None:
    for worker in workers:
        await coordinator.dispatcher.ask(c.RegisterWorker(job_id=job, worker_id=worker, incarnation="1"))


async def test_status_says_who_is_missing_at_a_barrier_and_in_a_checkpoint(
    coordinator: Coordinator, capsys: pytest.CaptureFixture[str]
) -> None:
    ask = coordinator.dispatcher.ask
    await join(coordinator, "w0", "w1")
    await ask(c.RegisterDataset(dataset_id="text", total_samples=12_345, shard_size=1_000))
    met = asyncio.create_task(ask(c.ArriveAtBarrier(worker_id="w0", incarnation="1", generation=2, name="gradients")))
    report = PartReport(path="default/checkpoints/step_7/part", size_bytes=3, digest="0" * 64)
    for worker in ("w0", "w1"):
        part = c.ReportPart(worker_id=worker, incarnation="1", generation=2, step=7, epoch=0, report=report)
        await ask(part)
        await strata(coordinator, "status")
    met.cancel()
    first, second = capsys.readouterr().out.split(
        "job default: recovering (workers restore their state, or start), generation 2\n"
    )[1:]
    assert "dataset text: 12,345 samples in 13 shards\n" in first
    assert "barrier gradients: 1 of 2, missing w1\n" in first
    assert "checkpoint step 7: missing w1\n" in first
    assert "checkpoint step 7: its manifest is being written\n" in second


async def test_the_quotas_of_a_tenant_stand_beside_what_it_uses_of_them(
    coordinator: Coordinator, capsys: pytest.CaptureFixture[str]
) -> None:
    await coordinator.dispatcher.ask(administration.CreateTenant(tenant="vision"))
    await strata(coordinator, "tenant", "set", "vision", "--workers", "64", "--requests-per-s", "2.5")
    capsys.readouterr()
    await strata(coordinator, "tenant", "show", "vision")
    head, *lines = capsys.readouterr().out.splitlines()
    assert head.split() == ["quota", "limit", "use"]
    rows = {line.split()[0]: line.split()[1:] for line in lines}
    assert rows["workers"] == ["64", "0"]
    assert rows["jobs"] == ["none", "0"]
    assert rows["requests_per_s"] == ["2.5", "-"]


async def test_top_as_json_is_what_the_dashboard_gets(
    coordinator: Coordinator, capsys: pytest.CaptureFixture[str]
) -> None:
    await join(coordinator, "w0", job="llm")
    await strata(coordinator, "top", "llm", "--json")
    shown = json.loads(capsys.readouterr().out)
    assert shown["job"]["job_id"] == "llm"
    assert [worker["worker_id"] for worker in shown["workers"]] == ["w0"]


async def test_the_doctor_finds_a_coordinator_that_answers(coordinator: Coordinator) -> None:
    await join(coordinator, "w0")
    (found,) = await asyncio.to_thread(doctor.check_coordinator, url_of(coordinator))
    assert (found.name, found.level, found.mend) == ("coordinator", "ok", "")
    assert found.found.startswith(f"{url_of(coordinator)} answers in ")


async def test_the_doctor_warns_of_a_coordinator_whose_clock_is_ahead(
    coordinator: Coordinator, monkeypatch: pytest.MonkeyPatch
) -> None:
    await join(coordinator, "w0")
    began_s = time.time()
    monkeypatch.setattr(doctor, "time", SimpleNamespace(time=lambda: began_s - 90.0))
    (found,) = await asyncio.to_thread(doctor.check_coordinator, url_of(coordinator))
    assert (found.name, found.level) == ("clock", "warning")
    assert found.found.startswith("the coordinator's is at least ")
    assert "set both clocks by NTP" in found.mend


async def test_a_replica_that_does_not_answer_is_away_and_the_others_are_listed(coordinator: Coordinator) -> None:
    await join(coordinator, "w0")
    (silent,) = free_ports(1)
    known = pb.Description(replicas=[f"127.0.0.1:{silent}", url_of(coordinator)])
    away, here = await asyncio.to_thread(ask_replicas, url_of(coordinator), known)
    assert away == {"address": f"127.0.0.1:{silent}", "role": "away", "term": None, "entries": None, "lag": None}
    assert (here["address"], here["role"], here["lag"]) == (url_of(coordinator), "leader", 0)


@pytest.fixture
def checkpoints(tmp_path: Path) -> Path:
    """Steps 5 and 10 of the job llm."""
    with CheckpointManager(tmp_path / "checkpoints", job_id="llm") as manager:
        for step in (5, 10):
            manager.save({"w": np.full(3, step)}, step)
    return tmp_path / "checkpoints"


async def test_a_job_that_runs_is_not_rewound_and_one_that_is_stopped_is_and_its_events_say_so(
    coordinator: Coordinator, checkpoints: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    arguments = ("rewind", "llm", "--to-step", "5", "--checkpoints", str(checkpoints))
    await join(coordinator, "w0", "w1", job="llm")
    await join(coordinator, "w2", job="other")
    with pytest.raises(RewindError, match=r"it is running, with 2 workers \(w0, w1\); stop it first"):
        await asyncio.to_thread(main, [*arguments, "--coordinator", url_of(coordinator)])
    for worker in ("w0", "w1"):
        await coordinator.dispatcher.ask(c.Goodbye(job_id="llm", worker_id=worker, incarnation="1"))
    await strata(coordinator, *arguments)
    assert capsys.readouterr().out == (
        "job llm: rewound from step 10 to step 5\n"
        "steps 10 are set aside; `strata ckpt prune WHERE --rewound` deletes them\n"
    )
    await strata(coordinator, "events", "--job", "llm")
    assert "rewound from step 10 to step 5" in capsys.readouterr().out


async def test_a_job_that_the_coordinator_never_saw_is_not_running(
    coordinator: Coordinator, checkpoints: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    await join(coordinator, "w0", job="other")
    await strata(coordinator, "rewind", "llm", "--to-step", "5", "--checkpoints", str(checkpoints))
    assert "job llm: rewound from step 10 to step 5\n" in capsys.readouterr().out


@pytest.mark.full
async def test_who_follows_events_is_told_that_the_next_coordinator_may_not_know_all_and_of_its_end(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(followed_events, "AGAIN_S", 0.01)
    (port,) = free_ports(1)
    jobs: queue.SimpleQueue[str] = queue.SimpleQueue()

    def follow() -> None:
        for event in follow_events(f"127.0.0.1:{port}", ""):
            jobs.put(event.job_id)

    with pytest.raises(CoordinatorLostError):
        await asyncio.to_thread(follow)  # nobody was followed yet, so nobody is waited for
    async with make_coordinator(port) as first:
        await join(first, "w0", job="before")
        following = asyncio.create_task(asyncio.to_thread(follow))
        assert await asyncio.to_thread(jobs.get, timeout=stretch(30)) == "before"
    # Its journal was in memory: the next one knows nothing.
    async with make_coordinator(port) as second:
        await join(second, "w0", job="after")
        assert await asyncio.to_thread(jobs.get, timeout=stretch(30)) == "after"
        monkeypatch.setattr(followed_events, "GIVE_UP_S", 0.0)
    with pytest.raises(CoordinatorLostError):
        await asyncio.wait_for(following, stretch(30))
    assert capsys.readouterr().err == "the coordinator does not know the last event: some may be missing\n"
