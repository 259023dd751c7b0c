"""Running many seeds, and making a failure small enough to read."""

from __future__ import annotations

import gc
from collections import Counter
from collections.abc import Callable, Iterator
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass
from multiprocessing import get_context

import pytest

from tests.simulation.bugs.planting import DISPATCHER_BUGS, REPLICA_BUGS
from tests.simulation.dispatching.dispatcher_world import DispatcherWorld
from tests.simulation.replicas.replica_world import ReplicaWorld
from tests.simulation.violation import ViolationError
from tests.simulation.world import World

SEEDS_PER_TASK = 50
COLLECT_WORLDS = 10


@dataclass(frozen=True)
class Failure:
    """A seed that breaks an invariant, with the fewest faults that still do, and what happened then."""

    seed: int
    problem: str
    skipped: frozenset[int]
    trace: tuple[str, ...]

    def __str__(self) -> str:
        lines = "\n".join(f"  {line}" for line in self.trace[-40:])
        return (
            f"seed {self.seed}: {self.problem}\n{lines}\n"
            f"replay: World({self.seed}, skipped=frozenset({sorted(self.skipped)})).run()"
        )


def run_seed(seed: int) -> tuple[Counter[str], Failure | None]:
    """Run one seed; if it fails, leave out every fault that is not needed for that."""
    world = World(seed)
    try:
        world.run()
    except ViolationError:
        return world.tally, shrink(seed, len(world.faults))
    return world.tally, None


def shrink(seed: int, num_faults: int) -> Failure:
    """Leave out one fault after the other, as long as an invariant still breaks."""
    skipped: frozenset[int] = frozenset()
    failure = _attempt(seed, skipped)
    assert failure is not None, "the run is not deterministic"
    before: frozenset[int] | None = None
    while before != skipped:
        # Again: what was needed beside a fault may not be needed without it.
        before = skipped
        for number in sorted(set(range(num_faults)) - skipped, reverse=True):
            smaller = _attempt(seed, skipped | {number})
            if smaller is not None:
                skipped, failure = skipped | {number}, smaller
    return failure


def run_seeds(seeds: range, *, processes: int) -> Iterator[tuple[int, Counter[str], list[Failure]]]:
    """Run seeds in several processes; yield how many are done, their tally and failures, task by task."""
    tasks = [seeds[start : start + SEEDS_PER_TASK] for start in range(0, len(seeds), SEEDS_PER_TASK)]
    with ProcessPoolExecutor(processes, mp_context=get_context("spawn")) as pool:
        try:
            yield from pool.map(_run_task, tasks)
        finally:
            # Whoever stops early does not wait for all the others.
            pool.shutdown(wait=False, cancel_futures=True)


def find_bug(plant: Callable[[pytest.MonkeyPatch], None], seeds: range) -> int | None:
    """Plant a bug and return the first seed whose world shows it."""
    kind: Callable[[int], World | ReplicaWorld | DispatcherWorld] = World
    if plant in REPLICA_BUGS:
        kind = ReplicaWorld
    elif plant in DISPATCHER_BUGS:
        kind = DispatcherWorld
    with pytest.MonkeyPatch.context() as patch:
        plant(patch)
        for seed in seeds:
            try:
                kind(seed).run()
            except (ViolationError, AssertionError, LookupError, TypeError, ValueError):
                return seed
    return None


def _run_task(seeds: range) -> tuple[int, Counter[str], list[Failure]]:
    tally: Counter[str] = Counter()
    failures = []
    # To look for garbage takes a sixth of a world's time; what some worlds leave behind fits into memory.
    gc.disable()
    for number, seed in enumerate(seeds):
        if number % COLLECT_WORLDS == 0:
            gc.collect()
        counted, failure = run_seed(seed)
        tally += counted
        if failure is not None:
            failures.append(failure)
    return len(seeds), tally, failures


def run_worlds(kind: type[ReplicaWorld | DispatcherWorld], seeds: range) -> tuple[Counter[str], list[str]]:
    """Run worlds of replicas or of the dispatcher; return their tally, and each failure with what came before it."""
    tally: Counter[str] = Counter()
    failures = []
    for seed in seeds:
        world = kind(seed)
        try:
            world.run()
        except ViolationError as error:
            lines = "\n".join(f"  {line}" for line in world.trace[-40:])
            failures.append(f"seed {seed}: {error}\n{lines}\nreplay: {kind.__name__}({seed}).run()")
        tally += world.tally
    return tally, failures


def _attempt(seed: int, skipped: frozenset[int]) -> Failure | None:
    world = World(seed, skipped=skipped)
    try:
        world.run()
    except ViolationError as error:
        return Failure(seed, str(error), skipped, tuple(world.trace))
    return None
