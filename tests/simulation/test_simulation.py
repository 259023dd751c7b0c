"""Thousands of worlds in which anything fails at any moment, and planted bugs that must not go unseen."""

from __future__ import annotations

from collections import Counter
from types import ModuleType
from typing import Any

import pytest

from strata.cluster.cluster import _HANDLERS
from tests.simulation.bugs import BUGS, DISPATCHER_BUGS, REPLICA_BUGS, Plant
from tests.simulation.bugs import cluster as cluster_bugs
from tests.simulation.faults import FAULTS
from tests.simulation.search import find_bug, run_seed, run_seeds, shrink
from tests.simulation.violation import ViolationError
from tests.simulation.world import World

# ``make simulate`` runs many more.
WORLDS = [pytest.param(range(100), id="0-99"), pytest.param(range(100, 300), id="100-299", marks=pytest.mark.full)]
# A planted bug must show within this many worlds.
SEEDS_PER_BUG = 2_000
# These show in the first few worlds, so they are looked for here; ``make simulate-bugs`` looks for all of them.
QUICK_BUGS = (
    "stop_beating_after_a_refused_write",
    "come_back_after_hours",
    "keep_the_generation_when_a_worker_fails",
    "keep_leases_through_a_restart",
    "commit_without_the_last_part",
    "forget_what_was_committed",
    "reject_the_only_checkpoint",
    "keep_shard_leases_in_a_new_generation",
    "forget_who_set_a_key",
    "lose_what_comes_while_a_batch_is_written",
    "send_no_effects",
    "take_a_job_by_its_plain_name",
    "find_a_worker_by_its_name_alone",
    "let_anyone_manage_tenants",
    "show_the_full_names",
    "keep_no_quota",
)


@pytest.mark.timeout(900)
@pytest.mark.parametrize("seeds", WORLDS)
def test_every_invariant_holds_in_every_world(seeds: range) -> None:
    done, tally, failures = 0, Counter[str](), []
    for count, counted, failed in run_seeds(seeds, processes=2):
        done += count
        tally += counted
        failures += failed
    assert not failures, f"{len(failures)} of {len(seeds)} worlds; the first:\n{failures[0]}"
    assert done == len(seeds)
    # A world in which nothing happens proves nothing.
    assert all(tally[fault] > len(seeds) // 10 for fault in FAULTS), tally
    assert tally["commits announced"] > len(seeds)
    often = (
        "neighbours' effects",
        "tenant commands",
        "quotas kept",
        "releases",
        "keep-alives",
        "keys set",
        "skips",
        "refused writes",
        "zombies refused",
    )
    assert all(tally[what] > len(seeds) // 10 for what in often), tally
    assert all(tally[what] > 0 for what in ("rejections", "dropped parts", "scripts ended")), tally


def test_the_same_seed_gives_the_same_world() -> None:
    first, second = World(7), World(7)
    first.run()
    second.run()
    assert (first.trace, first.now_s, first.tally) == (second.trace, second.now_s, second.tally)


class Replacements:
    """Takes the place of a MonkeyPatch: records what a bug replaces, and by what, and replaces nothing."""

    def __init__(self) -> None:
        self.found: list[tuple[Any, Any]] = []

    def setattr(self, target: Any, name: str, value: Any) -> None:
        owner = target.__name__ if isinstance(target, ModuleType) else target.__module__
        assert owner.startswith("strata."), f"{owner}.{name} is not shipped"
        self.found.append((getattr(target, name), value))

    def setitem(self, table: Any, key: Any, value: Any) -> None:
        assert table is _HANDLERS
        self.found.append((table[key], value))


@pytest.mark.parametrize("plant", [*BUGS, *DISPATCHER_BUGS, *REPLICA_BUGS], ids=lambda plant: plant.__name__)
def test_a_planted_bug_replaces_code_that_is_there_and_shipped(plant: Plant) -> None:
    replacements = Replacements()
    plant(replacements)
    assert replacements.found
    assert [before for before, after in replacements.found if before == after] == []


@pytest.mark.timeout(600)
@pytest.mark.parametrize("name", QUICK_BUGS)
def test_a_planted_bug_is_found(name: str) -> None:
    (plant,) = (plant for plant in BUGS if plant.__name__ == name)
    assert find_bug(plant, range(SEEDS_PER_BUG)) is not None


@pytest.mark.timeout(600)
def test_a_failure_is_told_with_a_seed_that_replays_it_and_only_the_faults_it_needs(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    cluster_bugs.forget_to_roll_back(monkeypatch)
    failure = next(found for seed in range(SEEDS_PER_BUG) if (found := run_seed(seed)[1]) is not None)
    faults = len(World(failure.seed).faults)
    assert len(failure.skipped) > 0
    assert f"replay: World({failure.seed}, skipped=" in str(failure)
    with pytest.raises(ViolationError):
        World(failure.seed, skipped=failure.skipped).run()
    assert shrink(failure.seed, faults) == failure
    # None of the faults that are left can be left out.
    for number in set(range(faults)) - failure.skipped:
        World(failure.seed, skipped=failure.skipped | {number}).run()
