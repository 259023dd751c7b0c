"""The manual clock moves as it is told, and both clocks fit the protocol."""

from __future__ import annotations

import pytest

from strata.clock import Clock, ManualClock, SystemClock


@pytest.mark.parametrize("clock", [SystemClock(), ManualClock()])
def test_monotonic_time_does_not_go_back(clock: Clock) -> None:
    first = clock.monotonic_s()
    assert clock.monotonic_s() >= first
    assert clock.wall_s() > 1_600_000_000


def test_a_manual_clock_stands_still_until_it_is_advanced() -> None:
    clock = ManualClock(wall_s=100.0)
    clock.advance(2.5)
    assert (clock.monotonic_s(), clock.wall_s()) == (2.5, 102.5)


def test_a_wall_clock_that_jumps_back_leaves_monotonic_time_alone() -> None:
    clock = ManualClock(wall_s=100.0)
    clock.jump_wall(-60)
    assert (clock.monotonic_s(), clock.wall_s()) == (0.0, 40.0)


def test_monotonic_time_cannot_be_turned_back() -> None:
    with pytest.raises(ValueError, match="cannot go back"):
        ManualClock().advance(-1)
