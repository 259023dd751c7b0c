"""One trial: a job of eight workers, faults one after the other, and what must hold at the end."""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path
from random import Random

from tests.chaos.chaos import Chaos
from tests.ha.clients import RecordedClients
from tests.ha.faults import Faults
from tests.ha.site import Site

WORKERS = 8
# What was done after the last checkpoint may be done again, so the steps go on from below.
STEPS_AFTER = 6


def run_trial(
    folder: Path, *, faults: int, seed: int, epochs: int, quorum_s: float, say: Callable[[str], None]
) -> list[str]:
    """Do so many faults of all kinds, in a random order; return what does not hold."""
    chance = Random(seed)
    site = Site(folder)
    with site.connected():
        does = Faults(site, chance, quorum_s=quorum_s)
        kinds = [list(does.kinds)[number % len(does.kinds)] for number in range(faults)]
        chance.shuffle(kinds)
        chaos = Chaos(
            folder,
            kind="numpy",
            epochs=epochs,
            seed=seed,
            # A worker that waits for a leader is not hung.
            watchdog_s=300.0,
            nproc=WORKERS,
            coordinator=site,
            prefix=site.workers.prefix,
        )
        with chaos:
            clients = RecordedClients(site.url, folder)
            clients.start()
            began_s = time.monotonic()
            for number, kind in enumerate(kinds, start=1):
                before = chaos.last_step()
                done_s = time.monotonic()
                does.do(kind)
                chaos.wait(
                    lambda before=before: chaos.last_step() > before + STEPS_AFTER or chaos.is_over(),
                    f"the job goes on after {kind}",
                )
                took_s = time.monotonic() - done_s
                say(f"{number:3} {time.monotonic() - began_s:6.0f} s  {kind} after step {before}: {took_s:.1f} s")
            clients.stop()
            wrong = ["the job ended before the last fault: give it more epochs"] if chaos.is_over() else []
            wrong += chaos.finish(judges_waits=False)
            answered, refuted = clients.check()
            say(f"{answered} calls were answered")
            wrong += [str(each) for each in refuted]
            # Nothing was done to any worker, and none is to pay for a takeover.
            wrong += site.failed_workers()
            wrong += [] if answered > 10 * faults else [f"only {answered} calls were answered: the history says little"]
    return wrong
