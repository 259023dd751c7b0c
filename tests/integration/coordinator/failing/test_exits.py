"""A program that ends while its coordinator is down ends soon, with its own exit code, and prints only its own."""

from __future__ import annotations

import subprocess
import sys
import threading
from pathlib import Path

import pytest

from tests.testbed.coordinator import CoordinatorProcess
from tests.testbed.pace import stretch
from tests.testbed.process import start

pytestmark = pytest.mark.full
PROGRAM = Path(__file__).parents[3] / "testbed" / "programs" / "leaving.py"
CODES = {"return": 0, "exception": 1, "sys.exit": 3, "Ctrl-C": -2, "SIGTERM": -15, "a thread that goes on": 0}
OWN = {"exception": "ValueError: of the program itself", "Ctrl-C": "KeyboardInterrupt"}
KINDS = ("client", "waiting client", "manager", "run", "dataset")
# A loop of run.steps takes SIGTERM for a request to save first, see docs/run.md.
CASES = [(kind, way) for kind in KINDS for way in CODES if way != "SIGTERM" or kind in ("client", "manager")]
# One of each way and of each kind, for the tests that need no server; each starts a coordinator and a program.
QUICK = {("client", "Ctrl-C"), ("waiting client", "sys.exit"), ("manager", "return"), ("run", "exception")}


@pytest.mark.parametrize("goes", ["before", "meanwhile"])
@pytest.mark.parametrize(
    ("kind", "way"),
    [
        pytest.param(kind, way, id=f"{kind} {way}", marks=pytest.mark.quick if (kind, way) in QUICK else ())
        for kind, way in CASES
    ],
)
def test_a_program_that_ends_without_its_coordinator_says_nothing_of_it(
    kind: str, way: str, goes: str, tmp_path: Path
) -> None:
    service = CoordinatorProcess(tmp_path)
    with service.serving() as coordinator:
        command = [sys.executable, str(PROGRAM), kind, service.url, str(tmp_path / "checkpoints"), way]
        with start(
            command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
        ) as program:
            assert program.stdout is not None
            assert program.stdout.readline() == "ready\n"
            killing = threading.Thread(target=coordinator.kill)
            killing.start()
            if goes == "before":
                killing.join()
                coordinator.wait()
            _, errors = program.communicate("\n", timeout=stretch(60))
            killing.join()
    assert program.returncode == CODES[way]
    for words in ("never retrieved", "cannot schedule", "Event loop is closed", "was never awaited"):
        assert words not in errors
    own = OWN.get(way)
    assert errors.count("Traceback") == (own is not None)
    assert own is None or own in errors
