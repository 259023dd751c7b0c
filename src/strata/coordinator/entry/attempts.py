"""Failed attempts to get in: counted, told once in a while, and answered ever more slowly."""

from __future__ import annotations

import threading
from dataclasses import dataclass

WINDOW_S = 60.0
FREE = 3
FIRST_DELAY_S = 0.1
MAX_DELAY_S = 2.0
MAX_ADDRESSES = 10_000
TELL_S = 10.0


@dataclass(slots=True)
class _Failures:
    count: int
    last_s: float
    told_s: float
    untold: int = 0


@dataclass(frozen=True, slots=True)
class Failure:
    """What to do about a failed attempt: how long its answer waits, and how many there are to tell of now, if any."""

    delay_s: float
    to_tell: int


class FailedAttempts:
    """By address, of the last minute. Whoever brings a good token is not held up by others at its address.

    It bounds what guessing costs the coordinator; that a secret cannot be guessed is due to its 256 bits.
    """

    def __init__(self) -> None:
        self.total = 0
        self._addresses: dict[str, _Failures] = {}
        # gRPC and the channel ask in one thread, HTTP in another.
        self._lock = threading.Lock()

    def note(self, address: str, now_s: float) -> Failure:
        """Note a failed attempt."""
        with self._lock:
            self.total += 1
            known = self._addresses.pop(address, None)
            if known is None or now_s - known.last_s > WINDOW_S:
                known = _Failures(0, now_s, now_s - TELL_S if known is None else known.told_s)
            # The newest stands last, so the oldest is forgotten first.
            self._addresses[address] = known
            if len(self._addresses) > MAX_ADDRESSES:
                del self._addresses[next(iter(self._addresses))]
            known.count += 1
            known.untold += 1
            known.last_s = now_s
            to_tell = 0
            if now_s - known.told_s >= TELL_S:
                to_tell, known.untold, known.told_s = known.untold, 0, now_s
            above = known.count - FREE
            delay_s = 0.0 if above <= 0 else min(MAX_DELAY_S, FIRST_DELAY_S * 2.0 ** min(above - 1, 10))
            return Failure(delay_s, to_tell)
