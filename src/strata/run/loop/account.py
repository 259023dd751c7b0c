"""Where a worker's time goes: every second since it joined is in exactly one part. Pure; the time comes in.

The parts are those of :data:`strata.cluster.values.PARTS`. A wait within a wait belongs to the outer one: meeting the
others in order to restore is restoring.
"""

from __future__ import annotations

from strata.cluster.values import PARTS


class TimeAccount:
    """The time of one worker, in seconds by part; they add up to the time since it was made."""

    def __init__(self, now_s: float) -> None:
        self._began_s = self._counted_s = now_s
        # Before the first restore nothing is trained; from then on whatever is no wait is training.
        self._base = "other"
        self._waits: list[str] = []
        self._seconds = dict.fromkeys(PARTS, 0.0)
        # Of the step under way: lost with it if it does not end.
        self._computed_s = 0.0
        self._furthest = 0
        self.steps = 0
        self.repeated_steps = 0
        self.samples = 0

    def begin(self, part: str, now_s: float) -> None:
        """Begin to wait, for what the part says."""
        assert part in PARTS, part
        self._count(now_s)
        self._waits.append(part)

    def end(self, now_s: float) -> None:
        """End the wait that was begun last."""
        self._count(now_s)
        self._waits.pop()

    def restored(self, step: int, now_s: float) -> None:
        """The state is that of a step: what was computed since the last whole step is lost, and training begins."""
        self._count(now_s)
        self._move("compute", "repeated", self._computed_s)
        self._computed_s = 0.0
        self._base = "compute"
        self._furthest = max(self._furthest, step)

    def done(self, step: int, now_s: float, *, samples: int = 0) -> None:
        """A step is done; one that this worker had done before counts as repeated."""
        self._count(now_s)
        if step <= self._furthest:
            self._move("compute", "repeated", self._computed_s)
            self.repeated_steps += 1
        self._computed_s = 0.0
        self._furthest = max(self._furthest, step)
        self.steps += 1
        self.samples += samples

    def blocked(self, seconds: float) -> None:
        """Training was held up by a save that was begun before: that was counted as computing."""
        self._move("compute", "save", seconds)

    def finished(self, now_s: float) -> None:
        """The loop is over: what comes now is no training."""
        self._count(now_s)
        self._base = "other"
        self._computed_s = 0.0

    def read(self, now_s: float) -> tuple[float, ...]:
        """Return the time since the beginning, and the seconds by part."""
        self._count(now_s)
        return self._counted_s - self._began_s, *(self._seconds[part] for part in PARTS)

    def _count(self, now_s: float) -> None:
        passed_s = max(0.0, now_s - self._counted_s)
        self._counted_s += passed_s
        part = self._waits[0] if self._waits else self._base
        self._seconds[part] += passed_s
        if part == "compute":
            self._computed_s += passed_s

    def _move(self, source: str, target: str, seconds: float) -> None:
        seconds = min(max(0.0, seconds), self._seconds[source])
        self._seconds[source] -= seconds
        self._seconds[target] += seconds
