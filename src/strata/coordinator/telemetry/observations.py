"""What Prometheus is told: counts and histograms of the whole coordinator, in plain numbers."""

from __future__ import annotations

from bisect import bisect_left
from collections import Counter
from collections.abc import Sequence

from strata.cluster.values import PARTS, SaveNote, WorkerAccount
from strata.coordinator.telemetry.job_history import CheckpointTrack

WAIT_BOUNDS_S = (0.001, 0.005, 0.01, 0.05, 0.1, 0.5, 1.0, 5.0, 10.0, 30.0, 60.0, 300.0)
SAVE_BOUNDS_S = (0.01, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0, 300.0)
PHASES = ("blocked", "stage", "write", "commit")


class Histogram:
    """How often something took how long."""

    __slots__ = ("bounds_s", "counts", "sum_s")

    def __init__(self, bounds_s: Sequence[float]) -> None:
        self.bounds_s = tuple(bounds_s)
        self.counts = [0] * (len(self.bounds_s) + 1)
        self.sum_s = 0.0

    def observe(self, seconds: float) -> None:
        """Count one."""
        self.counts[bisect_left(self.bounds_s, seconds)] += 1
        self.sum_s += seconds


class Observations:
    """The counters since this process began; a restart begins them anew, as Prometheus expects."""

    def __init__(self) -> None:
        self.barrier_waits = Histogram(WAIT_BOUNDS_S)
        self.save_phases = {phase: Histogram(SAVE_BOUNDS_S) for phase in PHASES}
        self.commit_s = Histogram(SAVE_BOUNDS_S)
        self.committed = 0
        self.committed_bytes = 0
        self.aborted = 0
        self.failed_saves = 0
        self.changes: Counter[str] = Counter()
        self.part_s = dict.fromkeys(PARTS, 0.0)
        self.steps = 0

    def note_account(self, before: WorkerAccount, after: WorkerAccount) -> None:
        """Count what a worker did since its last report."""
        for part, old_s, new_s in zip(PARTS, before.parts, after.parts, strict=True):
            self.part_s[part] += max(0.0, new_s - old_s)
        self.steps += max(0, after.steps - before.steps)

    def note_save(self, save: SaveNote) -> None:
        """Count one save of one worker."""
        if save.is_failed:
            self.failed_saves += 1
            return
        for phase, seconds in zip(PHASES, save[1:5], strict=True):
            self.save_phases[phase].observe(seconds)

    def note_commit(self, checkpoint: CheckpointTrack) -> None:
        """Count a committed checkpoint."""
        self.committed += 1
        self.committed_bytes += checkpoint.size_bytes or 0
        if checkpoint.began_s is not None and checkpoint.committed_s is not None:
            self.commit_s.observe(max(0.0, checkpoint.committed_s - checkpoint.began_s))
