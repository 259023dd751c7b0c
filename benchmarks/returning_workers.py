"""How many of its old shards a worker gets back when it returns, after other workers came and left meanwhile.

    python -m benchmarks.returning_workers [--sizes 8x1000,100x10000] [--changes 0,1,4,16] [--rounds 40]

Nothing is timed, so the figures are the same on every machine.
"""

from __future__ import annotations

import argparse
import random

from strata.sharding import assign

SIZES = "4x100,8x1000,16x1000,100x10000"
CHANGES = "0,1,4,16"


def share_back(num_workers: int, num_shards: int, changes: int, chance: random.Random) -> float:
    """Return which part of its shards a worker has again, after so many joins and leaves of others."""
    workers = [f"worker-{number:05}" for number in range(num_workers)]
    assignment = assign("bench", num_shards, workers)
    lost = chance.choice(workers)
    before = set(assignment.shards_of(lost).tolist())
    workers.remove(lost)
    assignment = assign("bench", num_shards, workers, assignment)
    for number in range(changes):
        if chance.random() < 0.5 and len(workers) > 2:
            workers.remove(chance.choice(workers))
        else:
            workers.append(f"new-{number:05}")
        assignment = assign("bench", num_shards, workers, assignment)
    assignment = assign("bench", num_shards, [*workers, lost], assignment)
    return len(before & set(assignment.shards_of(lost).tolist())) / len(before)


def main() -> None:
    """Run the command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--sizes", default=SIZES, help=f"workers x shards, separated by commas (default {SIZES})")
    parser.add_argument("--changes", default=CHANGES, help="how many workers come or leave meanwhile")
    parser.add_argument("--rounds", type=int, default=40)
    arguments = parser.parse_args()
    print(f"{'workers x shards':>18} {'changes':>8} {'mean':>6} {'least':>6}")
    for size in arguments.sizes.split(","):
        workers, shards = map(int, size.split("x"))
        for changes in map(int, arguments.changes.split(",")):
            chance = random.Random(1)
            shares = [share_back(workers, shards, changes, chance) for _ in range(arguments.rounds)]
            print(f"{workers:>7,} x {shards:>8,} {changes:>8} {sum(shares) / len(shares):>6.2f} {min(shares):>6.2f}")


if __name__ == "__main__":
    main()
