"""A stopped worker does not look finished: its process exits with 143, whoever started it and whatever it catches."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
import textwrap
import urllib.request
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import TypeAlias

import pytest

from strata.client.unary import configure_job
from tests.testbed.coordinator import CoordinatorProcess
from tests.testbed.pace import stretch
from tests.testbed.process import end, start

Popen: TypeAlias = "subprocess.Popen[str]"
pytestmark = [pytest.mark.full, pytest.mark.timeout(150)]

SCRIPT = """
import atexit, multiprocessing, os, sys, time
from pathlib import Path
import numpy as np
import strata

folder = Path(sys.argv[1])

def train(run):
    state = {"steps": np.zeros(1, np.int64)}
    for step in run.steps(state, until=1000):
        with step:
            state["steps"] += 1
            if step.number == 3:
                os.kill(os.getpid(), 15)
            time.sleep(0.01)
    print("finished")

def main():
    run = strata.join(checkpoints=folder / "c", save_every="1000 steps", local="--local" in sys.argv)
    atexit.register(print, "at exit", flush=True)
BODY
    print("after the loop", flush=True)

if __name__ == "__main__":  # a spawned child imports this file
    left_open = (folder / "left open").open("w")
    left_open.write("flushed")
    main()
"""
BARE = """
try:
    train(run)
except BaseException:
    pass
"""
CLOSED = (
    BARE
    + """
run.close()
"""
)
WITH = """
with run:
    try:
        train(run)
    except strata.Stopped:
        pass
"""
EXITED = """
with run:
    try:
        train(run)
    except SystemExit:
        print("after the loop", flush=True)
        sys.exit(0)
"""
FORKED = """
try:
    train(run)
except SystemExit:
    child = os.fork()
    if not child:
        sys.exit(5)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 5
    child = multiprocessing.get_context("spawn").Process(target=print)
    child.start()
    child.join()
    assert child.exitcode == 0
"""
HANDLED = """
with run:
    try:
        train(run)
    except strata.Stopped as stopped:
        stopped.mark_handled()
"""
FAILED = """
with run:
    try:
        train(run)
    except BaseException:
        print("after the loop", flush=True)
        raise KeyError("an error of the script")
"""


def run_script(folder: Path, body: str, *options: str, launcher: tuple[str, ...] = (), url: str = "") -> int:
    """Run a script whose worker is stopped after step 3; return its exit code."""
    script = folder / "train.py"
    script.write_text(SCRIPT.replace("BODY", textwrap.indent(body, "    ")))
    with start(
        [sys.executable, *launcher, script, folder, *options],
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        env={**os.environ, "OMP_NUM_THREADS": "1", "COORDINATOR_URL": url},
        by_exec=True,  # how an interpreter ends is what is tested
    ) as process:
        try:
            said, _ = process.communicate(timeout=stretch(100))
        finally:
            process.kill()
    assert "stopped by SIGTERM after step" in said, said
    assert "after the loop" in said, said
    assert "finished" not in said, said
    assert (folder / "left open").read_text() == "flushed"
    code: int = process.returncode
    return code


@pytest.mark.parametrize(
    ("body", "code"),
    [
        pytest.param(BARE, 143, id="caught"),
        pytest.param(WITH, 143, id="caught in the block"),
        pytest.param(EXITED, 143, id="exited with 0"),
        pytest.param(FORKED, 143, id="with children"),
        pytest.param(HANDLED, 0, id="marked as handled"),
        pytest.param(FAILED, 1, id="failed afterwards"),
    ],
)
def test_the_exit_code_says_preempted_whatever_the_script_does(tmp_path: Path, body: str, code: int) -> None:
    assert run_script(tmp_path, body, "--local") == code


@pytest.mark.parametrize("body", [BARE, CLOSED, WITH], ids=["left open", "closed", "block"])
def test_a_hidden_stop_is_a_preemption_for_the_coordinator_too(tmp_path: Path, body: str) -> None:
    coordinator = CoordinatorProcess(tmp_path)
    with coordinator.serving():
        assert run_script(tmp_path, body, url=coordinator.url) == 143
        with urllib.request.urlopen(f"{coordinator.http_url}/api/events", timeout=stretch(20)) as reply:
            events = reply.read().decode()
    assert "was preempted" in events, events


@pytest.mark.part("torch")
@pytest.mark.xdist_group("whole runs")
def test_torchrun_sees_that_a_worker_hid_its_stop(tmp_path: Path) -> None:
    coordinator = CoordinatorProcess(tmp_path)
    launcher = ("-m", "torch.distributed.run", "--standalone", "--nproc-per-node=1", "--max-restarts=0")
    with coordinator.serving():
        assert run_script(tmp_path, WITH, launcher=launcher, url=coordinator.url) != 0


def test_a_stop_that_was_handled_ends_a_standalone_job(tmp_path: Path) -> None:
    launcher = ("-m", "strata", "run", "--standalone", "--max-restarts", "0")
    assert run_script(tmp_path, HANDLED, launcher=launcher) == 0


WAITING = """
import sys, time
from pathlib import Path
import numpy as np
import strata

def main():
    state = {"steps": np.zeros(1, np.int64)}
    with strata.join(checkpoints=Path(sys.argv[1]) / "c", save_every="5 steps") as run:
        for step in run.steps(state, until=100_000):
            with step:
                run.barrier(f"step {step.number}")
                state["steps"] += 1
                print("step", step.number, flush=True)
                time.sleep(0.01)

