"""The demonstration, as the README's first command shows it."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest


@pytest.mark.timeout(240)
def test_the_demonstration_proves_itself_and_leaves_nothing_behind(tmp_path: Path) -> None:
    done = subprocess.run(
        [sys.executable, "-m", "strata", "demo", "--pace", "0.01"],
        capture_output=True,
        text=True,
        timeout=220,
        check=False,
        env={**os.environ, "TMPDIR": str(tmp_path)},
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert "FAILED" not in done.stdout
    assert done.stdout.count("  ok ") == 7
    assert "not recovered" not in done.stdout
    assert list(tmp_path.iterdir()) == []
