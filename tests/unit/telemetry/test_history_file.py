"""The file beside the journal: histories come back, damage loses lines and not the file, and it stays small."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from strata.coordinator.telemetry import history_file as module
from strata.coordinator.telemetry.event_store import EventStore
from strata.coordinator.telemetry.feed import Feed
from strata.coordinator.telemetry.history import History
from strata.coordinator.telemetry.history_file import HistoryFile
from strata.coordinator.telemetry.reckoning import reckon_job
from tests.unit.telemetry.test_job_history import FakeWorker

if TYPE_CHECKING:
    from pathlib import Path


def new_history() -> History:
    return History(Feed(), EventStore("life"))


def work(history: History, *, reports: int = 50, job: str = "job", began_s: float = 1_000.0) -> float:
    worker = FakeWorker("w", history.job(job), began_s=began_s)
    for _ in range(reports):
        worker.spend(compute=2.0, data=0.5)
        worker.steps += 5
        worker.step += 5
        worker.report(loss=0.5)
    history.job(job).note_commit(5, at_s=worker.now_s)
    history.job(job).note_change("hung", is_failure=True, at_s=worker.now_s, label="w hung")
    return worker.now_s


def again(path: Path) -> History:
    history = new_history()
    HistoryFile(path).load(history)
    return history


async def test_a_history_comes_back_as_it_was(tmp_path: Path) -> None:
    path, history = tmp_path / "h.jsonl", new_history()
    file = HistoryFile(path)
    now_s = work(history)
    await file.save(history, now_s=now_s)
    found, before = again(path).job("job"), history.job("job")
    assert reckon_job(found).parts == pytest.approx(reckon_job(before).parts, abs=1e-3)
    assert list(found.marks) == list(before.marks)
    assert (found.failures, found.step, found.kept_steps) == (1, 250, 250)
    assert found.checkpoints[5].committed_s == now_s


async def test_the_requests_of_the_coordinator_come_back_too(tmp_path: Path) -> None:
    path, history = tmp_path / "h.jsonl", new_history()
    # So small that it is written anew several times.
    file = HistoryFile(path, max_bytes=60_000)
    for number in range(300):
        history.requests.at(1_000.0 + 2 * number).requests += number
        await file.save(history, now_s=1_000.0 + 2 * number)
    found = again(path)
    assert path.stat().st_size <= 60_000
    assert [(each.start_s, each.requests) for each in found.requests] == [(1_000 + 2 * n, n) for n in range(300)]
    assert not found.jobs


async def test_a_mark_is_written_once_however_often_the_coordinator_is_started(tmp_path: Path) -> None:
    path, history = tmp_path / "h.jsonl", new_history()
    await HistoryFile(path).save(history, now_s=work(history))
    for start in (1, 2, 3):
        history, file = new_history(), HistoryFile(path)
        file.load(history)
        history.note_start(10_000.0 + start)
        await file.save(history, now_s=10_000.0 + start)
    kinds = [mark.kind for mark in again(path).job("job").marks]
    assert kinds == ["committed", "failure", "coordinator", "coordinator", "coordinator"]


async def test_saving_in_pieces_is_saving_at_once(tmp_path: Path) -> None:
    history = new_history()
    file = HistoryFile(tmp_path / "h.jsonl")
    worker = FakeWorker("w", history.job("job"), began_s=0.0)
    for _ in range(100):
        worker.spend(compute=2.5)
        worker.steps += 1
        worker.report()
        await file.save(history, now_s=worker.now_s)
    await file.save(history, now_s=worker.now_s)
    found = again(tmp_path / "h.jsonl").job("job")
    assert reckon_job(found).parts == pytest.approx(reckon_job(history.job("job")).parts, abs=1e-3)


async def test_a_torn_tail_and_a_damaged_line_lose_only_themselves(tmp_path: Path) -> None:
    path, history = tmp_path / "h.jsonl", new_history()
    await HistoryFile(path).save(history, now_s=work(history))
    whole = path.read_bytes()
    for size in range(len(whole) - 400, len(whole), 7):
        path.write_bytes(whole[: whole.rindex(b"\n", 0, size) + 1])
        expected = again(path).job("job")
        path.write_bytes(whole[:size])
        torn = new_history()
        file = HistoryFile(path)
        file.load(torn)
        found = torn.job("job")
        assert found.tiers.total() == expected.tiers.total()
        assert found.tiers.total().covered_s > 120
        assert (list(found.marks), found.checkpoints) == (list(expected.marks), expected.checkpoints)
        # What is written next is on a line of its own.
        now_s = work(torn, reports=3, job="next", began_s=2_000.0)
        await file.save(torn, now_s=now_s)
        assert reckon_job(again(path).job("next")).wall_s == pytest.approx(7.5, abs=1e-3)
    lines = whole.split(b"\n")
    for damage in (
        b"\x00\xff",
        b"[]",
        b'{"v":1}',
        b'{"v":99,"job":"job"}',
        b'{"v":1,"job":"job","tier":7,"bucket":[]}',
        b'{"v":1,"job":"job","tier":0,"bucket":[0.0,9.0,[9.0],9.0,0,0,0,0,0,0,0,{},{},false]}',
        b'{"v":1,"job":"job","checkpoint":{"step":6,"phases":[1.0]}}',
        b"null",
    ):
        path.write_bytes(b"\n".join([damage, *lines]))
        found = again(path).job("job")
        assert reckon_job(found).wall_s == pytest.approx(125.0, abs=1e-3)
        assert found.checkpoints.keys() == {5}


async def test_the_file_stays_within_its_bound_and_totals_survive(tmp_path: Path) -> None:
    path, history = tmp_path / "h.jsonl", new_history()
    file = HistoryFile(path, max_bytes=20_000)
    now_s = 0.0
    for number in range(30):
        now_s = work(history, reports=20, job=f"job{number % 3}", began_s=1_000.0 * (number + 1))
        await file.save(history, now_s=now_s)
        assert path.stat().st_size <= 20_000
    found, before = again(path).job("job2"), history.job("job2")
    assert reckon_job(found).parts["compute"] == pytest.approx(reckon_job(before).parts["compute"], rel=0.01)


async def test_a_series_for_which_there_is_no_room_is_cut_and_nothing_in_it_is_counted_twice(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "OPEN", 10)
    path, history = tmp_path / "h.jsonl", new_history()
    file = HistoryFile(path, max_bytes=12_000)
    worker = FakeWorker("w", history.job("job"), began_s=0.0)
    for _ in range(150):
        # Less than an interval, so that the last one is written, and changes, and is written again.
        worker.spend(compute=0.75)
        worker.steps += 1
        worker.step += 1
        worker.report()
        await file.save(history, now_s=worker.now_s)
        found = again(path).job("job").tiers
        assert found.total().covered_s == pytest.approx(worker.now_s, abs=1e-3)
    assert 10 <= len(list(found)) < len(list(history.job("job").tiers))


async def test_jobs_for_which_there_is_no_room_are_left_out_the_longest_silent_first(tmp_path: Path) -> None:
    path, history = tmp_path / "h.jsonl", new_history()
    file, now_s = HistoryFile(path, max_bytes=6_000), 0.0
    for number in range(20):
        now_s = work(history, reports=2, job=f"job{number:02}", began_s=1_000.0 * (number + 1))
    await file.save(history, now_s=now_s)
    found = again(path).jobs
    assert path.stat().st_size <= 3_000
    assert 0 < len(found) < 20
    assert list(found) == list(history.jobs)[-len(found) :]
    assert all(reckon_job(each).wall_s == pytest.approx(5.0, abs=1e-3) for each in found.values())


async def test_what_could_not_be_written_is_written_once_it_can_be(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    path, history = tmp_path / "missing" / "h.jsonl", new_history()
    file = HistoryFile(path)
    now_s = work(history)
    for _ in range(2):
        await file.save(history, now_s=now_s)
    (warning,) = caplog.messages
    assert "cannot be written" in warning
    path.parent.mkdir()
    await file.save(history, now_s=now_s)
    found, before = again(path).job("job"), history.job("job")
    assert reckon_job(found).parts == pytest.approx(reckon_job(before).parts, abs=1e-3)
    assert list(found.marks) == list(before.marks)
    assert found.checkpoints.keys() == {5}


def test_a_file_that_cannot_be_read_is_reported_and_the_history_starts_empty(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    history = new_history()
    HistoryFile(tmp_path).load(history)
    assert history.jobs == {}
    assert "starts empty" in caplog.text


async def test_a_worker_that_goes_on_through_a_restart_is_not_counted_again(tmp_path: Path) -> None:
    path, history = tmp_path / "h.jsonl", new_history()
    worker = FakeWorker("w", history.job("job"), began_s=0.0)
    worker.spend(compute=100.0)
    worker.steps = worker.step = 100
    worker.report()
    await HistoryFile(path).save(history, now_s=100.0)
    worker.history = again(path).job("job")
    worker.spend(compute=50.0)
    worker.steps = worker.step = 150
    worker.report()
    reckoned = reckon_job(worker.history)
    assert reckoned.parts == pytest.approx({**reckoned.parts, "compute": 150.0, "repeated": 0.0, "down": 0.0}, abs=1e-3)
    assert (worker.history.kept_steps, worker.history.lost_steps) == (150, 0)


async def test_a_history_without_its_file_of_workers_is_read_without_a_warning(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    path, history = tmp_path / "h.jsonl", new_history()
    await HistoryFile(path).save(history, now_s=work(history))
    path.with_name("h.jsonl-workers").unlink()
    found = again(path).job("job")
    assert (reckon_job(found).wall_s, found.workers) == (pytest.approx(125.0, abs=1e-3), {})
    assert caplog.messages == []


async def test_a_damaged_file_of_workers_loses_only_itself(tmp_path: Path) -> None:
    path, history = tmp_path / "h.jsonl", new_history()
    await HistoryFile(path).save(history, now_s=work(history))
    for damage in (b"", b"null", b"[]", b'{"job":{"w":[1]}}', b'{"job":{"w":["i",0,0,["x"]]}}', b"\xff"):
        path.with_name("h.jsonl-workers").write_bytes(damage)
        assert reckon_job(again(path).job("job")).wall_s == pytest.approx(125.0, abs=1e-3)
