"""What ``import strata`` costs, beside an interpreter that imports nothing.

python -m benchmarks.import_time
"""

from __future__ import annotations

import statistics
import subprocess
import sys
import time

ROUNDS = 21


def main() -> None:
    """Print the median of fresh interpreters, one pair after the other."""
    samples: dict[str, list[float]] = {"pass": [], "import strata": []}
    for _ in range(ROUNDS):
        for statement, elapsed_ms in samples.items():
            started = time.perf_counter()
            subprocess.run([sys.executable, "-c", statement], check=True)
            elapsed_ms.append((time.perf_counter() - started) * 1_000)
    bare, loaded = (statistics.median(elapsed_ms) for elapsed_ms in samples.values())
    print(f"python -c pass            {bare:7.1f} ms")
    print(f"python -c 'import strata' {loaded:7.1f} ms")
    print(f"import strata             {loaded - bare:7.1f} ms, {loaded / bare:.2f} of a bare start")


if __name__ == "__main__":
    main()
