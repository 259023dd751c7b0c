"""Many faults on coordinators and etcd; exit with 1, and keep the folder, if anything does not hold."""

from __future__ import annotations

import argparse
import os
import shutil
import sys
import tempfile
import traceback
from pathlib import Path

from tests.ha.trial import run_trial
from tests.testbed.network.namespaces import why_not


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--faults", type=int, default=200)
    parser.add_argument("--seed", type=int, default=1)
    options = parser.parse_args()
    if (problem := why_not()) is not None:
        _say(problem)
        return 1
    folder = Path(tempfile.mkdtemp(prefix="strata-ha-"))
    os.environ["JOBS_PATH"] = str(folder / "jobs")
    _say(f"seed {options.seed}, {options.faults} faults, folder {folder}")
    try:
        wrong = run_trial(
            folder,
            faults=options.faults,
            seed=options.seed,
            # Ten steps each; 200 faults took 2,000 steps on a busy machine, and an idle one does 5 in a second.
            epochs=20 + 4 * options.faults,
            quorum_s=30.0,
            say=_say,
        )
    except Exception:  # noqa: BLE001 - whatever it is, the folder is kept and the seed was said
        wrong = [traceback.format_exc()]
    for each in wrong:
        _say(f"WRONG: {each}")
    if wrong:
        _say(f"everything is in {folder}")
        return 1
    shutil.rmtree(folder)
    _say("all is well")
    return 0


def _say(line: str) -> None:
    sys.stdout.write(f"{line}\n")
    sys.stdout.flush()


if __name__ == "__main__":
    sys.exit(main())
