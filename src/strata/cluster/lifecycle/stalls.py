"""What counts as a stall, from what a worker says of itself; the same in the API and in a launcher. Pure."""

from __future__ import annotations

from collections.abc import Mapping

# A step that takes so many times as long as usual makes no progress.
UNUSUAL_FACTOR = 3.0


def is_stalled(said: Mapping[str, float]) -> bool:
    """Whether a worker's step takes much longer than usual; a step that always takes long is no stall.

    Before it has done a step nobody knows what is usual: then half of its watchdog's limit is, as in its own log.
    """
    if not (stalled_s := said.get("stalled_s", 0.0)):
        return False
    bounds_s = UNUSUAL_FACTOR * said.get("step_s", 0.0), said.get("limit_s", 0.0) / 2
    return stalled_s > min((each for each in bounds_s if each > 0), default=0.0)
