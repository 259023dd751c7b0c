"""What a worker starts beside itself: processes that it forks, and those that a signal must not take from it."""

from __future__ import annotations

import itertools
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from tests.integration.run.test_launcher import wait_gone
from tests.testbed.pace import stretch
from tests.testbed.process import start

pytestmark = [pytest.mark.full, pytest.mark.timeout(120)]

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
def launching(script: str, folder: Path, *, head: str = HEAD) -> Iterator[subprocess.Popen[str]]:
    (folder / "train.py").write_text(head + script)
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


STARTS = """
import multiprocessing, os, signal, subprocess, sys, time
def wait(name):
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    os.write(1, f"process {name} {os.getpid()}\\n".encode())  # at once: six processes write lines
    time.sleep(600)
if __name__ == "__main__":
    multiprocessing.get_context("fork").Process(target=wait, args=["forked"]).start()
    multiprocessing.get_context("spawn").Process(target=wait, args=["spawned"]).start()
    asleep = "import os, sys, time; os.write(1, f'process {sys.argv[1]} {os.getpid()}{chr(10)}'.encode()); "
    asleep += "time.sleep(600)"
    subprocess.Popen(["sh", "-c", 'echo process shell $$; "$0" -c "$1" grandchild; true', sys.executable, asleep])
    apart = subprocess.Popen([sys.executable, "-c", asleep, "apart"], start_new_session=True)
    wait("worker")
"""


def test_what_a_worker_has_started_dies_with_a_launcher_that_is_killed(tmp_path: Path) -> None:
    with launching(STARTS, tmp_path, head="") as process:
        assert process.stdout is not None
        started = [
            line.split()[-2:] for line in itertools.islice((each for each in process.stdout if "process" in each), 6)
        ]
        pids = {name: int(pid) for name, pid in started}
        apart = pids.pop("apart")
        try:
            process.kill()
            process.wait()
            wait_gone(list(pids.values()))
            assert Path(f"/proc/{apart}").exists(), "a session of its own is left alone"
        finally:
            os.kill(apart, signal.SIGKILL)


def test_a_worker_has_no_children_that_it_did_not_start(tmp_path: Path) -> None:
    script = "import os\ntry:\n    print('waited', os.wait())\nexcept ChildProcessError:\n    print('no children')\n"
    with launching(script, tmp_path, head="") as process:
        said, _ = process.communicate(timeout=stretch(55))
    assert "no children" in said, said


def test_a_worker_that_is_told_to_stop_keeps_its_data_loaders_until_it_has_saved(tmp_path: Path) -> None:
    with launching(LOADS, tmp_path) as process:
        assert process.stdout is not None
        next(line for line in process.stdout if "step 5" in line)
        process.send_signal(signal.SIGTERM)
        said, _ = process.communicate(timeout=stretch(55))
    assert "which is saved" in said, said
    assert "Traceback" not in said
    assert process.returncode == 143
