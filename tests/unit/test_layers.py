"""Imports only go down the house, and the pure packages stay pure; both checks can fail."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]


def lint(root: Path) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [Path(sys.executable).with_name("lint-imports"), "--no-cache"],
        cwd=root,
        capture_output=True,
        text=True,
        env={**os.environ, "PYTHONPATH": str(root / "src")},
    )


def test_the_house_keeps_its_order() -> None:
    done = lint(ROOT)
    assert done.returncode == 0, done.stdout


@pytest.mark.full
@pytest.mark.parametrize(
    ("file", "statement", "contract"),
    [
        ("storage/planted.py", "import strata.checkpoint", "Imports only go down the house BROKEN"),
        ("errors/base.py", "import strata.config", "Imports only go down the house BROKEN"),
        ("planted.py", "", "Imports only go down the house BROKEN"),
        ("cluster/planted.py", "import time", "are pure"),
        ("sharding/planted.py", "from os import environ", "are pure"),
        ("sharding/planted.py", "import random", "are pure"),
    ],
)
def test_a_planted_import_is_found(tmp_path: Path, file: str, statement: str, contract: str) -> None:
    shutil.copytree(ROOT / "src", tmp_path / "src")
    shutil.copy(ROOT / "pyproject.toml", tmp_path)
    with (tmp_path / "src" / "strata" / file).open("a") as planted:
        planted.write(f"\n{statement}\n")
    done = lint(tmp_path)
    assert done.returncode == 1
    broken = [line for line in done.stdout.splitlines() if line.endswith("BROKEN")]
    assert any(contract in line for line in broken), done.stdout
