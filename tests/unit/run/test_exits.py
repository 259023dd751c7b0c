"""A worker tells the coordinator what became of it: events and the cadence of saves tell a crash from an end."""

from __future__ import annotations

import subprocess
import sys

import pytest

from strata import Stopped
from strata.cluster.events import Cause
from strata.errors import GroupRestart, Reconfigure
from strata.run.exits import REGROUPED, goodbye_at_exit, goodbye_of


@pytest.mark.parametrize(
    ("error", "cause", "reason"),
    [
        (None, Cause.FINISHED, ""),
        (
            Stopped(7, is_saved=True),
            Cause.PREEMPTED,
            "stopped by SIGTERM after step 7, which is saved",
        ),
        (KeyboardInterrupt(), Cause.STOPPED, "interrupted"),
        (SystemExit(), Cause.FINISHED, ""),
        (SystemExit(0), Cause.FINISHED, ""),
        (SystemExit(143), Cause.PREEMPTED, "exited with code 143"),
        (SystemExit(130), Cause.STOPPED, "exited with code 130"),
        (SystemExit("no data"), Cause.CRASHED, "SystemExit: no data"),
        (SystemExit(3), Cause.CRASHED, "SystemExit: 3"),
        (Reconfigure(4, "worker-1 crashed: ValueError"), Cause.REGROUPED, "worker-1 crashed: ValueError"),
        (GroupRestart(4, "worker-1 crashed: ValueError"), Cause.REGROUPED, "worker-1 crashed: ValueError"),
        (RuntimeError("no\n luck"), Cause.CRASHED, "RuntimeError: no luck"),
    ],
)
def test_how_a_block_ended_says_what_became_of_its_worker(
    error: BaseException | None, cause: Cause, reason: str
) -> None:
    assert goodbye_of(error) == (cause, reason)


@pytest.mark.parametrize(
    ("stopped", "is_finished", "cause"),
    [
        (None, True, Cause.FINISHED),
        (None, False, Cause.LEFT),
        (Stopped(7, is_saved=True), False, Cause.PREEMPTED),
    ],
)
def test_script_that_never_closes_its_run_has_finished_if_its_loop_came_to_the_end(
    stopped: Stopped | None, is_finished: bool, cause: Cause
) -> None:
    assert goodbye_at_exit(stopped, is_finished=is_finished)[0] is cause


def test_a_reason_is_short_however_long_the_error_is() -> None:
    assert len(goodbye_of(ValueError("x" * 10_000))[1]) == 300


@pytest.mark.parametrize(("cause", "is_failure"), [(Cause.CRASHED, True), (Cause.HUNG, True), (Cause.PREEMPTED, False)])
def test_a_crash_and_a_hang_count_as_failures_for_the_cadence_and_a_preemption_does_not(
    cause: Cause, is_failure: bool
) -> None:
    assert cause.is_failure == is_failure


def test_a_process_that_ends_because_its_group_starts_again_has_a_code_of_its_own_and_no_traceback() -> None:
    script = "from strata.errors import GroupRestart; raise GroupRestart(3, 'w1 failed: lease ended')"
    ended = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=False)
    assert (ended.returncode, ended.stdout, ended.stderr) == (REGROUPED, "", "")
