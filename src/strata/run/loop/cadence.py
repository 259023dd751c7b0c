"""When to save: every so many steps, every so many seconds, or when it costs least.

``auto`` follows Young and Daly: saving costs time, and so does the work that a failure throws away; their sum is least
when the time between saves is sqrt(2 * cost * time between failures). Both are measured as the run goes on. Time comes
in as an argument.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

DAY_S = 86_400.0
# A moving average: new measurements count, one slow save does not rule.
_WEIGHT = 0.3


@dataclass(frozen=True, slots=True, kw_only=True)
class Cadence:
    """How often a run saves: by steps, by seconds, or by what costs least, within a bound on what saving may cost."""

    every_steps: int | None = None
    every_s: float | None = None
    max_overhead: float = 0.05
    """Of the time of a run, saving takes at most this share, whatever failures would ask for."""
    worker_failures_per_day: float = 1 / 50
    """What is believed of one worker before any failure is seen: one in fifty days, as published for large clusters."""

    def __post_init__(self) -> None:
        if self.every_steps is not None and self.every_s is not None:
            raise ValueError("save every n steps or every s seconds, not both; give neither for auto")
        if self.every_steps is not None and self.every_steps < 1:
            raise ValueError(f"every_steps is {self.every_steps}; use 1 or more")
        if self.every_s is not None and self.every_s <= 0:
            raise ValueError(f"every_s is {self.every_s}; use more than 0")
        if not 0 < self.max_overhead < 1:
            raise ValueError(f"max_overhead is {self.max_overhead}; use a share between 0 and 1")
        if self.worker_failures_per_day <= 0:
            raise ValueError(f"worker_failures_per_day is {self.worker_failures_per_day}; use more than 0")

    @property
    def is_auto(self) -> bool:
        """Whether the interval follows from what saving and failing cost."""
        return self.every_steps is None and self.every_s is None


def parse_cadence(text: str | int | Cadence) -> Cadence:
    """Return the cadence of "auto", "500 steps", "10 s", "5 min", "2 h", or of a number of steps."""
    if isinstance(text, Cadence):
        return text
    if isinstance(text, int) and not isinstance(text, bool):
        return Cadence(every_steps=text)
    words = str(text).strip().lower().split()
    if words == ["auto"]:
        return Cadence()
    units = {"s": 1.0, "min": 60.0, "h": 3_600.0}
    try:
        number, unit = words
        if unit in ("step", "steps"):
            return Cadence(every_steps=int(number))
        return Cadence(every_s=float(number) * units[unit])
    except (ValueError, KeyError) as error:
        known = '"auto", "500 steps", "30 s", "10 min", "1 h" or a number of steps'
        raise ValueError(f"save_every={text!r}; use {known}") from error


class SaveTimer:
    """Says when the next save is due, from what it was told of steps, saves and failures.

    All workers of a job must save at the same steps. So one of them asks :meth:`is_due` and tells the others.
    """

    def __init__(self, cadence: Cadence, *, world_size: int, now_s: float) -> None:
        self._cadence = cadence
        self._begun_s = now_s
        self._saved_s = now_s
        self._saved_step = 0
        self._world_size = world_size
        self._worker_s = 0.0
        self._counted_s = now_s
        self._failures = 0
        self.cost_s: float | None = None

    def restored(self, step: int, *, now_s: float) -> None:
        """The run goes on from the checkpoint of ``step``."""
        self._saved_step, self._saved_s = step, now_s

    def changed_world(self, world_size: int, *, failed: bool, now_s: float) -> None:
        """The membership is another one; ``failed`` says whether it is so because a worker was lost."""
        self._count(now_s)
        self._world_size = world_size
        self._failures += failed

    def saved(self, step: int, *, cost_s: float, now_s: float) -> None:
        """A save of ``step`` held training up for ``cost_s``."""
        self._saved_step, self._saved_s = step, now_s
        self.cost_s = cost_s if self.cost_s is None else (1 - _WEIGHT) * self.cost_s + _WEIGHT * cost_s

    def is_due(self, step: int, *, now_s: float) -> bool:
        """Whether the state after ``step`` is to be saved."""
        if step <= self._saved_step:
            return False
        if self._cadence.every_steps is not None:
            return step % self._cadence.every_steps == 0
        if self.cost_s is None and self._cadence.is_auto:
            # What saving costs is not known before the first one; the sooner it is, the sooner work is safe.
            return True
        return now_s - self._saved_s >= self.interval_s(now_s=now_s)

    def interval_s(self, *, now_s: float) -> float:
        """Return the time between saves that is aimed at now; 0 by steps, or before the first save."""
        if self._cadence.every_steps is not None:
            return 0.0
        if self._cadence.every_s is not None:
            return self._cadence.every_s
        if self.cost_s is None:
            return 0.0
        cheapest_s = math.sqrt(2 * self.cost_s * self.mtbf_s(now_s=now_s))
        return max(cheapest_s, self.cost_s / self._cadence.max_overhead)

    def mtbf_s(self, *, now_s: float) -> float:
        """Return the expected time between failures of the job: what was seen, and the belief before as one day of it.

        A belief that counts as much as one day of one worker gives way as soon as there is more to see.
        """
        self._count(now_s)
        failures = self._cadence.worker_failures_per_day + self._failures
        per_worker_s = (DAY_S + self._worker_s) / failures
        return per_worker_s / max(1, self._world_size)

    def _count(self, now_s: float) -> None:
        self._worker_s += max(0.0, now_s - self._counted_s) * self._world_size
        self._counted_s = max(self._counted_s, now_s)
