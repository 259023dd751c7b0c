"""The manual clock moves as it is told, both clocks fit the protocol, and waits grow to their bound."""

from __future__ import annotations

from pathlib import Path

import pytest

from strata.clock import Clock, ManualClock, SystemClock, backoff_s, read_boot_time


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


def test_waits_double_up_to_their_bound_however_often_it_fails() -> None:
    waits = [backoff_s(failures, first_s=1, max_s=5, chance=1) for failures in (0, 1, 2, 3, 10_000)]
    assert waits == [1, 2, 4, 5, 5]


def test_chance_takes_at_most_half_of_a_wait_away() -> None:
    assert [backoff_s(1, first_s=1, max_s=5, chance=chance) for chance in (0.0, 0.5, 1.0)] == [1, 1.5, 2]


def proc_of(folder: Path, *, boot_id: str, uptime: str) -> Path:
    (folder / "sys/kernel/random").mkdir(parents=True)
    (folder / "sys/kernel/random/boot_id").write_text(boot_id)
    (folder / "uptime").write_text(uptime)
    return folder


def test_a_machine_says_how_long_after_its_boot_it_is(tmp_path: Path) -> None:
    proc = proc_of(tmp_path, boot_id="c3d3e5fe-6a9b-4255-b354-c32df7f97df1\n", uptime="599.44 668.78\n")
    assert read_boot_time(proc) == ("c3d3e5fe6a9b4255b354c32df7f97df1", 599_440)


@pytest.mark.parametrize(("boot_id", "uptime"), [("", "1.0 1.0"), ("c3d3", ""), ("c3d3", "soon"), ("c:3", "1.0")])
def test_a_machine_that_does_not_tell_its_boot_has_no_such_time(tmp_path: Path, boot_id: str, uptime: str) -> None:
    assert read_boot_time(proc_of(tmp_path, boot_id=boot_id, uptime=uptime)) is None
    assert read_boot_time(tmp_path / "none") is None


def test_time_since_the_boot_does_not_go_back() -> None:
    first, second = read_boot_time(), read_boot_time()
    assert first is not None
    assert second is not None
    assert first[0] == second[0]
    assert first[1] <= second[1]
