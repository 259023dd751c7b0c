"""Worlds of three coordinators on one etcd, in which any of them may fail: the history stays one."""

from __future__ import annotations

import pytest

from tests.simulation.bugs import REPLICA_BUGS
from tests.simulation.replicas.replica_faults import FAULTS
from tests.simulation.replicas.replica_world import ReplicaWorld
from tests.simulation.search import find_bug, run_worlds

# ``make simulate`` runs many more.
WORLDS = [pytest.param(range(20), id="0-19"), pytest.param(range(20, 60), id="20-59", marks=pytest.mark.full)]
SEEDS_PER_BUG = 300
# These show in the first few worlds; ``make simulate-bugs`` looks for all of them.
QUICK_BUGS = (
    "write_without_a_fence",
    "write_pieces_without_a_fence",
    "write_the_head_before_the_other_pieces",
    "answer_for_ever_after_one_election",
    "count_a_renewal_from_when_it_was_answered_and_twice",
    "take_an_unknown_outcome_for_a_success",
    "lead_with_what_was_watched_until_now",
    "try_only_the_first_address",
)


@pytest.mark.timeout(600)
@pytest.mark.parametrize("seeds", WORLDS)
def test_whatever_fails_the_replicas_keep_one_history(seeds: range) -> None:
    tally, failures = run_worlds(ReplicaWorld, seeds)
    count = len(seeds)
    assert not failures, f"{len(failures)} of {count} worlds; the first:\n{failures[0]}"
    # A world in which nothing happens proves nothing.
    assert all(tally[fault] > count // 10 for fault in FAULTS), tally
    often = ("takeovers", "depositions", "acknowledged", "keys set", "releases", "commits", "redirects", "snapshots")
    assert all(tally[what] > count for what in often), tally
    assert tally["batches in pieces"] > 10 * count, tally
    assert all(tally[what] > count // 10 for what in ("fenced writes", "refused writes")), tally
    assert tally["torn batches"], tally


def test_the_same_seed_gives_the_same_world_of_replicas() -> None:
    first, second = ReplicaWorld(7), ReplicaWorld(7)
    first.run()
    second.run()
    assert (first.trace, first.now_s, first.tally) == (second.trace, second.now_s, second.tally)


@pytest.mark.full
@pytest.mark.timeout(600)
@pytest.mark.parametrize("name", QUICK_BUGS)
def test_a_bug_planted_among_replicas_is_found(name: str) -> None:
    (plant,) = (plant for plant in REPLICA_BUGS if plant.__name__ == name)
    assert find_bug(plant, range(SEEDS_PER_BUG)) is not None
