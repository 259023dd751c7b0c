"""What a piece of work costs this process: time, CPU, and memory on top of what it had."""

from __future__ import annotations

import resource
import time
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterator


@dataclass
class Cost:
    """Filled in when the block of :func:`measure` ends."""

    elapsed_s: float = 0.0
    cpu_s: float = 0.0
    peak_bytes: int = 0


@contextmanager
def measure() -> Iterator[Cost]:
    """Measure the block; children that ended in it count for CPU, not for memory."""
    cost = Cost()
    Path("/proc/self/clear_refs").write_text("5")  # the peak starts anew
    memory_before, cpu_before = _status_bytes("VmRSS"), _cpu_s()
    started = time.perf_counter()
    yield cost
    cost.elapsed_s = time.perf_counter() - started
    cost.cpu_s = _cpu_s() - cpu_before
    cost.peak_bytes = max(0, _status_bytes("VmHWM") - memory_before)


def _cpu_s() -> float:
    used = [resource.getrusage(who) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)]
    return sum(each.ru_utime + each.ru_stime for each in used)


def _status_bytes(name: str) -> int:
    lines = Path("/proc/self/status").read_text().splitlines()
    return next(int(line.split()[1]) * 1024 for line in lines if line.startswith(f"{name}:"))
