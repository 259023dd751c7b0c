"""How long a step may take before it counts as a stall: from the run's own step times, or as the user says."""

from __future__ import annotations

from collections import deque

KEPT_STEPS = 500
# A limit needs some steps to learn from: before that, compilation and warm-up may take as long as they do.
LEARNED_STEPS = 5
FIRST_LIMIT_S = 900.0
LEAST_LIMIT_S = 120.0
P99_FACTOR = 10.0
LONGEST_FACTOR = 3.0


class StepTimes:
    """The last step times of this process, and the limit that follows from them."""

    def __init__(self, limit_s: float | None = None) -> None:
        if limit_s is not None and limit_s <= 0:
            raise ValueError(f"watchdog_s is {limit_s}; use seconds above 0, or leave it out")
        self._given_s = limit_s
        self._times: deque[float] = deque(maxlen=KEPT_STEPS)

    @property
    def is_given(self) -> bool:
        """Whether the user set the limit."""
        return self._given_s is not None

    def add(self, step_s: float) -> None:
        """Note how long a step took."""
        self._times.append(step_s)

    def median_s(self) -> float:
        """Return how long a step usually takes; 0 before the first."""
        return sorted(self._times)[len(self._times) // 2] if self._times else 0.0

    def limit_s(self) -> float:
        """Return the limit: the one given, or max(120 s, 10 times the p99, 3 times the longest of the last steps)."""
        if self._given_s is not None:
            return self._given_s
        if len(self._times) < LEARNED_STEPS:
            return FIRST_LIMIT_S
        ordered = sorted(self._times)
        p99_s = ordered[int(0.99 * (len(ordered) - 1))]
        return max(LEAST_LIMIT_S, P99_FACTOR * p99_s, LONGEST_FACTOR * ordered[-1])
