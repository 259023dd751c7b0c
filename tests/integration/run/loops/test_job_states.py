"""How a job ended is the same word everywhere, with real workers that finish, fail, are killed and are stopped."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
import urllib.request
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from functools import partial
from pathlib import Path

import pytest

from strata.wire._generated import coordinator_pb2 as pb
from tests.testbed.coordinator import CoordinatorProcess
from tests.testbed.pace import stretch
from tests.testbed.process import start
from tests.testbed.waiting import wait_until

pytestmark = [pytest.mark.full, pytest.mark.timeout(150)]

# It trains until the test says how it ends.
SCRIPT = """
import sys, time
from pathlib import Path
import numpy as np
import strata

folder = Path(sys.argv[1])
recover = "--no-recover" not in sys.argv

with strata.join(checkpoints=folder / "c", save_every="10 steps") as run:
    state = {"steps": np.zeros(1, np.int64)}
    if "--loads" in sys.argv:
        (folder / f"loads {run.rank}").touch()
        time.sleep(1000)
    for step in run.steps(state, until=20 if "--short" in sys.argv else 1_000_000, recover=recover):
        with step:
            state["steps"] += 1
            if step.number == 5 and "--hangs" in sys.argv:
                time.sleep(1000)
            if run.rank == 1 and (folder / "fail").exists():
                raise ValueError("bad loss")
            time.sleep(0.01)
