"""pytest itself, run on planted tests that hang: each of them fails alone, and all others run."""

from __future__ import annotations

import signal
from pathlib import Path

import pytest

from tests.testbed.pace import factor
from tests.testbed.plugins import planted
from tests.testbed.plugins.planted import named

pytestmark = pytest.mark.full

# Short limits, stretched once for this machine: these tests hang for as long as they are let.
CONFTEST = f"""{planted.CONFTEST}
from tests.testbed import pace
from tests.testbed.plugins import deadlines

pace.factor = lambda: {min(factor(), 5.0)}
deadlines.LEAST_SETUP_S, deadlines.AGAIN_S, deadlines.HARD_STOP_S, deadlines.EXIT_S = 1.0, 0.3, 2.0, 10.0

def pytest_runtest_logreport(report):
    # As on a loaded machine: the time runs out in pytest's own code, where nothing catches an alarm.
    if "slow_report" in report.nodeid:
        import time
        time.sleep(0.6)
"""

HANGING = """
import asyncio, ctypes, threading, time
import hypothesis, hypothesis.strategies
import pytest

def test_before():
    pass

@pytest.fixture
def slow_to_set_up():
    time.sleep(100)

def test_slow_setup(slow_to_set_up):
    pass

def test_after_slow_setup():
    pass

@pytest.fixture
def slow_to_tear_down():
    yield
    time.sleep(100)

def test_slow_teardown(slow_to_tear_down):
    pass

def test_after_slow_teardown():
    pass

@pytest.fixture(scope="session")
def slow_for_all():
    time.sleep(100)

def test_slow_session_fixture(slow_for_all):
    pass

def test_sleeps():
    time.sleep(100)

def test_waits_for_a_thread():
    threading.Thread(target=time.sleep, args=[100]).start()
    threading.enumerate()[-1].join()

def test_sleeps_in_c():
    ctypes.CDLL(None).sleep(100)

def test_swallows_what_is_raised():
    for _ in range(1000):
        try:
            time.sleep(100)
        except BaseException:
            break
    time.sleep(100)

@hypothesis.given(hypothesis.strategies.integers())
def test_hangs_in_a_generated_example(number):
    time.sleep(100)

async def test_hangs_in_a_callback():
    asyncio.get_running_loop().call_soon(time.sleep, 100)
    await asyncio.Event().wait()

def test_slow_report():
    pass

def test_last():
    pass
"""

# Neither a signal nor a thread of Python reaches these.
OUT_OF_REACH = """
import ctypes, os
import pytest

@pytest.mark.parametrize("number", range(3))
def test_before(number):
    pass

def test_holds_the_interpreter():
    ctypes.PyDLL(None).select(0, None, None, None, None)
    while True:
        ctypes.PyDLL(None).pause()

def test_ends_its_process():
    os._exit(3)

@pytest.mark.parametrize("number", range(5))
def test_after(number):
    pass
"""


def run_pytest(folder: Path, tests: str, *options: str, **popen: object) -> tuple[int, str]:
    return planted.run_pytest(folder, tests, *options, conftest=CONFTEST, **popen)


@pytest.mark.parametrize(
    "options",
    [
        pytest.param(["-p", "no:xdist"], id="one", marks=pytest.mark.slow),
        pytest.param(["-n", "2", "--dist", "loadgroup"], id="two"),
    ],
)
def test_a_test_that_hangs_fails_alone_wherever_it_hangs(tmp_path: Path, options: list[str]) -> None:
    code, output = run_pytest(tmp_path, HANGING, *options)
    assert code == 1, output
    assert "INTERNALERROR" not in output
    assert named("FAILED", output) == {
        "test_sleeps",
        "test_waits_for_a_thread",
        "test_sleeps_in_c",
        "test_swallows_what_is_raised",
        "test_hangs_in_a_callback",
        "test_hangs_in_a_generated_example",
    }, output
    assert named("ERROR", output) == {"test_slow_setup", "test_slow_teardown", "test_slow_session_fixture"}, output
    passed = {"test_before", "test_after_slow_setup", "test_after_slow_teardown", "test_slow_report", "test_last"}
    assert named("PASSED", output) - {"test_slow_teardown"} == passed, output


@pytest.mark.slow
def test_a_test_that_no_signal_reaches_ends_its_process_and_the_others_run_in_another(tmp_path: Path) -> None:
    code, output = run_pytest(tmp_path, OUT_OF_REACH, "-n", "2", "--dist", "loadgroup")
    assert code == 1, output
    assert named("FAILED", output) == {"test_holds_the_interpreter", "test_ends_its_process"}, output
    assert {f"test_after[{number}]" for number in range(5)} <= named("PASSED", output), output
    assert "2 failed, 8 passed" in output
    assert "in test_holds_the_interpreter" in output  # where it was


# The first of them, in the order of the file, is the shortest.
IN_TURN = """
import time
import pytest
from tests.testbed.plugins import deadlines

deadlines.EXIT_S = 0.2

@pytest.mark.xdist_group("short")
def test_short():
    pass

@pytest.mark.xdist_group("many")
@pytest.mark.parametrize("number", range(5))
def test_many(number):
    pass

@pytest.mark.timeout(60)
@pytest.mark.xdist_group("long")
def test_long():
    time.sleep(3)
"""


def test_long_tests_come_first(tmp_path: Path) -> None:
    code, output = run_pytest(tmp_path, IN_TURN, "-v", "-n", "1", "--dist", "loadgroup")
    assert code == 0, output
    assert output.index("::test_long") < output.index("::test_short"), output


def test_a_process_without_tests_waits_for_the_other(tmp_path: Path) -> None:
    code, output = run_pytest(tmp_path, IN_TURN, "-v", "-n", "2", "--dist", "loadgroup")
    assert code == 0, output
    assert "Timeout" not in output, output
    assert "Thread 0x" not in output, output


def test_what_a_test_starts_has_default_signals_in_a_run_that_ignores_them(tmp_path: Path) -> None:
    planted = """
import signal, subprocess, sys

def test_ctrl_c_ends_a_program():
    with subprocess.Popen([sys.executable, "-c", "import time; print(flush=True); time.sleep(100)"],
                          stdout=subprocess.PIPE, stderr=subprocess.DEVNULL) as program:
        program.stdout.readline()
        program.send_signal(signal.SIGINT)
        assert program.wait(20) == -signal.SIGINT
"""

    def ignore() -> None:
        for number in (signal.SIGINT, signal.SIGQUIT, signal.SIGHUP):
            signal.signal(number, signal.SIG_IGN)

    code, output = run_pytest(tmp_path, planted, "-p", "no:xdist", preexec_fn=ignore)
    assert code == 0, output
