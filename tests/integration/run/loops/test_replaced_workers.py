"""The newest process of a worker wins: the older one stops at its next step, however it saves."""

from __future__ import annotations

import os
import subprocess
import sys
from contextlib import ExitStack
from pathlib import Path

import pytest

from tests.testbed.coordinator import CoordinatorProcess
from tests.testbed.pace import stretch
from tests.testbed.process import end, read_line, start

pytestmark = [pytest.mark.full, pytest.mark.timeout(150)]

SCRIPT = """
import itertools, sys, time

folder, cadence, how, *clock_s = sys.argv[1:]
if clock_s:
    # A wall clock that is wrong by so much. Not time.time, nor faketime: gRPC adds up readings of several clocks.
    skew_s, time_ns = int(clock_s[0]), time.time_ns
    time.time_ns = lambda: time_ns() + skew_s * 10**9

import numpy as np
import strata

state = {"steps": np.zeros(1, np.int64)}

def steps(run):
    if how == "by hand":
        run.restore(state)
        for number in itertools.count(run.next_step):
            yield number
            run.step(number)
    else:
        for step in run.steps(state, until=1_000_000, recover=how != "not recovering"):
            with step:
                yield step.number

with strata.join(worker_id="w", checkpoints=f"{folder}/c", save_every=cadence) as run:
    for number in steps(run):
        print(number, flush=True)
        time.sleep(0.02)
"""
CADENCES = ["5 steps", "0.2 s", "1000000 steps"]


def worker(folder: Path, url: str, cadence: str, how: str, *launcher: str, clock_s: int = 0) -> subprocess.Popen[str]:
    (folder / "train.py").write_text(SCRIPT)
    process: subprocess.Popen[str] = start(
        [sys.executable, *launcher, folder / "train.py", folder, cadence, how, *([str(clock_s)] if clock_s else [])],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env={**os.environ, "OMP_NUM_THREADS": "1", "COORDINATOR_URL": url},
    )
    return process


def check_replaced(first: subprocess.Popen[str], second: subprocess.Popen[str]) -> None:
    """The first one ends with the error that says why, and the second one trains on."""
    _, said = first.communicate(timeout=stretch(60))
    assert first.returncode == 1, said
    assert "DuplicateWorkerError: another process has joined job 'default' as worker 'w'" in said
    assert int(read_line(second).removeprefix("[0] ")) > 0
    assert second.poll() is None


@pytest.mark.parametrize("how", ["recovering", "not recovering", "by hand"])
@pytest.mark.parametrize("cadence", CADENCES)
def test_a_replaced_worker_stops_by_itself_however_it_saves(tmp_path: Path, cadence: str, how: str) -> None:
    service = CoordinatorProcess(tmp_path, "--lease", "2")
    with service.serving(), ExitStack() as stack:
        first = worker(tmp_path, service.url, cadence, how)
        stack.callback(end, first)
        assert int(read_line(first)) == 1
        second = worker(tmp_path, service.url, cadence, how)
        stack.callback(end, second)
        read_line(second)
        check_replaced(first, second)


@pytest.mark.parametrize("launcher", [(), ("-m", "strata", "run")], ids=["alone", "launched"])
def test_a_worker_whose_clock_is_an_hour_back_replaces_one_that_trains_and_one_that_left(
    tmp_path: Path, launcher: tuple[str, ...]
) -> None:
    service = CoordinatorProcess(tmp_path, "--lease", "2")
    with service.serving(), ExitStack() as stack:
        for clock_s in (3_600, -3_600):
            before = worker(tmp_path, service.url, CADENCES[0], "recovering")
            stack.callback(end, before)
            read_line(before)
            after = worker(tmp_path, service.url, CADENCES[0], "recovering", *launcher, clock_s=clock_s)
            stack.callback(end, after)
            read_line(after)
            check_replaced(before, after)
            # It says goodbye, and the next one comes after it.
            after.terminate()
            after.communicate(timeout=stretch(60))


def test_a_launcher_does_not_start_a_replaced_worker_again(tmp_path: Path) -> None:
    service = CoordinatorProcess(tmp_path, "--lease", "2")
    with service.serving(), ExitStack() as stack:
        first = worker(tmp_path, service.url, CADENCES[0], "not recovering", "-m", "strata", "run")
        stack.callback(end, first)
        read_line(first)
        second = worker(tmp_path, service.url, CADENCES[0], "recovering")
        stack.callback(end, second)
        read_line(second)
        _, said = first.communicate(timeout=stretch(60))
        assert first.returncode == 1, said
        assert "DuplicateWorkerError does not go away by itself" in said
        assert int(read_line(second)) > 0


def test_a_worker_that_is_replaced_while_the_coordinator_is_away_stops_when_it_is_back(tmp_path: Path) -> None:
    service = CoordinatorProcess(tmp_path, "--lease", "2")
    with ExitStack() as stack:
        with service.serving():
            first = worker(tmp_path, service.url, CADENCES[0], "recovering")
            stack.callback(end, first)
            read_line(first)
        second = worker(tmp_path, service.url, CADENCES[0], "recovering")
        stack.callback(end, second)
        read_line(first)
        assert first.poll() is None
        with service.serving():
            read_line(second)
            check_replaced(first, second)
