"""``strata events --audit`` on a coordinator in its own process: who did what, who was refused, also after kill -9."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

from strata.coordinator.entry.gate import REFUSED
from strata.wire._generated import coordinator_pb2 as pb
from tests.testbed.coordinator import CoordinatorProcess, GuardedProcess
from tests.testbed.pace import stretch
from tests.testbed.process import end, run_program

HERE = "127.0.0.1"


def strata(coordinator: CoordinatorProcess, token: str | None, *arguments: str) -> subprocess.CompletedProcess[str]:
    outside = {name: value for name, value in os.environ.items() if not name.startswith("STRATA_")}
    return run_program(
        [sys.executable, "-m", "strata", *arguments, "--coordinator", coordinator.url],
        env=outside if token is None else {**outside, "STRATA_TOKEN": token},
        capture_output=True,
        text=True,
        timeout=stretch(60),
        check=False,
    )


def audit(coordinator: CoordinatorProcess, token: str | None) -> list[dict[str, Any]]:
    shown = strata(coordinator, token, "events", "--audit", "--json")
    assert shown.returncode == 0, shown.stderr
    return [json.loads(line) for line in shown.stdout.splitlines()]


def facts(events: list[dict[str, Any]]) -> list[tuple[str, str, str, str]]:
    return [(event["by"], event["address"], event["job_id"], event["kind"]) for event in events]


def test_an_audit_shows_who_did_what_and_who_was_refused(tmp_path: Path) -> None:
    coordinator = GuardedProcess(tmp_path)
    with coordinator.serving():
        coordinator.call(coordinator.admin, "CreateTenant", pb.CreateTenant(tenant="blue"))
        operator = coordinator.make_token("operator", tenant="blue", name="ops")
        coordinator.call(operator, "ConfigureJob", pb.ConfigureJob(job_id="llm", min_workers=2))
        refused = strata(coordinator, "strata_0a0b0c_guessed", "status")
        assert refused.returncode != 0
        assert "its token is not known" in refused.stderr

        events = audit(coordinator, coordinator.admin)
        assert facts(events)[:3] == [
            ("admin", HERE, "blue/", "tenant created"),
            ("admin", HERE, "blue/", "token created"),
            ("ops", HERE, "blue/llm", "configured"),
        ]
        (attempt,) = [event for event in events if event["kind"] == REFUSED]
        assert (attempt["by"], attempt["address"]) == ("", HERE)
        assert "a client at 127.0.0.1 was refused once: its token is not known" in attempt["reason"]
        lines = strata(coordinator, coordinator.admin, "events", "--audit").stdout
        assert "ops at 127.0.0.1  blue/llm  configured: 2 to any workers" in lines
        assert "nobody at 127.0.0.1  /  access refused: a client at 127.0.0.1" in lines

        # A tenant hears of its own, and not of who was refused.
        kinds = facts(audit(coordinator, operator))
        assert ("ops", HERE, "llm", "configured") in kinds
        assert REFUSED not in {kind for *_, kind in kinds}


def test_an_audit_leaves_out_what_nobody_answers_for(tmp_path: Path) -> None:
    coordinator = CoordinatorProcess(tmp_path)
    with coordinator.serving():
        coordinator.call(None, "ConfigureJob", pb.ConfigureJob(job_id="llm", min_workers=2))
        assert "configured" in strata(coordinator, None, "events").stdout
        assert audit(coordinator, None) == []


def test_who_did_what_survives_kill_9(tmp_path: Path) -> None:
    coordinator = GuardedProcess(tmp_path)
    with coordinator.serving() as process:
        operator = coordinator.make_token("operator", tenant="default", name="ops")
        coordinator.call(operator, "ConfigureJob", pb.ConfigureJob(job_id="llm", min_workers=2))
        before = audit(coordinator, coordinator.admin)
        assert facts(before) == [("admin", HERE, "", "token created"), ("ops", HERE, "llm", "configured")]
        end(process)
    with coordinator.serving():
        coordinator.call(coordinator.admin, "RemoveJob", pb.RemoveJob(job_id="llm"))
        *replayed, last = audit(coordinator, coordinator.admin)
        assert replayed == before
        # What is done now goes by the name of who does it now.
        assert facts([last]) == [("admin", HERE, "llm", "job removed")]
