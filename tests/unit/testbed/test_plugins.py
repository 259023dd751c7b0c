"""The plugins of the test bed on planted tests: what runs alone, what a log ends with, and which lane runs what."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from tests.testbed.plugins.planted import CONFTEST, ROOT, named, run_pytest

pytestmark = pytest.mark.full

# Each test writes when it begins and ends. Three groups, so that three processes have something to do.
ALONE = """
import os, time
import re
from pathlib import Path
import pytest

def note(what):
    with open(Path(__file__).with_name("log"), "a") as log:
        log.write(f"{what} {os.getpid()}\\n")

@pytest.mark.timing
@pytest.mark.parametrize("number", range(2))
def test_alone(number):
    note("alone begins")
    time.sleep(0.2)
    note("alone ends")

@pytest.mark.parametrize("number", range(3))
@pytest.mark.parametrize("group", [pytest.param(name, marks=pytest.mark.xdist_group(name)) for name in "abc"])
def test_together(group, number):
    note("other begins")
    time.sleep(0.1 if group == "a" else 0)
    note("other ends")
"""


def test_a_test_that_depends_on_the_machines_speed_runs_last_and_alone(tmp_path: Path) -> None:
    code, output = run_pytest(tmp_path, ALONE, "-n", "3", "--dist", "loadgroup")
    assert code == 0, output
    assert "11 passed" in output
    log = [line.split() for line in (tmp_path / "log").read_text().splitlines()]
    assert [line[:2] for line in log[-4:]] == [["alone", "begins"], ["alone", "ends"]] * 2
    assert len(log) == 22
    # The groups of this one file were shared between processes, so it was not its order that put those two last.
    assert len({process for *_, process in log}) == 3


FAILING = """
import subprocess, sys

def program(said, **options):
    return subprocess.Popen([sys.executable, "-c", f"import sys; print({said!r}, file=sys.stderr)"], **options)

def test_fails(tmp_path):
    with program("earlier", stderr=subprocess.PIPE) as first, (tmp_path / "log").open("w") as log:
        assert first.stderr.read() == b"earlier\\n"
        second = program("in a file", stderr=log)
        third = program("never read", stderr=subprocess.PIPE, text=True)
        subprocess.run([sys.executable, "-c", "print('captured')"], capture_output=True)
        second.wait(), third.wait()
        assert 1 == 2, "this is why"

def test_passes():
    program("of another test", stderr=subprocess.DEVNULL).wait()
"""


def test_a_log_ends_with_each_failed_test_its_seed_and_the_last_lines_of_its_processes(tmp_path: Path) -> None:
    code, output = run_pytest(tmp_path, FAILING, "-n", "2")
    assert code == 1, output
    end = output.partition("failed tests, with the last lines of their processes")[2]
    assert "test_planted.py::test_fails (call)" in end
    assert "\n  seed " in end
    assert "this is why" in end
    shown = [line.strip() for line in end.splitlines() if line.startswith("    | ")]
    assert sorted(shown) == ["| captured", "| earlier", "| in a file", "| never read"]
    assert end.count("which ended with 0: ") == 4
    assert "of another test" not in end


SAME_NAME = """
import copy
import pytest

@pytest.hookimpl(wrapper=True)
def pytest_collection_modifyitems(items):
    items.append(copy.copy(items[0]))
    return (yield)
"""


@pytest.mark.parametrize(
    "options", [["-n", "2", "--dist", "loadgroup"], ["-p", "no:xdist"]], ids=["processes", "one process"]
)
def test_tests_with_the_same_name_are_refused_because_xdist_runs_one_of_them(
    tmp_path: Path, options: list[str]
) -> None:
    code, output = run_pytest(tmp_path, "def test_once(): pass", *options, conftest=CONFTEST + SAME_NAME)
    assert code != 0
    assert "several tests have the same name" in output, output


LANES = """
import pytest

def test_quick(): pass

@pytest.mark.part("no such part")
def test_with_a_part(): pass

@pytest.fixture
def s3_server(): pass

@pytest.fixture
def bucket(s3_server): pass

def test_with_a_server_behind_a_fixture(bucket): pass

@pytest.mark.full
class TestLong:
    def test_long(self): pass

    @pytest.mark.quick
    def test_short_among_long(self): pass
"""


def test_what_needs_a_part_is_left_to_the_full_lane(tmp_path: Path) -> None:
    makefile = (ROOT / "Makefile").read_text()
    quick, full = re.findall(r'^\t\$\(PYTEST\) .*-m "(.*full.*)"$', makefile, re.MULTILINE)
    code, output = run_pytest(tmp_path, LANES, "-m", quick)
    assert code == 0, output
    assert named("PASSED", output) == {"test_quick", "test_short_among_long"}
    code, output = run_pytest(tmp_path, LANES, "-m", full, "--collect-only", "-q")
    assert {line.rpartition("::")[2] for line in output.splitlines() if "::" in line} == {
        "test_with_a_part",
        "test_with_a_server_behind_a_fixture",
        "test_long",
    }
