"""How slow this machine is now: one factor by which every deadline of the test bed is stretched.

A deadline is there to end a wait that would never end. On a machine that does other work the same wait takes longer,
and that is no failure. So deadlines are written for an idle machine, and pass through ``stretch``.
"""

from __future__ import annotations

import os
import subprocess
import sys
import time
from functools import cache

# What an idle machine takes to start an interpreter. Slower ones get a factor above one, faster ones get one.
IDLE_START_S = 0.05
# Above this a wait is no longer slow: it is broken.
LARGEST = 10.0


def stretch(timeout_s: float) -> float:
    """Return the deadline for this machine: as long as the idle one's, or up to ten times that."""
    return timeout_s * factor()


def factor() -> float:
    """The larger of what was measured once and what the load says now, from 1 to 10."""
    load = os.getloadavg()[0] / (os.cpu_count() or 1)
    return min(max(1.0, _measured(), load), LARGEST)


@cache
def _measured() -> float:
    """How many times the idle machine's time it takes to start a process: the best of three, for noise only adds."""
    return min(_start_s() for _ in range(3)) / IDLE_START_S


def _start_s() -> float:
    begun = time.monotonic()
    subprocess.run([sys.executable, "-I", "-S", "-c", ""], check=True, stdin=subprocess.DEVNULL, timeout=60)
    return time.monotonic() - begun
