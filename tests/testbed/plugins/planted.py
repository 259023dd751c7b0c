"""pytest, run on planted tests with the plugins of this test bed: how the plugins themselves are tested."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

from tests.testbed.pace import stretch

ROOT = Path(__file__).parents[3]
PLUGINS = ("deadlines", "default_process", "failures", "lanes", "scheduling")
CONFTEST = f"pytest_plugins = {[f'tests.testbed.plugins.{name}' for name in PLUGINS]}\n"
MARKERS = "markers = part(name)\n quick\n full\n timing\n slow\n"


def run_pytest(folder: Path, tests: str, *options: str, conftest: str = CONFTEST, **popen: object) -> tuple[int, str]:
    """Run the tests of one file, and return the exit code and what was printed."""
    (folder / "conftest.py").write_text(conftest)
    (folder / "test_planted.py").write_text(tests)
    (folder / "pytest.ini").write_text(f"[pytest]\nasyncio_mode = auto\ntimeout = 1\n{MARKERS}")
    done = subprocess.run(
        [sys.executable, "-m", "pytest", "-p", "no:cacheprovider", "-rA", "--tb=line", *options, folder],
        cwd=ROOT,
        env={**os.environ, "PYTHONPATH": os.pathsep.join([str(ROOT / "src"), str(ROOT)])},
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        timeout=stretch(100),
        **popen,
    )
    return done.returncode, done.stdout


def named(outcome: str, output: str) -> set[str]:
    """Return the tests that have an outcome in pytest's summary."""
    summary = output.partition("short test summary info")[2].partition("failed tests, with")[0]
    lines = (line.split() for line in summary.splitlines())
    return {line[1].split("::")[-1] for line in lines if len(line) > 1 and line[0] == outcome and "::" in line[1]}
