"""Runs within the test's process, alone or at a coordinator in a thread: what a script sees when things go wrong."""

from __future__ import annotations

import asyncio
import math
import signal
import threading
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import strata
from strata.checkpoint import SaveHandle
from strata.client.unary import configure_job
from strata.cluster.values import RankInfo
from strata.errors import (
    CheckpointNotFoundError,
    CheckpointTimeoutError,
    CoordinatorLostError,
    JobWaitingError,
    ManagerClosedError,
    Reconfigure,
    StaleIncarnationError,
    StorageFullError,
)
from strata.run.team.coordinated_team import CoordinatedTeam
from strata.run.watchdog.waits import Waits
from strata.storage import LocalStorage
from tests.integration.run.loops.joining import join
from tests.testbed.pace import stretch
from tests.testbed.process import free_ports


def change_generation(url: str, folder: Path) -> None:
    """Let another worker come and go."""
    with join(folder, url, "visitor"):
        pass


def test_a_run_and_its_steps_are_shown_as_people_count_them(tmp_path: Path) -> None:
    with join(tmp_path) as run:
        shown = [(repr(step), repr(run)) for step in run.steps({"x": np.zeros(1)}, until=2)]
    assert shown == [
        ("Step(1, epoch 0)", "Run(default/w: rank 0 of 1, step 0)"),
        ("Step(2, epoch 0)", "Run(default/w: rank 0 of 1, step 1)"),
    ]


def test_a_loop_without_an_end_is_refused(tmp_path: Path) -> None:
    with join(tmp_path) as run, pytest.raises(ValueError, match="needs a dataset, or until=<number of steps>"):
        run.steps({})


def test_alone_a_loop_after_a_step_that_failed_goes_back_to_the_last_checkpoint(tmp_path: Path) -> None:
    state = {"x": np.zeros(1)}
    with join(tmp_path) as run:
        with pytest.raises(ZeroDivisionError):
            for step in run.steps(state, until=6):
                with step:
                    state["x"] += 1
                    1 / (step.number - 5)
        assert state["x"] == 5, "half of the fifth step is done"
        numbers = []
        for step in run.steps(state, until=6):
            with step:
                numbers.append(step.number)
                state["x"] += 1
    assert numbers == [4, 5, 6]
    assert state["x"] == 6


def test_a_checkpoint_that_is_lost_is_no_reason_to_begin_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def lose(**_: object) -> None:
        raise CheckpointNotFoundError(7, path="checkpoints/default")

    with join(tmp_path) as run:
        monkeypatch.setattr(run.checkpoints, "load", lose)
        with pytest.raises(CheckpointNotFoundError) as caught:
            run.restore({"x": np.zeros(1)})
        assert caught.value.step == 7
        assert run.last_save is None


def test_a_script_that_overlooks_that_it_should_stop_is_stopped_by_its_next_step(tmp_path: Path) -> None:
    with pytest.raises(strata.Stopped) as caught, join(tmp_path) as run:
        run.restore({"x": np.zeros(1)})
        run.step(1)
        assert not run.should_stop()
        signal.raise_signal(signal.SIGTERM)
        run.step(2)
        assert run.should_stop()
        run.step(3)
    assert (caught.value.step, caught.value.is_saved, caught.value.code) == (2, False, 143)


async def never_write(*_: object) -> None:
    await asyncio.Event().wait()