"""


@pytest.fixture
def coordinator(tmp_path: Path) -> Iterator[CoordinatorProcess]:
    coordinator = CoordinatorProcess(tmp_path)
    with coordinator.serving():
        yield coordinator


@contextmanager
def training(
    folder: Path, coordinator: CoordinatorProcess, *options: str, launcher: tuple[str, ...] = ()
) -> Iterator[list[subprocess.Popen[bytes]]]:
    """Run two workers, under a launcher or alone; the block begins when both train, unless they soon finish."""
    script = folder / "train.py"
    script.write_text(SCRIPT)
    command = [sys.executable, *launcher, str(script), str(folder), *options]
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "COORDINATOR_URL": coordinator.url}
    with ExitStack() as stack:
        started = []
        for rank in range(1 if launcher else 2):
            own = {} if launcher else {"RANK": str(rank), "WORLD_SIZE": "2", "WORKER_ID": f"w{rank}"}
            process = start(command, env={**environment, **own}, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
            stack.callback(process.wait)
            stack.callback(process.kill)
            started.append(process)
        if not {"--short", "--loads"} & {*options}:
            wait_until(lambda: trains(coordinator), lambda: f"two workers that train: {coordinator.jobs()}")
        yield started


def trains(coordinator: CoordinatorProcess) -> bool:
    job = coordinator.status()
    return job is not None and job.state == "running" and len(job.workers) == 2 and min(w.step for w in job.workers) > 1


def launched(*options: str) -> tuple[str, ...]:
    return "-m", "strata", "run", "--nproc", "2", *options


def expect_state(coordinator: CoordinatorProcess, state: str) -> pb.JobStatus:
    """Wait until the job is in a state, and check that all say the same word."""
    wait_until(lambda: is_in(coordinator, state), lambda: f"{state}: {coordinator.jobs()}")
    assert coordinator.job().present == 0

    for path in ("/api/jobs", "/api/dashboard"):
        wait_until(partial(says, coordinator, path, f'"state":"{state}"'), f"{state} in {path}")
    metric = re.compile(r'strata_job_state\{job_id="default",state="(\w+)"\} 1.0')
    assert metric.findall(read(coordinator, "/metrics")) == [state]
    return coordinator.job()


def is_in(coordinator: CoordinatorProcess, state: str) -> bool:
    job = coordinator.status()
    return job is not None and job.state == state


def says(coordinator: CoordinatorProcess, path: str, text: str) -> bool:
    return text in read(coordinator, path)


def read(coordinator: CoordinatorProcess, path: str) -> str:
    with urllib.request.urlopen(f"{coordinator.http_url}{path}", timeout=stretch(20)) as reply:
        text: str = reply.read().decode()
    return text


def test_job_that_came_to_its_end_is_finished(tmp_path: Path, coordinator: CoordinatorProcess) -> None:
    with training(tmp_path, coordinator, "--short"):
        assert expect_state(coordinator, "finished").reason in ("w0 finished", "w1 finished")


def test_job_whose_workers_are_all_killed_has_failed(tmp_path: Path, coordinator: CoordinatorProcess) -> None:
    with training(tmp_path, coordinator) as workers:
        for worker in workers:
            worker.kill()
        assert "connection closed without goodbye" in expect_state(coordinator, "failed").reason


def test_job_whose_workers_all_get_sigterm_is_preempted(tmp_path: Path, coordinator: CoordinatorProcess) -> None:
    with training(tmp_path, coordinator) as workers:
        for worker in workers:
            worker.terminate()
        assert "which is saved" in expect_state(coordinator, "preempted").reason


def test_job_whose_workers_all_get_ctrl_c_is_stopped(tmp_path: Path, coordinator: CoordinatorProcess) -> None:
    with training(tmp_path, coordinator) as workers:
        for worker in workers:
            worker.send_signal(signal.SIGINT)
        expect_state(coordinator, "stopped")


def test_exception_in_the_script_fails_the_job_though_the_other_worker_is_only_stopped(
    tmp_path: Path, coordinator: CoordinatorProcess
) -> None:
    with training(tmp_path, coordinator, launcher=launched("--max-restarts", "0")) as (launcher,):
        (tmp_path / "fail").touch()
        launcher.wait(stretch(60))
        assert "ValueError: bad loss" in expect_state(coordinator, "failed").reason


@pytest.mark.parametrize(("number", "state"), [(signal.SIGINT, "stopped"), (signal.SIGTERM, "preempted")])
@pytest.mark.parametrize("option", ["", "--no-recover"])
def test_signal_to_the_launcher_stops_or_preempts_the_job(
    tmp_path: Path, coordinator: CoordinatorProcess, number: signal.Signals, state: str, option: str
) -> None:
    with training(tmp_path, coordinator, option, launcher=launched()) as (launcher,):
        launcher.send_signal(number)
        expect_state(coordinator, state)


def test_job_that_its_launcher_gives_up_has_failed(tmp_path: Path, coordinator: CoordinatorProcess) -> None:
    with training(tmp_path, coordinator, launcher=launched("--max-restarts", "1")) as (launcher,):
        (tmp_path / "fail").touch()
        launcher.wait(stretch(60))
        assert "ValueError: bad loss" in expect_state(coordinator, "failed").reason


def test_job_without_recovery_runs_again_when_its_launcher_has_restarted_it_after_a_crash(
    tmp_path: Path, coordinator: CoordinatorProcess
) -> None:
    with training(tmp_path, coordinator, "--no-recover", launcher=launched()):
        (tmp_path / "fail").touch()
        wait_until(lambda: coordinator.job().state != "running", "a crash")
        (tmp_path / "fail").unlink()
        wait_until(lambda: trains(coordinator), lambda: f"training again: {coordinator.job()}")
        assert '"cause":"regrouped"' in read(coordinator, "/api/events?limit=1000")


@pytest.mark.parametrize(("number", "state"), [(signal.SIGINT, "stopped"), (signal.SIGTERM, "preempted")])
def test_job_that_is_stopped_while_its_workers_load_has_not_failed(
    tmp_path: Path, coordinator: CoordinatorProcess, number: signal.Signals, state: str
) -> None:
    with training(tmp_path, coordinator, "--loads", launcher=launched()) as (launcher,):
        wait_until(lambda: all((tmp_path / f"loads {rank}").exists() for rank in range(2)), "two workers that load")
        launcher.send_signal(number)
        assert "was ended by SIGTERM" in expect_state(coordinator, state).reason


def test_job_whose_workers_are_killed_by_a_second_ctrl_c_is_stopped(
    tmp_path: Path, coordinator: CoordinatorProcess
) -> None:
    with training(tmp_path, coordinator, "--hangs", launcher=launched("--grace", "1000")) as (launcher,):

        def ends() -> bool:
            if launcher.poll() is None:
                launcher.send_signal(signal.SIGINT)
            return launcher.poll() is not None

        wait_until(ends, "the end of a launcher that gets Ctrl-C again and again")
        assert "was ended by SIGKILL" in expect_state(coordinator, "stopped").reason