main()
"""


@pytest.mark.quick
def test_a_worker_that_waits_for_others_can_be_stopped_and_says_which_step_it_did_last(tmp_path: Path) -> None:
    coordinator = CoordinatorProcess(tmp_path)
    (tmp_path / "train.py").write_text(WAITING)
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "COORDINATOR_URL": coordinator.url, "WORLD_SIZE": "2"}
    with ExitStack() as stack:
        stack.enter_context(coordinator.serving())
        configure_job(coordinator.url, "default", min_workers=2, max_workers=2)
        workers = [
            start(
                [sys.executable, tmp_path / "train.py", tmp_path],
                stdout=subprocess.PIPE,
                stderr=subprocess.STDOUT,
                text=True,
                env={**environment, "RANK": str(rank)},
            )
            for rank in range(2)
        ]
        for worker in workers:
            stack.callback(end, worker)
        lost, left = workers
        assert left.stdout is not None
        next(line for line in left.stdout if line.startswith("step 12"))
        lost.kill()
        next(line for line in left.stdout if "waiting for" in line and "1 more worker" in line)
        left.send_signal(signal.SIGTERM)
        said, _ = left.communicate(timeout=stretch(50))
    assert left.returncode == 143, said
    assert re.search(r"stopped by SIGTERM after step [1-9]\d+", said), said


def test_a_job_that_is_stopped_before_its_workers_join_does_not_say_that_nothing_is_saved(tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text("import time\nprint('started', flush=True)\ntime.sleep(600)\n")
    command = [sys.executable, "-m", "strata", "run", "--standalone", tmp_path / "train.py"]
    with start(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True) as process:
        assert process.stdout is not None
        next(line for line in process.stdout if "started" in line)
        process.terminate()
        said, _ = process.communicate(timeout=stretch(50))
    assert "stopped by SIGTERM: nothing was saved since this start" in said, said


EXPORT = """
import os, sys, time
from pathlib import Path
import numpy as np
import strata

folder = Path(sys.argv[1])
how = sys.argv[2]

def export():
    print("exporting", os.environ.get("RANK"), flush=True)
    while not (folder / "go on").exists():
        time.sleep(0.05)
    print("exported", flush=True)

def main():
    state = {"steps": np.zeros(1, np.int64)}
    with strata.join(checkpoints=folder / "c", local="COORDINATOR_URL" not in os.environ) as run:
        if how == "by hand":
            run.restore(state)
            for number in range(1, 4):
                run.step(number)
            run.save(state).result()
        for step in run.steps(state, until=3) if how != "by hand" else ():
            with step:
                state["steps"] += 1
            if how == "left" and step.number == 2:
                break
        if how == "inside":
            export()
    if how != "inside":
        export()

main()
"""
GOES_ON = "SIGTERM came when the training loop was over"


@contextmanager
def exporting(folder: Path, *arguments: str, launcher: tuple[str, ...] = (), workers: int = 1) -> Iterator[Popen]:
    """Run a script until all its workers export; they go on when the file "go on" is there."""
    (folder / "train.py").write_text(EXPORT)
    with start(
        [sys.executable, *launcher, folder / "train.py", folder, *arguments],
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        env={**os.environ, "OMP_NUM_THREADS": "1"},
    ) as process:
        try:
            assert process.stdout is not None
            for _ in range(workers):
                next(line for line in process.stdout if "exporting" in line)
            yield process
        finally:
            end(process)


def read_until(process: Popen, what: str) -> str:
    assert process.stdout is not None
    return next(line for line in process.stdout if what in line)


def finish(process: Popen, folder: Path) -> str:
    (folder / "go on").touch()
    said, _ = process.communicate(timeout=stretch(50))
    return str(said)


@pytest.mark.parametrize("how", ["inside", "after", "left", "by hand"])
def test_sigterm_during_an_export_leaves_it_its_time(tmp_path: Path, how: str) -> None:
    with exporting(tmp_path, how) as process:
        process.terminate()
        read_until(process, GOES_ON)
        said = finish(process, tmp_path)
        assert process.returncode == 0, said
        assert said.count("exported") == 1
        assert GOES_ON not in said


def test_a_second_sigterm_during_an_export_ends_the_process(tmp_path: Path) -> None:
    with exporting(tmp_path, "after") as process:
        process.terminate()
        read_until(process, GOES_ON)
        process.terminate()
        assert process.wait(stretch(30)) == -signal.SIGTERM


@pytest.mark.parametrize("how", ["inside", "after", "by hand"])
def test_sigterm_at_a_launcher_leaves_exports_their_time_beyond_its_grace(tmp_path: Path, how: str) -> None:
    launcher = ("-m", "strata", "run", "--standalone", "--nproc", "2", "--grace", "0.1")
    # Their loop by hand is over for the launcher when their run is closed.
    with exporting(tmp_path, how, launcher=launcher, workers=2) as process:
        process.terminate()
        read_until(process, "the training is over, and ranks 0, 1 may end their work; signal again to kill them")
        said = finish(process, tmp_path)
        assert process.returncode == 0, said
        assert said.count("exported") == 2
        assert "strata run: SIGTERM came when the training was over: the job is saved up to step 3" in said


def test_a_second_sigterm_at_a_launcher_kills_exports(tmp_path: Path) -> None:
    launcher = ("-m", "strata", "run", "--standalone")
    with exporting(tmp_path, "after", launcher=launcher) as process:
        process.terminate()
        read_until(process, GOES_ON)
        process.terminate()
        assert process.wait(stretch(50)) == 143


def test_a_program_that_ends_with_0_because_it_was_told_to_is_not_finished(tmp_path: Path) -> None:
    script = (
        "import signal, sys\nsignal.signal(15, lambda *_: sys.exit(0))\nprint('ready', flush=True)\nsignal.pause()\n"
    )
    (tmp_path / "train.py").write_text(script)
    command = [sys.executable, "-m", "strata", "run", "--standalone", tmp_path / "train.py"]
    with start(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True) as process:
        read_until(process, "ready")
        process.terminate()
        assert process.wait(stretch(50)) == 143
