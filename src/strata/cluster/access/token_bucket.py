"""A token bucket: so many requests each second in the long run, and a burst of them at once."""

from __future__ import annotations

# So many seconds' worth may be used at once by someone who was quiet before.
BURST_S = 2.0


class TokenBucket:
    """Whoever takes more than there is has to wait, for exactly as long as that takes to come in."""

    __slots__ = ("_at_s", "_held", "rate_per_s")

    def __init__(self, rate_per_s: float, *, now_s: float) -> None:
        self.rate_per_s = rate_per_s
        self._held = max(1.0, rate_per_s * BURST_S)
        self._at_s = now_s

    def take(self, now_s: float, count: float = 1.0) -> float:
        """Take tokens, and return how many seconds to wait before the next ones; 0 if there are some left."""
        elapsed_s = max(0.0, now_s - self._at_s)
        self._at_s = max(self._at_s, now_s)
        self._held = min(max(1.0, self.rate_per_s * BURST_S), self._held + elapsed_s * self.rate_per_s) - count
        return 0.0 if self._held >= 0 else -self._held / self.rate_per_s
