"""What traces cost: nothing but a few calls when nobody asks for them, and what when someone does.

    python -m benchmarks.service.tracing

Off is what every run pays for being traceable: the calls around one barrier and one save, and one look for each command
that the coordinator answers. On is the same with spans that go to a receiver in another thread of this process.
"""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import numpy as np

from strata.checkpoint import CheckpointManager
from strata.tracing.environment import open_tracing
from strata.tracing.trace_names import barrier_trace
from strata.tracing.traces import NO_TRACES, Traces
from tests.testbed.network.otlp import receiving

CALLS = 100_000
# Fewer than one batch: the thread that sends them would else compete for the interpreter.
TRACED_CALLS = 50
SAVES = 60
STATE = 1 << 20


def main() -> None:
    """Print the cost of the calls, of a save with and without, and of the import."""
    print(f"calls around one barrier, off   {measure_calls(NO_TRACES, CALLS) * 1e6:8.2f} us")
    with tracing() as traces:
        print(f"calls around one barrier, on    {measure_calls(traces, TRACED_CALLS) * 1e6:8.2f} us")
        off, on = measure_saves({"off": NO_TRACES, "on": traces})
    print(f"a save of 1 MiB until committed, off {off * 1e3:6.2f} ms")
    print(f"a save of 1 MiB until committed, on  {on * 1e3:6.2f} ms, {on / off:.2f} of off")
    print(f"modules of OpenTelemetry that a worker loads, off: {count_modules()}")


def measure_calls(traces: Traces, calls: int) -> float:
    """Return the seconds that the calls around one barrier take, beside a loop that calls nothing."""

    def traced() -> None:
        for number in range(calls):
            with traces.timed(barrier_trace(1, "agree", number), "wait", leads=True, rank=0):
                pass

    def bare() -> None:
        for _ in range(calls):
            pass

    return (best_of(traced) - best_of(bare)) / calls


def best_of(work: Callable[[], None], rounds: int = 5) -> float:
    """Return the seconds of the fastest round: what others take of the machine is not its cost."""
    taken = []
    for _ in range(rounds):
        began_s = time.perf_counter()
        work()
        taken.append(time.perf_counter() - began_s)
    return min(taken)


def measure_saves(all_traces: dict[str, Traces]) -> list[float]:
    """Return the median seconds of a save, each in turn with the others: they meet the same machine."""
    state = {"weight": np.zeros(STATE, np.uint8)}
    taken: dict[str, list[float]] = {name: [] for name in all_traces}
    with tempfile.TemporaryDirectory() as folder:
        managers = {
            name: CheckpointManager(Path(folder, name), keep_count=2, traces=traces)
            for name, traces in all_traces.items()
        }
        for step in range(SAVES):
            state["weight"][:8] = step
            for name, manager in managers.items():
                began_s = time.perf_counter()
                manager.save(state, step)
                taken[name].append(time.perf_counter() - began_s)
        for manager in managers.values():
            manager.close()
    return [float(np.median(each)) for each in taken.values()]


@contextmanager
def tracing() -> Iterator[Traces]:
    """Traces that go to a receiver in this process."""
    with receiving() as receiver:
        os.environ["OTEL_EXPORTER_OTLP_ENDPOINT"] = receiver.endpoint
        opened = open_tracing(os.environ, service="benchmark", attributes={})
        try:
            yield opened.of("seed")
        finally:
            opened.close()


def count_modules() -> int:
    """Return how many modules of OpenTelemetry a process has that imports all that a worker does."""
    source = (
        "import sys, strata, strata.run.join, strata.run.team.coordinated_team, strata.checkpoint\n"
        "print(sum(name.partition('.')[0] == 'opentelemetry' for name in sys.modules))"
    )
    told = subprocess.run([sys.executable, "-c", source], check=True, capture_output=True, text=True).stdout
    return int(told)


if __name__ == "__main__":
    main()
