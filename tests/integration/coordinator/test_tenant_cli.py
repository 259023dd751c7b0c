"""``strata tenant`` against a coordinator in its own process."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

from tests.testbed.coordinator import CoordinatorProcess
from tests.testbed.pace import stretch
from tests.testbed.process import run_program


def strata(coordinator: CoordinatorProcess, *arguments: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "strata", "tenant", *arguments, "--coordinator", coordinator.url]
    return run_program(command, capture_output=True, text=True, timeout=stretch(60), check=False)


def test_a_tenant_is_made_changed_shown_and_removed_also_across_a_restart(tmp_path: Path) -> None:
    coordinator = CoordinatorProcess(tmp_path)
    with coordinator.serving():
        assert strata(coordinator, "create", "vision", "--workers", "64", "--keys", "5").returncode == 0
        assert strata(coordinator, "set", "vision", "--keys", "none", "--requests-per-s", "2.5").returncode == 0
        again = strata(coordinator, "create", "vision")
        assert again.returncode != 0
        assert "change them with 'strata tenant set vision'" in again.stderr
    with coordinator.serving():
        shown = json.loads(strata(coordinator, "show", "vision", "--json").stdout)
        assert shown["quotas"] == {"workers": 64, "requests_per_s": 2.5}
        assert shown["use"]["workers"] == 0
        assert "vision" in strata(coordinator, "ls").stdout
        assert strata(coordinator, "set", "vision", "--jobs", "many").returncode != 0
        assert strata(coordinator, "rm", "vision").returncode == 0
        assert [each["tenant"] for each in json.loads(strata(coordinator, "ls", "--json").stdout)] == ["default"]
        missing = strata(coordinator, "show", "vision")
        assert "there is no tenant 'vision'" in missing.stderr
