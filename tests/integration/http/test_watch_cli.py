"""strata goodput and strata top, and the account that a real job gives of its time."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from contextlib import ExitStack
from typing import TYPE_CHECKING

import pytest

from strata.address import reachable
from strata.client.client import Client
from strata.client.http_reader import HttpReader, find_http
from strata.errors import CoordinatorLostError, StrataError
from tests.testbed.coordinator import CoordinatorProcess
from tests.testbed.job import Job
from tests.testbed.pace import stretch
from tests.testbed.process import end, run_program, start
from tests.testbed.terminal import Terminal
from tests.testbed.waiting import wait_until

if TYPE_CHECKING:
    from pathlib import Path

pytestmark = [pytest.mark.full, pytest.mark.timeout(300), pytest.mark.xdist_group("whole runs")]


def strata(*arguments: str) -> subprocess.CompletedProcess[str]:
    return run_program(
        [sys.executable, "-m", "strata", *arguments], capture_output=True, text=True, timeout=stretch(60), check=False
    )


def test_a_job_that_lost_a_worker_accounts_for_all_of_its_time(tmp_path: Path) -> None:
    coordinator = CoordinatorProcess(tmp_path)
    with coordinator.serving(), Job(tmp_path, coordinator.url, epochs=2) as job:
        job.start("w0", "w1", "w2")
        job.wait_for_step(12)
        job.kill("w1")
        job.start("w1")
        job.check_finished()
        reader = HttpReader(coordinator.http_url)
        last = max(said["step"] for worker in job.all() for said in worker.said if "step" in said)
        wait_until(lambda: reader.get("/api/goodput")["steps"] == last, "every step is accounted for")

        found = reader.get("/api/goodput")
        assert sum(part["seconds"] for part in found["parts"]) == pytest.approx(found["wall_s"], rel=0.01)
        parts = {part["part"]: part["seconds"] for part in found["parts"]}
        assert min(parts[part] for part in ("compute", "data", "save", "restore", "wait", "other")) > 0
        assert found["failures"] == 1
        assert found["mtbf_s"] == pytest.approx(found["wall_s"])
        series = reader.get("/api/series")
        assert {"failure", "rollback", "committed"} <= {mark["kind"] for mark in series["marks"]}
        assert len(series["at_s"]) == len(series["steps_per_s"]) == len(series["parts"]["compute"])
        checkpoints = reader.get("/api/checkpoints", state="committed")["items"]
        assert checkpoints[0]["size_bytes"] > 0
        assert checkpoints[0]["phases"]["write"] >= 0
        times = reader.get("/api/series/step-times")
        assert len(times["rows"]) == times["total_ranks"] == 3

        printed = strata("goodput", "--coordinator", coordinator.url)
        assert printed.returncode == 0, printed.stderr
        assert "goodput" in printed.stdout
        assert "100.0%" in printed.stdout
        same = json.loads(strata("goodput", "default", "--coordinator", coordinator.url, "--json").stdout)
        assert same["parts"] == found["parts"]


def test_top_shows_a_job_once_where_there_is_no_terminal(tmp_path: Path) -> None:
    coordinator = CoordinatorProcess(tmp_path)
    with coordinator.serving():
        assert "no jobs yet" in strata("top", "--coordinator", coordinator.url).stdout
        with Client(coordinator.url, "worker-a", job_id="shown", keep_alive_s=0) as client:
            client.wait_registered()
            shown = strata("top", "shown", "--coordinator", coordinator.url)
            assert shown.returncode == 0, shown.stderr
            assert "worker-a" in shown.stdout
            assert "job shown" in shown.stdout
            refused = strata("top", "nowhere", "--coordinator", coordinator.url)
            assert refused.returncode == 1
            assert "there is no job 'nowhere'" in refused.stderr
            assert refused.stderr.count("\n") == 1


def test_top_shows_a_job_once_where_the_screen_cannot_be_drawn_again(tmp_path: Path) -> None:
    coordinator = CoordinatorProcess(tmp_path)
    with coordinator.serving():
        command = [sys.executable, "-m", "strata", "top", "--coordinator", coordinator.url]
        with Terminal() as terminal:
            process = start(command, stdout=terminal.fd, env={**os.environ, "TERM": "dumb"})
            try:
                assert process.wait(stretch(30)) == 0
            finally:
                end(process)
        assert "no jobs yet" in terminal.shown


def test_top_redraws_the_screen_and_waits_for_a_coordinator_that_went_down_until_ctrl_c(tmp_path: Path) -> None:
    coordinator = CoordinatorProcess(tmp_path)
    command = [sys.executable, "-m", "strata", "top", "--coordinator", coordinator.url]
    environment = {**os.environ, "TERM": "xterm-256color", "COLUMNS": "160", "LINES": "40"}
    with Terminal() as terminal:

        def wait_for(words: str, *, after: int = 0) -> int:
            wait_until(
                lambda: words in terminal.shown[after:], lambda: f"{words!r} in {terminal.shown[-9_000:].split()}"
            )
            return len(terminal.shown)

        with ExitStack() as stack:
            with coordinator.serving():
                process = start(command, stdout=terminal.fd, env=environment)
                stack.callback(end, process)
                wait_for("no jobs yet")
            at = wait_for(f"stale: the coordinator at {coordinator.url} cannot be reached")
            stack.enter_context(coordinator.serving())
            client = stack.enter_context(Client(coordinator.url, "w", job_id="back", keep_alive_s=0))
            client.wait_registered()
            wait_for("job \x1b[0m\x1b[1mback", after=at)
            process.send_signal(signal.SIGINT)
            assert process.wait(stretch(20)) == 0
    screens = [screen for screen in terminal.shown.split("\x1b[H") if "mback" in screen]
    assert "stale" not in screens[0]


def test_a_coordinator_without_http_says_so_in_one_line(tmp_path: Path) -> None:
    coordinator = CoordinatorProcess(tmp_path, "--no-http")
    with coordinator.serving():
        done = strata("goodput", "--coordinator", coordinator.url)
        assert done.returncode == 1
        assert "serves no HTTP" in done.stderr
        with pytest.raises(StrataError, match="without --no-http"):
            find_http(coordinator.url)


def test_a_host_that_means_this_machine_is_the_coordinators_machine() -> None:
    assert reachable("http://127.0.0.1:8080", "127.0.0.1:50051") == "http://127.0.0.1:8080"
    assert reachable("http://0.0.0.0:8080", "10.0.0.5:50051") == "http://10.0.0.5:8080"
    assert reachable("http://127.0.0.1:8080", "10.0.0.5:50051") == "http://10.0.0.5:8080"
    assert reachable("http://coordinator:8080", "10.0.0.5:50051") == "http://coordinator:8080"
    assert reachable("http://[::]:8080", "[fe80::1]:50051") == "http://[fe80::1]:8080"


def test_a_page_that_is_gone_is_an_error_of_its_own() -> None:
    with pytest.raises(CoordinatorLostError):
        HttpReader("http://127.0.0.1:1").get("/api/health")
