"""The interpreter's collector of cycles, kept from holding up everyone.

By itself it walks through all objects whenever their number has grown by a quarter: a tenth of a second with ten
thousand workers, in the middle of their heartbeats. Strata's state has no cycles, so what it finds is little.
"""

from __future__ import annotations

import asyncio
import gc
import time

# Young objects are looked through after so many allocations; the old ones only as below.
YOUNG = 1_000
MIDDLE = 5
NEVER = 1_000_000_000
# All objects are looked through so often, or less often, so that it takes at most a two-hundredth of the time.
EVERY_S = 60.0
SHARE = 200


async def collect_seldom() -> None:
    """Look through all objects seldom, until cancelled; belongs to a process that does nothing but serve."""
    thresholds = gc.get_threshold()
    gc.collect()
    # Modules and what they hold stay as they are.
    gc.freeze()
    gc.set_threshold(YOUNG, MIDDLE, NEVER)
    took_s = 0.0
    try:
        while True:
            await asyncio.sleep(max(EVERY_S, SHARE * took_s))
            began_s = time.monotonic()
            gc.collect()
            took_s = time.monotonic() - began_s
    finally:
        gc.set_threshold(*thresholds)
        gc.unfreeze()
