"""``strata status`` and ``strata events`` as someone on call runs them."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

import strata
from tests.integration.test_coordinator_faults import wait_until
from tests.testbed.coordinator import CoordinatorProcess

COMMAND = Path(sys.executable).with_name("strata")


def run(*arguments: object) -> subprocess.CompletedProcess[str]:
    return subprocess.run([COMMAND, *map(str, arguments)], capture_output=True, text=True, check=False)


@pytest.fixture
def coordinator(tmp_path: Path) -> Iterator[CoordinatorProcess]:
    process = CoordinatorProcess(tmp_path)
    with process.serving():
        yield process


def train(url: str, folder: Path, *, steps: int) -> strata.Run:
    """Train alone and stay in the job."""
    worker = strata.join(coordinator_url=url, worker_id="w", checkpoints=folder, save_every="2 steps")
    state = {"x": np.zeros(1)}
    for step in worker.steps(state, until=steps):
        with step:
            state["x"] += 1
            step.report(loss=1 / step.number)
    worker.checkpoints.wait_pending()
    return worker


def test_status_shows_who_does_what_how_fast_and_with_what_loss(
    coordinator: CoordinatorProcess, tmp_path: Path
) -> None:
    assert run("status", "--coordinator", coordinator.url).stdout == "no jobs yet\n"
    with train(coordinator.url, tmp_path / "c", steps=4):
        # It is told with the next beat.
        wait_until(lambda: [worker.step for worker in coordinator.status().workers] == [4])  # type: ignore[union-attr]
        shown = run("status", "--coordinator", coordinator.url).stdout.splitlines()
        (job,) = json.loads(run("status", "--coordinator", coordinator.url, "--json").stdout)["jobs"]
    assert shown[0] == "job default: generation 1"
    assert shown[1].split() == ["worker", "rank", "state", "step", "epoch", "speed", "reports", "last", "word"]
    assert shown[2].split()[:2] == ["w", "0"]
    assert "steps/s" in shown[2]
    assert "loss 0.25" in shown[2]
    assert shown[-1] == "checkpoint step 4, epoch 0: default/checkpoints/step_4/metadata.json"
    (told,) = job["workers"]
    assert (told["worker_id"], told["step"], told["resources"]["loss"]) == ("w", "4", 0.25)


def test_status_names_a_checkpoint_that_cannot_be_restored(coordinator: CoordinatorProcess, tmp_path: Path) -> None:
    with train(coordinator.url, tmp_path / "c", steps=4):
        pass
    (tmp_path / "c/default/checkpoints/step_4/metadata.json").write_bytes(b"{")
    with train(coordinator.url, tmp_path / "c", steps=3) as worker:
        assert worker.step_number == 3
        shown = run("status", "--coordinator", coordinator.url).stdout
        events = run("events", "--coordinator", coordinator.url, "--job", "default").stdout
    assert "checkpoint step 4 cannot be restored: step 4 is damaged" in shown
    assert "default w  checkpoint rejected: step 4: step 4 is damaged" in events


def test_events_are_told_as_they_come(coordinator: CoordinatorProcess, tmp_path: Path) -> None:
    follow = [COMMAND, "events", "--follow", "--json", "--coordinator", coordinator.url]
    with subprocess.Popen(follow, stdout=subprocess.PIPE, text=True) as following:
        assert following.stdout is not None
        with train(coordinator.url, tmp_path / "c", steps=2):
            told = ""
            while "checkpoint committed" not in told:
                told += following.stdout.readline()
        following.send_signal(signal.SIGINT)
        assert following.wait() == 130
    assert "w joined" in told
    once = run("events", "--coordinator", coordinator.url)
    assert "default  generation changed: 2: w left" in once.stdout
    assert run("events", "--coordinator", coordinator.url, "--job", "other").stdout == ""


def test_a_coordinator_that_is_not_there_is_one_line(tmp_path: Path) -> None:
    done = run("status", "--coordinator", CoordinatorProcess(tmp_path).url)
    assert (done.returncode, done.stdout) == (1, "")
    assert done.stderr.startswith("strata: error: the coordinator at 127.0.0.1:")
    assert done.stderr.count("\n") == 1
