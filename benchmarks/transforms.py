"""A transform that is heavy in Python: batches a second with one process and with two.

python -m benchmarks.transforms [--batches 60] [--batch-size 32] [--rounds 3] [--loops 20] [--json FILE]

A sample is a picture of 150 kB. The transform makes as much of it again, and does so many thousand steps of Python for
each, as an augmentation does that no library has. Processes are started, and have done some batches, before the clock
starts. Threads stand beside them: work in Python does not get faster by them.
"""

from __future__ import annotations

import argparse
import json
import statistics
import time
from functools import partial
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np

from strata.data import open_dataset

SHAPE = (224, 224, 3)
CONTESTANTS = {"1 thread": (1, 0), "2 threads": (2, 0), "1 process": (1, 1), "2 processes": (1, 2)}


def augment(batch: dict[str, Any], *, loops: int) -> dict[str, Any]:
    """Return the pictures, brighter, with a number for each that took a while to find."""
    found = []
    for picture in batch["x"]:
        total = int(picture[0, 0, 0])
        for number in range(1_000 * loops):
            total = (total * 31 + number) & 0xFFFF
        found.append(total)
    return {"x": batch["x"] // 2 + 64, "y": np.array(found)}


def main() -> None:
    """Run the rounds, contestants in turn, and print the table."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.transforms", description=__doc__)
    parser.add_argument("--batches", type=int, default=60)
    parser.add_argument("--batch-size", type=int, default=32)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument(
        "--loops", type=int, default=20, help="how heavy the transform is, in thousands of steps a sample"
    )
    parser.add_argument("--json", type=Path, help="write all samples to this file")
    arguments = parser.parse_args()
    pictures = np.random.default_rng(0).integers(0, 256, (4 * arguments.batch_size, *SHAPE), dtype=np.uint8)
    found: dict[str, list[float]] = {name: [] for name in CONTESTANTS}
    for _ in range(arguments.rounds):
        for name in CONTESTANTS:
            found[name].append(_measure(name, pictures, arguments))
    one = statistics.median(found["1 process"])
    for name, speeds in found.items():
        speed = statistics.median(speeds)
        print(f"{name:12} {speed:8.1f} batches/s  {speed / one:5.2f} of one process")
    if arguments.json:
        arguments.json.write_text(json.dumps(found, indent=1))


def _measure(name: str, pictures: Any, arguments: argparse.Namespace) -> float:
    threads, processes = CONTESTANTS[name]
    transform = partial(augment, loops=arguments.loops)
    with open_dataset(
        {"x": pictures},
        batch_size=arguments.batch_size,
        transform=transform,
        threads=threads,
        processes=processes,
        epochs=None,
    ) as dataset:
        batches = iter(dataset)
        for _ in islice(batches, 8):
            pass
        started = time.perf_counter()
        for _ in islice(batches, arguments.batches):
            pass
        return arguments.batches / (time.perf_counter() - started)


if __name__ == "__main__":
    main()
