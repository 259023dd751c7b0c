"""``strata token`` against a coordinator in its own process."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

from tests.testbed.coordinator import GuardedProcess
from tests.testbed.pace import stretch
from tests.testbed.process import run_program


def strata(coordinator: GuardedProcess, *arguments: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "strata", "token", *arguments, "--coordinator", coordinator.url]
    environment = {**os.environ, "STRATA_TOKEN": coordinator.admin}
    return run_program(command, env=environment, capture_output=True, text=True, timeout=stretch(60), check=False)


def test_tokens_are_made_listed_and_revoked_and_a_list_has_no_secret(tmp_path: Path) -> None:
    coordinator = GuardedProcess(tmp_path)
    with coordinator.serving():
        options = ("--role", "viewer", "--name", "people", "--job", "llm-*", "--expires", "30d")
        made = strata(coordinator, "create", *options)
        assert made.returncode == 0, made.stderr
        token = made.stdout.strip()
        _, token_id, secret = token.split("_")
        assert secret not in made.stderr
        # Its end is beyond the calendar; one such token must not hide the others.
        far = strata(coordinator, "create", "--role", "worker", "--name", "far", "--expires", "999999w")
        assert far.returncode == 0, far.stderr
        listed = strata(coordinator, "ls")
        assert listed.returncode == 0, listed.stderr
        lines = {line.split()[1]: line for line in listed.stdout.splitlines()}
        assert lines["people"].startswith(token_id)
        assert "llm-*" in lines["people"]
        assert "expires after 9999" in lines["far"]
        as_json = strata(coordinator, "ls", "--json")
        assert {each["name"] for each in json.loads(as_json.stdout)} == {"people", "far"}
        assert secret not in listed.stdout + as_json.stdout
        assert strata(coordinator, "revoke", token_id).returncode == 0
        assert "revoked" in next(line for line in strata(coordinator, "ls").stdout.splitlines() if "people" in line)
        missing = strata(coordinator, "revoke", "0" * 12)
        assert missing.returncode == 1
        assert "'strata token ls' lists its tokens" in missing.stderr