def test_a_run_that_cannot_wait_for_its_last_save_says_so_and_leaves(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(LocalStorage, "write_new", never_write)
    run = join(tmp_path)
    run.restore({"x": np.zeros(1)})
    run.step(1)
    handle = run.save({"x": np.ones(1)})
    run.close(timeout_s=0.05)
    assert "left before its last save was committed: " in caplog.text
    with pytest.raises(ManagerClosedError, match="the save of step 1 was stopped by close"):
        handle.result(stretch(30))


def test_a_loop_whose_last_save_fails_raises_why(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    async def refuse(_: LocalStorage, path: str, *__: object) -> None:
        raise StorageFullError(path, problem="no space left on device", backend="local")

    monkeypatch.setattr(LocalStorage, "write_new", refuse)
    with join(tmp_path) as run, pytest.raises(StorageFullError, match="no space left on device"):
        list(run.steps({"x": np.zeros(1)}, until=2))


def test_a_loop_whose_last_save_does_not_end_raises_so(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(LocalStorage, "write_new", never_write)
    monkeypatch.setattr("strata.run.loop.ending.MEET_TIMEOUT_S", 0.05)
    monkeypatch.setattr("strata.run.loop.run.ABANDON_S", 0.05)
    with pytest.raises(CheckpointTimeoutError, match="the save of step 2"), join(tmp_path) as run:
        list(run.steps({"x": np.zeros(1)}, until=2))


def test_a_loop_that_cannot_change_its_membership_does_not_begin_in_another_generation(
    tmp_path: Path, url: str
) -> None:
    with join(tmp_path, url) as run:
        run.bind()
        bound = run.generation
        change_generation(url, tmp_path)
        with pytest.raises(Reconfigure, match="the membership changed after the process group was made") as caught:
            next(iter(run.steps({"x": np.zeros(1)}, until=2, recover=False)))
    assert caught.value.generation == bound


def test_a_worker_that_is_told_to_stop_does_not_begin_another_generation(tmp_path: Path, url: str) -> None:
    numbers: list[int] = []
    with pytest.raises(strata.Stopped) as caught, join(tmp_path, url) as run:
        for step in run.steps({"x": np.zeros(1)}, until=3):
            with step:
                numbers.append(step.number)
                if step.number == 2:
                    signal.raise_signal(signal.SIGTERM)
                    change_generation(url, tmp_path)
    assert numbers == [1, 2]
    assert (caught.value.step, caught.value.is_saved) == (2, False)


def test_the_last_steps_are_done_again_when_a_worker_is_lost_during_the_last_save(
    tmp_path: Path, url: str, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level("INFO", "strata.run.loop.steps")
    numbers: list[int] = []
    state = {"x": np.zeros(1)}
    with join(tmp_path, url) as run:
        save = run.save
        disturbances = iter([True])

        def save_late(*arguments: Any) -> SaveHandle:
            if run.step_number == 2 and next(disturbances, False):
                change_generation(url, tmp_path)
            return save(*arguments)

        monkeypatch.setattr(run, "save", save_late)
        for step in run.steps(state, until=2):
            with step:
                numbers.append(step.number)
                state["x"] += 1
        assert run.checkpoints.list_checkpoints()[-1] == 2
    assert numbers == [1, 2, 1, 2]
    assert state["x"] == 2
    assert "a worker was lost during the last save" in caplog.text


def make_team(url: str, *, timeout_s: float, **fields: Any) -> CoordinatedTeam:
    options: dict[str, Any] = {"job_id": "default", "rank": None, "world_size": None, "waits": Waits(), **fields}
    return CoordinatedTeam(url, "w", timeout_s=timeout_s, **options)


def test_a_job_that_lacks_workers_is_not_waited_for_longer_than_was_said(
    url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    configure_job(url, "default", min_workers=3, max_workers=None)
    team = make_team(url, timeout_s=stretch(20))
    stops: list[bool] = []
    try:
        team.client.wait_registered(stretch(20))
        reply = team.client.heartbeat(timeout_s=stretch(20))
        monkeypatch.setattr(team.client, "heartbeat", lambda **_: reply)
        monkeypatch.setattr(team, "_timeout_s", -1.0)
        with pytest.raises(JobWaitingError) as caught:
            team.enter(lambda: stops.append(True))
    finally:
        team.close()
    assert caught.value.missing == 2
    assert stops == [True], "someone may stop it while it waits"


def test_a_worker_that_is_refused_again_and_again_gives_up_in_time(url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(**_: object) -> None:
        raise StaleIncarnationError("w", "1", state="failed")

    team = make_team(url, timeout_s=-1.0)
    try:
        monkeypatch.setattr(team.client, "heartbeat", refuse)
        with pytest.raises(CoordinatorLostError) as caught:
            team.enter()
    finally:
        team.close()
    assert caught.value.address == url


def test_a_run_that_was_closed_reads_nothing_more(url: str) -> None:
    team = make_team(url, timeout_s=stretch(20))
    team.close()
    with pytest.raises(Reconfigure, match="the run was closed"):
        team.lease_shards(RankInfo(rank=0, world_size=1, generation=1), "d", 0, 1)


def test_a_worker_that_cannot_learn_how_its_traces_are_named_leaves_no_thread() -> None:
    tracing: Any = SimpleNamespace(is_on=True, of=lambda seed: None)
    with pytest.raises(CoordinatorLostError):
        make_team(f"127.0.0.1:{free_ports(1)[0]}", timeout_s=0.05, tracing=tracing)
    assert [thread.name for thread in threading.enumerate() if thread.name == "strata-client"] == []


def write_rows(folder: Path, count: int = 12) -> Path:
    folder.mkdir()
    pq.write_table(pa.table({"id": np.arange(count)}), folder / "a.parquet")
    return folder


def test_a_pass_that_failed_does_not_go_on_without_what_it_could_not_deliver(tmp_path: Path, url: str) -> None:
    def fail_on_6(batch: dict[str, Any]) -> dict[str, Any]:
        if 6 in batch["id"]:
            raise ZeroDivisionError("sample 6")
        return batch

    with join(tmp_path, url) as run:
        data = run.dataset(
            write_rows(tmp_path / "data"), order="global", global_batch_size=2, shuffle=False, transform=fail_on_6
        )
        run.restore({})
        errors = []
        for _ in range(2):
            with pytest.raises(Exception, match="sample 6") as caught:
                list(data)
            errors.append(caught.value)
    assert errors[0] is errors[1]


@pytest.mark.parametrize("place", ["alone", "coordinated"])
def test_metrics_and_metadata_of_any_kind_end_no_training(
    tmp_path: Path, place: str, request: pytest.FixtureRequest
) -> None:
    odd: dict[str, Any] = {
        "loss": float("nan"), "norm": np.float32(2), "many": np.ones(3), "none": None, "text": "x", "huge": 10**400,
        "number": 3, "self": np.array([0.5]), "data_wait_s": 7, "step": 9, "x" * 100: 1.0, "key\n": 1.0,
    }  # fmt: skip
    url = request.getfixturevalue("url") if place == "coordinated" else None
    state = {"x": np.zeros(1)}
    with join(tmp_path, url) as run:
        for step in run.steps(state, until=3):
            with step:
                state["x"] += 1
                step.report(**odd, **{f"m{number}": 1.0 for number in range(100)})
            run.save(state, step.number, **{name: value for name, value in odd.items() if name != "step"})
        assert run.metrics["norm"] == 2
        assert run.metrics["self"] == 0.5
        run.step(**{name: value for name, value in odd.items() if name != "number"})
        found = run.checkpoints.load(3).metadata
    assert math.isnan(found["loss"])
    assert (found["norm"], found["huge"], found["number"]) == (2.0, 10**400, 3)
    assert "many" not in found
