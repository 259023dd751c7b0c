"""Many faults on one job, in a random order in which every kind has its turn; exit with 1 if anything does not hold."""

from __future__ import annotations

import argparse
import os
import random
import shutil
import sys
import tempfile
import time
from pathlib import Path

from tests.chaos.chaos import FAULTS, Chaos


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--faults", type=int, default=28)
    parser.add_argument("--kind", choices=("numpy", "ddp"), default="numpy")
    parser.add_argument("--seed", type=int, default=1)
    options = parser.parse_args()
    chance = random.Random(options.seed)
    faults = [FAULTS[number % len(FAULTS)] for number in range(options.faults)]
    chance.shuffle(faults)
    folder = Path(tempfile.mkdtemp(prefix="strata-chaos-"))
    os.environ["JOBS_PATH"] = str(folder / "jobs")
    # Up to 30 steps are done between two faults, and an epoch has 10.
    epochs = 10 + 3 * options.faults
    with Chaos(folder, kind=options.kind, epochs=epochs, seed=options.seed, watchdog_s=10.0) as chaos:
        began_s = time.monotonic()
        for number, fault in enumerate(faults, start=1):
            done = chaos.do(fault)
            sys.stdout.write(f"{number:3} {time.monotonic() - began_s:6.0f} s  {done}\n")
            sys.stdout.flush()
        wrong = chaos.finish(judges_waits=True)
    if wrong:
        sys.stdout.write(f"everything is in {folder}\n")
    else:
        shutil.rmtree(folder)
    for each in wrong:
        sys.stdout.write(f"WRONG: {each}\n")
    sys.stdout.write(
        f"{len(faults)} faults on {options.kind}: {'all is well' if not wrong else f'{len(wrong)} wrong'}\n"
    )
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
