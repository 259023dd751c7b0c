"""When this process began: importing libraries after a restart is time that a run loses, so it is counted."""

from __future__ import annotations

import os
import time
from pathlib import Path

# A process that is older than this did something else before it joined: a notebook, say.
LONGEST_S = 300.0

# The processes that have joined a job: the second run of a process begins when it joins.
_joined: set[int] = set()


def find_start_s() -> float:
    """Return when this worker's time began, by the monotonic clock: with its process, if that joined no job before."""
    now_s = time.monotonic()
    is_first = os.getpid() not in _joined
    _joined.add(os.getpid())
    age_s = _age_s() if is_first else None
    return now_s - age_s if age_s is not None and 0 <= age_s <= LONGEST_S else now_s


def _age_s() -> float | None:
    """Return how old this process is; None where the system does not tell."""
    try:
        # The name of the program is in brackets and may hold anything; the fields after it are numbers.
        fields = Path("/proc/self/stat").read_bytes().rpartition(b")")[2].split()
        return time.clock_gettime(time.CLOCK_BOOTTIME) - int(fields[19]) / os.sysconf("SC_CLK_TCK")
    except (OSError, ValueError, IndexError, AttributeError):
        return None
