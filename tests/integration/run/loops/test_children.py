"""What a worker starts beside itself: processes that it forks, and those that a signal must not take from it."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from tests.testbed.pace import stretch
from tests.testbed.process import start

pytestmark = pytest.mark.timeout(120)

HEAD = """
import multiprocessing, os, subprocess, sys, time
import numpy as np
import strata
state = {"steps": np.zeros(1, np.int64)}
def double(x):
    return 2 * x
with strata.join(checkpoints=sys.argv[1], save_every="1000 steps") as run:
"""
FORKS = """
    for step in run.steps(state, until=20):
        with step:
            state["steps"] += 1
            if step.number == 5:
                child = os.fork()
                if not child:
                    sys.exit(0)
                os.waitpid(child, 0)
print("forked", run.step_number)
"""
POOL = """
    for step in run.steps(state, until=20):
        with step:
            state["steps"] += 1
            if step.number % 5 == 0:
                with multiprocessing.get_context("fork").Pool(2) as pool:
                    assert pool.map(double, [1, 2]) == [2, 4]
print("forked", run.step_number)
"""
LOADS = """
    loader = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"])
    for step in run.steps(state, until=100_000):
        with step:
            state["steps"] += 1
            assert loader.poll() is None, "the loader is gone"
            time.sleep(0.1)
            print("step", step.number, flush=True)
"""
HIDES = """
    from pathlib import Path
    stop = Path(sys.argv[1]).parent / "stop"
    try:
        for step in run.steps(state, until=40):
            with step:
                state["steps"] += 1
                if stop.exists():
                    stop.unlink()
                    os.kill(os.getpid(), 15)
                time.sleep(0.1)
                print("step", step.number, flush=True)
        print("done", run.step_number)
    except SystemExit:
        print("after the loop")
"""


@contextmanager
def launching(script: str, folder: Path) -> Iterator[subprocess.Popen[str]]:
    (folder / "train.py").write_text(HEAD + script)
    command = [sys.executable, "-m", "strata", "run", "--standalone", "--watchdog", "60"]
    with start(
        [*command, str(folder / "train.py"), str(folder / "c")],
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        env={**os.environ, "OMP_NUM_THREADS": "1"},
    ) as process:
        try:
            yield process
        finally:
            process.kill()


@pytest.mark.parametrize("script", [FORKS, POOL], ids=["fork", "pool"])
def test_a_child_that_was_forked_can_end_and_the_worker_goes_on(tmp_path: Path, script: str) -> None:
    with launching(script, tmp_path) as process:
        said, _ = process.communicate(timeout=stretch(55))
    assert (process.returncode, said.count("forked 20")) == (0, 1), said


def test_a_script_that_hides_stopped_is_preempted_all_the_same(tmp_path: Path) -> None:
    with launching(HIDES, tmp_path) as process:
        assert process.stdout is not None
        next(line for line in process.stdout if "step 5" in line)
        (tmp_path / "stop").touch()
        said, _ = process.communicate(timeout=stretch(55))
    assert "after the loop" in said
    assert "was told to stop (SIGTERM), and left" in said, said
    assert "done 40" in said, "it is started again, because the job needs it"
    assert process.returncode == 0


def test_a_worker_that_is_told_to_stop_keeps_its_data_loaders_until_it_has_saved(tmp_path: Path) -> None:
    with launching(LOADS, tmp_path) as process:
        assert process.stdout is not None
        next(line for line in process.stdout if "step 5" in line)
        process.send_signal(signal.SIGTERM)
        said, _ = process.communicate(timeout=stretch(55))
    assert "which is saved" in said, said
    assert "Traceback" not in said
    assert process.returncode == 143
