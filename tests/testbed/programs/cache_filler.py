"""A process that fills a cache with blocks that can be checked, as fast as it can; made to be killed.

Run as ``python -m tests.testbed.programs.cache_filler <directory> <limit> <seed>``. Says "ready" after the first block.
"""

from __future__ import annotations

import random
import sys

from strata.data.files.cache import Cache

KEYS = [f"{number:032x}" for number in range(8)]
BLOCK_BYTES = 20_000


def block(key: str, number: int) -> bytes:
    """The one right content of a block."""
    return f"{key}-{number}|".encode().ljust(40, b".") * (BLOCK_BYTES // 40)


def main() -> None:
    """Read and fill for ever; a wrong block ends it."""
    cache = Cache(sys.argv[1], limit_bytes=int(sys.argv[2]))
    chance = random.Random(int(sys.argv[3]))
    count = 0
    while True:
        key, number = chance.choice(KEYS), chance.randrange(30)
        found = cache.get(key, number)
        if found is None:
            cache.put(key, number, block(key, number))
        elif found != block(key, number):
            sys.exit(f"block {number} of {key} is wrong")
        count += 1
        if count == 1:
            sys.stdout.write("ready\n")
            sys.stdout.flush()


if __name__ == "__main__":
    main()
