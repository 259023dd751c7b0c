"""What the API says of workers, datasets, checkpoints, barriers and time, from what commands came to."""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Any

import pytest

from strata.cluster import commands as c
from strata.cluster.access import DEFAULT_TENANT, Principal, Role
from strata.cluster.access.administration import CreateTenant
from strata.cluster.values import CommitRecord, Divergence, PartReport, SaveNote, Span
from strata.coordinator.http import desk as desk_module
from strata.coordinator.http import time_views
from strata.coordinator.http.known import Known
from tests.unit.coordinator.http.served_api import BEGAN_S, ServedApi, account, serving_api


@pytest.fixture
async def api(monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[ServedApi]:
    """An API whose answers are never older than the last command."""
    monkeypatch.setattr(desk_module, "MAX_AGE_S", -1.0)
    async with serving_api() as api:
        yield api


async def beat(api: ServedApi, worker: str, **fields: Any) -> None:
    await api.ask(c.Heartbeat(job_id="job", worker_id=worker, **{"incarnation": "1-x", **fields}))


async def train(api: ServedApi, **own_s: float) -> None:
    """Let each worker do twenty steps in a hundred seconds, so many of which each step takes it itself."""
    await api.join(*own_s)
    api.clock.advance(100.0)
    for rank, (worker, each_s) in enumerate(own_s.items()):
        done = account(100.0, steps=20, rank=rank, generation=len(own_s), wait=100.0 - 20 * each_s)
        await beat(api, worker, step=20, account=done)


async def test_a_rank_that_is_slow_is_named_wherever_someone_may_look(api: ServedApi) -> None:
    await train(api, a=1.0, b=1.0, c=4.0)
    found = {"worker_id": "c", "rank": 2, "steps": 20, "step_s": 4.0, "median_s": 1.0, "ratio": 4.0, "cause": "compute"}
    assert (await api.see("/api/workers/c?job=job"))["straggles"] == pytest.approx(found)
    assert (await api.see("/api/workers/a?job=job"))["straggles"] is None
    assert (await api.see("/api/goodput?job=job"))["stragglers"] == [pytest.approx(found)]
    metrics = (await api.get("/metrics")).body.decode()
    assert 'strata_job_stragglers{cause="compute",job_id="job"} 1.0' in metrics
    assert 'strata_job_stragglers{cause="data",job_id="job"} 0.0' in metrics


async def test_a_new_process_does_not_answer_for_the_time_of_the_one_before(api: ServedApi) -> None:
    await train(api, a=1.0)
    before = await api.see("/api/workers/a?job=job")
    assert (before["own_step_s"], before["parts"]["wait"]) == (pytest.approx(1.0), 80.0)
    await api.join("a", incarnation="2-y")
    after = await api.see("/api/workers/a?job=job")
    assert (after["incarnation"], after["own_step_s"], after["parts"]) == ("2-y", None, None)


async def test_a_worker_that_stands_still_says_for_how_long_and_in_what(api: ServedApi) -> None:
    await api.join("a", "b")
    said = {"step_s": 0.5, "stalled_s": 40.0, "limit_s": 120.0}
    await beat(api, "a", resources={**said, "in_collective": 1.0, "waiting": 1.0})
    await beat(api, "b", resources={**said, "limit_s": float("inf")})
    stalls = [worker["stall"] for worker in (await api.see("/api/workers?job=job"))["items"]]
    quiet = {"waits_on_others": False, "in_collective": False, "paused": False}
    assert stalls == [
        {**quiet, "stalled_s": 40.0, "limit_s": 120.0, "waits_on_others": True, "in_collective": True},
        {**quiet, "stalled_s": 40.0, "limit_s": 0.0},
    ]
    await beat(api, "a")
    assert (await api.see("/api/workers/a?job=job"))["stall"] is None


async def test_workers_that_are_forgotten_are_gone_from_the_page_and_those_of_a_new_job_are_its_own(
    api: ServedApi,
) -> None:
    await api.join("a", "b")
    assert (await api.see("/api/workers?job=job"))["total"] == 2
    await api.ask(c.Goodbye(job_id="job", worker_id="b", incarnation="1-x"))
    await api.ask(c.ForgetWorkers(job_id="job", workers=(("b", "1-x"),)))
    assert [worker["worker_id"] for worker in (await api.see("/api/workers?job=job"))["items"]] == ["a"]
    assert api.desk._rows.of("job").keys() == {"a"}
    await api.ask(c.Goodbye(job_id="job", worker_id="a", incarnation="1-x"), c.RemoveJob(job_id="job"))
    assert (await api.get("/api/workers?job=job")).status == 404
    assert api.desk._rows._rows == api.desk._rows._slow == {}


async def report_epochs(api: ServedApi, epochs: int) -> None:
    await api.join("a")
    await api.ask(c.RegisterDataset(job_id="job", dataset_id="d", total_samples=4, shard_size=4))
    for epoch in range(epochs):
        await api.ask(
            c.ReportProgress(
                job_id="job",
                worker_id="a",
                incarnation="1-x",
                generation=1,
                sequence=epoch + 1,
                dataset_id="d",
                epoch=epoch,
                step=epoch + 1,
                spans=(Span(0, 0, 4 if epoch else 3),),
            )
        )


async def test_an_audit_names_the_samples_that_are_missing(api: ServedApi) -> None:
    await report_epochs(api, 2)
    audits = [(await api.see(f"/api/datasets/d?job=job&epoch={epoch}"))["audit"] for epoch in range(3)]
    assert [(audit["epoch"], audit["exactly_once"]) for audit in audits] == [(0, False), (1, True), (2, False)]
    missing = [audit["missing"] for audit in audits]
    assert missing == [
        {"samples": 1, "ranges": [[3, 4]]},
        {"samples": 0, "ranges": []},
        {"samples": 4, "ranges": [[0, 4]]},
    ]
    # The newest, if none is named.
    assert (await api.see("/api/datasets/d?job=job"))["audit"] == audits[1]


async def test_the_audit_of_an_epoch_that_is_not_kept_any_more_is_refused_with_what_still_audits_it(
    api: ServedApi,
) -> None:
    await report_epochs(api, 22)
    refused = await api.get("/api/datasets/d?job=job&epoch=1")
    assert refused.status == 404
    assert refused.content["detail"] == (
        "epoch 1 is older: the API knows the newest 20, from epoch 2 on; `strata data audit --epoch 1` audits every one"
    )


async def report(api: ServedApi, *workers: str, step: int, generation: int = 2) -> None:
    for worker in workers:
        await api.ask(
            c.ReportPart(
                job_id="job",
                worker_id=worker,
                incarnation="1-x",
                generation=generation,
                step=step,
                epoch=0,
                report=PartReport(f"{worker}-{step}", 500, "d"),
            )
        )


async def commit(api: ServedApi, *, step: int) -> None:
    await report(api, "a", "b", step=step)
    await confirm(api, step=step)


async def confirm(api: ServedApi, *, step: int, diverged: Divergence | None = None) -> None:
    record = CommitRecord(step, 0, f"m{step}", "[]", diverged)
    await api.ask(c.ConfirmCommit(job_id="job", worker_id="a", incarnation="1-x", generation=2, **record._asdict()))


async def test_checkpoints_are_shown_in_every_state_that_they_can_be_in(api: ServedApi) -> None:
    await api.join("a", "b")
    own = {"job_id": "job", "worker_id": "a", "incarnation": "1-x"}
    for step in (1, 2):
        await commit(api, step=step)
    await report(api, "a", step=3)
    await api.ask(c.AbortCheckpoint(job_id="job", step=3, reason="it takes too long"))
    await report(api, "a", "b", step=4)  # its manifest is being written
    await report(api, "a", step=5)
    found = (await api.see("/api/checkpoints?job=job"))["items"]
    fields = ("step", "state", "reason", "manifest", "parts", "expected_parts", "missing", "size_bytes")
    assert [tuple(each[field] for field in fields) for each in found] == [
        (5, "collecting", "", "", 1, 2, ["b"], 500),
        (4, "writing", "", "", 2, 2, [], 1_000),
        (3, "aborted", "it takes too long", "", None, None, [], None),
        (2, "committed", "", "m2", 2, 2, [], 1_000),
        (1, "committed", "", "m1", 2, 2, [], 1_000),
    ]
    await confirm(api, step=4)
    await api.ask(c.Goodbye(job_id="job", worker_id="b", incarnation="1-x"))
    await api.ask(
        c.AskRestorePoint(generation=3, **own),
        c.RejectCheckpoint(generation=3, step=4, reason="a part is gone", **own),
    )
    rejected = await api.see("/api/checkpoints/4?job=job")
    assert (rejected["state"], rejected["reason"]) == ("rejected", "a part is gone")


async def test_metrics_count_suspect_checkpoints_and_what_a_restart_would_lose(api: ServedApi) -> None:
    await api.join("a", "b")

    async def read_metrics() -> tuple[str, ...]:
        lines = (await api.get("/metrics")).body.decode().splitlines()
        names = ("strata_job_diverged_ranks", "strata_job_suspect_checkpoints", "strata_job_steps_at_risk")
        return tuple(line.split()[1] for name in names for line in lines if line.startswith(f"{name}{{"))

    await commit(api, step=1)
    for step, suspect in ((2, False), (3, True), (4, True)):
        await report(api, "a", "b", step=step)
        await confirm(api, step=step, diverged=Divergence((0, 1), "model.w", 1, suspect=suspect))
        await beat(api, "a", step=step)
        assert await read_metrics() == ("2.0", f"{step - 2:.1f}", f"{step - 2:.1f}")
    assert (await api.see("/api/checkpoints/4?job=job"))["divergence"].endswith("is not what a majority held")
    await report(api, "a", "b", step=5)
    await confirm(api, step=5)
    await beat(api, "a", step=5)
    assert await read_metrics() == ("0.0", "0.0", "0.0")


async def test_a_checkpoint_shows_the_phases_of_its_slowest_worker_and_its_speed_by_them(api: ServedApi) -> None:
    await api.join("a", "b")
    await commit(api, step=7)
    api.clock.advance(10.0)
    for rank, worker in enumerate(("a", "b")):
        save = SaveNote(7, 0.5, 1.0 + rank, 2.0, 1.0, 800, is_failed=False, is_diverged=False)
        await beat(api, worker, step=7, account=account(10.0, steps=7, rank=rank, generation=2, saves=(save,)))
    found = await api.see("/api/checkpoints/7?job=job")
    assert found["phases"] == {"blocked": 0.5, "stage": 2.0, "write": 2.0, "commit": 1.0}
    assert (found["size_bytes"], found["full_bytes"]) == (1_000, 1_600)
    assert found["bytes_per_s"] == pytest.approx(1_000 / 5.0)


async def test_an_open_barrier_names_who_is_missing_and_since_when_it_is_open(api: ServedApi) -> None:
    await api.join("a", "b", "c")
    await beat(api, "b", step=9)
    for worker, name in (("c", "first"), ("a", "first"), ("a", "second")):
        api.clock.advance(1.0)
        await api.ask(
            c.ArriveAtBarrier(
                job_id="job", worker_id=worker, incarnation="1-x", generation=3, name=name, timeout_s=60.0
            )
        )
    first, second = (await api.see("/api/barriers?job=job"))["open"]
    assert (first["name"], first["arrived"], first["expected"], first["began_s"], first["deadline_s"]) == (
        "first",
        2,
        3,
        BEGAN_S + 1,
        BEGAN_S + 61,
    )
    missing = {"worker_id": "b", "rank": 1, "state": "idle", "step": 9, "last_seen_s": BEGAN_S}
    assert (first["missing"], first["missing_total"]) == ([missing], 1)
    assert [each["worker_id"] for each in second["missing"]] == ["b", "c"]
    metrics = (await api.get("/metrics")).body.decode()
    assert 'strata_job_barrier_open_since_seconds{job_id="job"} 1.000001e+06' in metrics


async def test_a_job_of_which_nothing_was_heard_has_empty_series(api: ServedApi) -> None:
    await api.join("a")
    series = await api.see("/api/series?job=job")
    assert (series["resolution_s"], series["at_s"], series["requests_per_s"], series["marks"]) == (2.0, [], [], [])
    times = await api.see("/api/series/step-times?job=job")
    assert (times["at_s"], times["rows"], times["median_s"], times["slowest"]) == ([], [], [], [])


async def test_series_hold_at_most_as_many_points_as_are_asked_for(api: ServedApi) -> None:
    await train(api, a=1.0, b=5.0)
    series = await api.see("/api/series?job=job&points=5")
    assert (series["resolution_s"], series["at_s"]) == (22.0, [BEGAN_S + after_s for after_s in (21, 43, 65, 87, 109)])
    assert series["steps_per_s"] == pytest.approx([0.2] * 5)
    assert series["workers"] == pytest.approx([2.0] * 5)
    assert series["parts"]["wait"] == pytest.approx([0.4] * 5)
    some = await api.see("/api/series?job=job&since=1000060&until=1000080&points=5")
    assert (some["resolution_s"], some["at_s"]) == (4.0, [BEGAN_S + after_s for after_s in (62, 66, 70, 74, 78)])
    assert (await api.see("/api/series?job=job&since=1000500"))["at_s"] == []


async def test_a_number_that_the_script_reports_is_a_series_of_the_mean_of_its_workers(api: ServedApi) -> None:
    await train(api, a=1.0, b=1.0)
    api.clock.advance(10.0)
    for rank, (worker, loss) in enumerate({"a": 1.0, "b": 4.0}.items()):
        await beat(api, worker, step=22, account=account(110.0, steps=22, rank=rank), resources={"loss": loss})
    losses = (await api.see("/api/series?job=job&points=5"))["metrics"]["loss"]
    assert losses == [None, None, None, None, 2.5]


async def test_step_times_are_by_rank_with_the_median_and_the_slowest(api: ServedApi) -> None:
    await train(api, a=1.0, b=2.0, c=4.0)
    times = await api.see("/api/series/step-times?job=job&offset=1&limit=1")
    assert (times["ranks"], times["worker_ids"], times["total_ranks"]) == ([1], ["b"], 3)
    assert (times["at_s"], times["rows"]) == ([BEGAN_S + 105], [[2.0]])
    assert (times["median_s"], times["slowest"]) == ([2.0], [2])


async def test_a_tenant_of_several_does_not_see_how_many_requests_all_of_them_send(api: ServedApi) -> None:
    await api.desk.know()  # they are counted from the first look on
    await train(api, a=1.0)
    known = await api.desk.know()
    viewer = Principal("viewer", DEFAULT_TENANT, Role.VIEWER)

    def requests(known: Known) -> list[float | None]:
        return time_views.make_series(known, "job", since_s=None, until_s=None, points=5).requests_per_s

    assert any(requests(known))
    assert requests(known.as_seen_by(viewer)) == requests(known)  # it is the only one
    await api.ask(CreateTenant(tenant="acme"))
    known = (await api.desk.know()).as_seen_by(viewer)
    assert (requests(known), known.requests_per_s) == ([None] * 5, None)
