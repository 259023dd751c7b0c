"""Time as an argument: code that needs the time gets a Clock, and tests pass their own; and bounded waits."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Protocol


class Clock(Protocol):
    """Two readings: one to measure with, one to show to people."""

    def monotonic_s(self) -> float:
        """Seconds that never go back, with no meaning across processes: for waits and leases."""
        ...

    def wall_s(self) -> float:
        """Seconds since 1970 UTC, which may jump: for records that people read, never for decisions."""
        ...


class SystemClock:
    """The machine's own time."""

    # Without a call in between: the coordinator reads the clock twice for each of fifty thousand commands a second.
    monotonic_s = staticmethod(time.monotonic)
    wall_s = staticmethod(time.time)


class ManualClock:
    """Time that moves only when it is told to, so that a test of an hour takes no time."""

    def __init__(self, *, wall_s: float = 1_700_000_000.0) -> None:
        self._elapsed_s = 0.0
        self._wall_s = wall_s

    def monotonic_s(self) -> float:
        """Seconds that this clock was advanced by."""
        return self._elapsed_s

    def wall_s(self) -> float:
        """Where the clock started, plus what it was advanced by and moved."""
        return self._wall_s + self._elapsed_s

    def advance(self, seconds: float) -> None:
        """Let time pass; it cannot go back."""
        if seconds < 0:
            raise ValueError(f"time cannot go back by {-seconds} s; use jump_wall for a wall clock that jumps")
        self._elapsed_s += seconds

    def jump_wall(self, seconds: float) -> None:
        """Move only the wall clock, either way, as an administrator or NTP would."""
        self._wall_s += seconds


def read_boot_time(proc: Path = Path("/proc")) -> tuple[str, int] | None:
    """Return the boot of this machine and the ms since; None where the kernel does not tell, as outside Linux."""
    try:
        boot = (proc / "sys/kernel/random/boot_id").read_text().strip().replace("-", "")
        # Not CLOCK_BOOTTIME: libraries that fake the time of a process fake that, too.
        elapsed_s = float((proc / "uptime").read_text().split()[0])
    except (OSError, ValueError, IndexError):
        return None
    return (boot, round(elapsed_s * 1_000)) if boot.isalnum() else None


def backoff_s(failures: int, *, first_s: float, max_s: float, chance: float) -> float:
    """Return how long to wait before trying again: twice as long after each failure in a row, at most ``max_s``.

    ``chance`` from 0 to 1 takes between half of that and all of it: those who failed together are not to come back
    together.
    """
    # Bounded, because a float has no room for two to the power of some thousand failures.
    return min(max_s, first_s * 2.0 ** min(failures, 64)) * (0.5 + 0.5 * chance)
