"""The test bed keeps its own rules: one place that starts processes, waits that end, deadlines that fit the machine."""

from __future__ import annotations

import ast
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from tests.testbed import pace
from tests.testbed.process import end, free_ports, read_line, start
from tests.testbed.waiting import wait_until

TESTS = Path(__file__).parents[2]
# The janitor of the containers must outlive the test run that was killed: that is what it is for.
STARTERS = {"testbed/containers/engine.py", "testbed/processes/fork_server.py", "testbed/process.py"}


def calls_in(path: Path) -> set[str]:
    return {ast.unparse(node.func) for node in ast.walk(ast.parse(path.read_text())) if isinstance(node, ast.Call)}


def test_processes_are_started_in_one_place() -> None:
    found = {
        path.relative_to(TESTS).as_posix()
        for path in TESTS.rglob("*.py")
        if calls_in(path) & {"subprocess.Popen", "Popen", "asyncio.create_subprocess_exec", "os.spawnv"}
    }
    assert found == STARTERS


def test_a_process_dies_with_the_one_that_started_it() -> None:
    script = (
        "import sys; from tests.testbed.process import start; "
        "child = start([sys.executable, '-c', 'import time; time.sleep(600)']); print(child.pid, flush=True); "
        "import time; time.sleep(600)"
    )
    parent = start([sys.executable, "-c", script], stdout=subprocess.PIPE, text=True, cwd=TESTS.parent)
    try:
        child = int(read_line(parent))
    finally:
        end(parent)
    wait_until(lambda: not Path(f"/proc/{child}").exists(), "the end of the child")


def test_a_process_begins_with_default_signals() -> None:
    script = "import signal; print([signal.getsignal(each).name for each in (signal.SIGTERM, signal.SIGHUP)])"
    before = signal.signal(signal.SIGHUP, lambda *_: None)
    try:
        process = start([sys.executable, "-c", script], stdout=subprocess.PIPE, text=True)
        assert read_line(process) == "['SIG_DFL', 'SIG_DFL']\n"
        end(process)
    finally:
        signal.signal(signal.SIGHUP, before)


@pytest.mark.parametrize("by_exec", [False, True], ids=["forked", "executed"])
def test_a_process_may_open_as_many_files_as_on_most_systems(by_exec: bool) -> None:
    script = "import resource; print(resource.getrlimit(resource.RLIMIT_NOFILE)[0])"
    process = start([sys.executable, "-c", script], by_exec=by_exec, stdout=subprocess.PIPE, text=True)
    assert int(read_line(process)) <= 1024
    end(process)


def test_a_wait_ends_and_says_what_did_not_come(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pace, "factor", lambda: 1.0)
    with pytest.raises(AssertionError, match="never came: the sun"):
        wait_until(lambda: False, "the sun", timeout_s=0.05)
    with pytest.raises(AssertionError, match="never came: step 3"):
        wait_until(lambda: False, lambda: f"step {1 + 2}", timeout_s=0.05)


@pytest.mark.parametrize(
    ("start_s", "load", "expected"),
    [(0.01, 0.0, 1.0), (0.2, 0.0, 4.0), (0.01, 3.0, 3.0), (0.1, 9.0, 9.0), (60.0, 900.0, 10.0)],
)
def test_a_deadline_is_stretched_by_what_is_slower(
    monkeypatch: pytest.MonkeyPatch, start_s: float, load: float, expected: float
) -> None:
    monkeypatch.setattr(pace, "_measured", lambda: start_s / pace.IDLE_START_S)
    monkeypatch.setattr(os, "getloadavg", lambda: (load * (os.cpu_count() or 1), 0.0, 0.0))
    assert pace.stretch(7.0) == pytest.approx(7.0 * expected)


def test_ports_are_never_given_twice_by_any_process_on_the_machine() -> None:
    script = "from tests.testbed.process import free_ports\nfor _ in range(10): print(*free_ports(2))"
    others = [start([sys.executable, "-c", script], stdout=subprocess.PIPE, text=True) for _ in range(3)]
    ports = [port for _ in range(10) for port in free_ports(2)]
    for other in others:
        printed, _ = other.communicate(timeout=pace.stretch(60))
        ports += map(int, printed.split())
    assert len(set(ports)) == len(ports) == 80
    assert max(ports) < 32_768  # below those that the kernel gives to clients
