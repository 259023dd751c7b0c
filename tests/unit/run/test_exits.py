"""A worker tells the coordinator what became of it: events and the cadence of saves tell a crash from an end."""

from __future__ import annotations

import pytest

from strata import Stopped
from strata.cluster.events import Cause
from strata.run.exits import goodbye_of


@pytest.mark.parametrize(
    ("error", "cause", "reason"),
    [
        (None, Cause.FINISHED, ""),
        (
            Stopped(7, is_saved=True),
            Cause.PREEMPTED,
            "stopped by SIGTERM after step 7, which is saved",
        ),
        (KeyboardInterrupt(), Cause.LEFT, "interrupted"),
        (RuntimeError("no\n luck"), Cause.CRASHED, "RuntimeError: no luck"),
    ],
)
def test_how_a_block_ended_says_what_became_of_its_worker(
    error: BaseException | None, cause: Cause, reason: str
) -> None:
    assert goodbye_of(error) == (cause, reason)


def test_a_reason_is_short_however_long_the_error_is() -> None:
    assert len(goodbye_of(ValueError("x" * 10_000))[1]) == 300


@pytest.mark.parametrize(("cause", "is_failure"), [(Cause.CRASHED, True), (Cause.HUNG, True), (Cause.PREEMPTED, False)])
def test_a_crash_and_a_hang_count_as_failures_for_the_cadence_and_a_preemption_does_not(
    cause: Cause, is_failure: bool
) -> None:
    assert cause.is_failure == is_failure
