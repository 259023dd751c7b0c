"""The shipped dispatcher while its disk refuses and its process is stopped: it tells only what is durable."""

from __future__ import annotations

import pytest

from tests.simulation.bugs import DISPATCHER_BUGS, Plant
from tests.simulation.dispatching.dispatcher_world import DispatcherWorld
from tests.simulation.search import find_bug, run_worlds

# ``make simulate`` runs many more.
WORLDS = [pytest.param(range(10), id="0-9"), pytest.param(range(10, 100), id="10-99", marks=pytest.mark.full)]
SEEDS_PER_BUG = 50


@pytest.mark.timeout(600)
@pytest.mark.parametrize("seeds", WORLDS)
def test_whatever_the_disk_does_the_dispatcher_tells_only_what_is_durable(seeds: range) -> None:
    tally, failures = run_worlds(DispatcherWorld, seeds)
    count = len(seeds)
    assert not failures, f"{len(failures)} of {count} worlds; the first:\n{failures[0]}"
    # A world in which nothing happens proves nothing.
    often = ("answers", "refusals", "keys set", "snapshots", "effects", "failures", "pauses")
    assert all(tally[what] > count for what in often), tally


def test_the_same_seed_gives_the_same_world_of_a_dispatcher() -> None:
    first, second = DispatcherWorld(7), DispatcherWorld(7)
    first.run()
    second.run()
    assert (first.trace, first.now_s, first.tally) == (second.trace, second.now_s, second.tally)


@pytest.mark.parametrize("plant", DISPATCHER_BUGS, ids=lambda plant: plant.__name__)
def test_a_bug_planted_in_the_dispatcher_is_found(plant: Plant) -> None:
    assert find_bug(plant, range(SEEDS_PER_BUG)) is not None
