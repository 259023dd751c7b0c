"""Which Python ``make`` takes, what it says where there is none that is new enough, and where it keeps its files."""

from __future__ import annotations

import shutil
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[3]


@pytest.fixture
def programs(tmp_path: Path) -> Path:
    """A folder with a python3 of RHEL 8; it is all that ``make`` finds beside the system's tools."""
    folder = tmp_path / "bin"
    folder.mkdir()
    old = "import sys; sys.version_info = (3, 6, 8); sys.version = '3.6.8 (default)'; exec(sys.argv[1])"
    (folder / "python3").write_text(f'#!/bin/sh\nexec "{sys.executable}" -c "{old}" "$2"\n')
    (folder / "python3").chmod(0o755)
    return folder


def make(programs: Path, *arguments: str, **variables: str) -> subprocess.CompletedProcess[str]:
    """Run make on an environment that does not exist; it finds no Python of this machine."""
    environment = {"PATH": str(programs), "HOME": str(programs), **variables}
    command = [
        shutil.which("make") or "make",
        "-C",
        str(ROOT),
        "--no-print-directory",
        f"VENV={programs / 'venv'}",
        *arguments,
    ]
    return subprocess.run(command, capture_output=True, text=True, env=environment)


def test_a_newer_python_is_taken_where_python3_is_old(programs: Path) -> None:
    (programs / "python3.12").symlink_to(sys.executable)
    done = make(programs, "--dry-run", "demo")
    assert done.returncode == 0, done.stderr
    assert "\npython3.12 scripts/environment.py " in done.stdout


def test_without_a_new_python_the_old_one_is_named(programs: Path) -> None:
    done = make(programs, "demo")
    assert done.returncode == 2
    assert f"Strata needs Python 3.11 or newer, and {sys.executable} is 3.6.8. Name another: make" in done.stderr
    assert "Traceback" not in done.stderr


@pytest.mark.parametrize("absolute", [False, True])
def test_compiled_modules_are_kept_in_the_environment(programs: Path, absolute: bool) -> None:
    environment = programs / "venv" if absolute else Path(".venv-other")
    (programs / "shown.mk").write_text("shown:\n\t@echo $$PYTHONPYCACHEPREFIX\n")
    done = make(programs, f"VENV={environment}", "-f", "Makefile", "-f", str(programs / "shown.mk"), "shown")
    assert done.stdout == f"{ROOT / environment / 'pycache'}\n", done.stderr


def test_variables_that_change_how_python_behaves_do_not_reach_it(programs: Path) -> None:
    names = ("PATH", "OPTIMIZE", "SAFEPATH", "WARNINGS", "INSPECT", "DONTWRITEBYTECODE")
    printed = " ".join(f"[$$PYTHON{name}]" for name in names)
    (programs / "shown.mk").write_text(f"shown:\n\t@echo {printed}\n")
    variables = {f"PYTHON{name}": "error" for name in names}
    done = make(programs, "-f", "Makefile", "-f", str(programs / "shown.mk"), "shown", **variables)
    assert done.stdout.split() == ["[]"] * len(names), done.stderr
