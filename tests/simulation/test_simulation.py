"""Thousands of worlds in which anything fails at any moment, and planted bugs that must not go unseen."""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest

from strata.cluster import commands as c
from strata.cluster import keys
from strata.cluster.barriers import Barriers
from strata.cluster.cluster import _HANDLERS
from strata.cluster.commits import Committed, Pending
from strata.cluster.deals import LeasedDeal
from strata.cluster.job import Job
from strata.cluster.keys import Keys
from strata.cluster.ledger import EpochLedger, Ledger
from strata.cluster.membership import Membership
from strata.cluster.replies import Done, KeyValue
from strata.sharding import DataOrder
from tests.simulation.faults import FAULTS
from tests.simulation.invariants import ViolationError
from tests.simulation.search import run_seed, run_seeds, shrink
from tests.simulation.world import World

SEEDS = int(os.environ.get("SEEDS", "2000"))
# A planted bug must show within this many worlds.
SEEDS_PER_BUG = 400


@pytest.mark.timeout(900)
def test_every_invariant_holds_in_every_world() -> None:
    done, tally, failures = 0, Counter[str](), []
    for count, counted, failed in run_seeds(range(SEEDS), processes=2):
        done += count
        tally += counted
        failures += failed
    assert not failures, f"{len(failures)} of {SEEDS} worlds; the first:\n{failures[0]}"
    assert done == SEEDS
    # A world in which nothing happens proves nothing.
    assert all(tally[fault] > SEEDS // 10 for fault in FAULTS), tally
    assert tally["commits announced"] > SEEDS
    assert all(tally[what] > SEEDS // 10 for what in ("rejections", "vouches", "keys set", "skips")), tally
    assert tally["given up"] > 0


def test_the_same_seed_gives_the_same_world() -> None:
    first, second = World(7), World(7)
    first.run()
    second.run()
    assert (first.trace, first.now_s, first.tally) == (second.trace, second.now_s, second.tally)


@pytest.mark.parametrize("seed", [55_472, 68_808])
def test_worlds_in_which_a_late_manifest_of_a_history_that_was_rolled_back_became_the_newest_hold(seed: int) -> None:
    World(seed, data_order=DataOrder.STICKY, is_plain=True).run()


def test_a_world_in_which_a_late_confirmation_brought_a_rejected_checkpoint_back_holds() -> None:
    World(302).run()


def _accept_any_generation(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Membership, "check_generation", lambda *_: None)


def _cut_at_the_present(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(EpochLedger, "cut", lambda self, _: self.consumed)


def _forget_to_roll_back(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(EpochLedger, "roll_back", lambda *_: None)


def _commit_without_the_last_part(monkeypatch: pytest.MonkeyPatch) -> None:
    whole = Pending.missing
    monkeypatch.setattr(Pending, "missing", lambda self: whole(self)[1:])


def _count_reports_twice(monkeypatch: pytest.MonkeyPatch) -> None:
    report = Ledger.report

    def forgetful(self: Ledger, command: Any) -> bool:
        self._sequences[command.worker_id] = command.incarnation, command.sequence - 1
        return report(self, command)

    monkeypatch.setattr(Ledger, "report", forgetful)


def _announce_before_it_is_durable(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(c.ConfirmCommit, "durable", False)


def _keep_hands_in_a_new_generation(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Ledger, "change_generation", lambda *_: None)


def _keep_barriers_in_a_new_generation(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Barriers, "change_generation", lambda *_: [])


def _keep_the_generation_when_a_worker_fails(monkeypatch: pytest.MonkeyPatch) -> None:
    change = Membership._change

    def lazy(self: Membership) -> None:
        change(self)
        self.generation -= self.generation > 3

    monkeypatch.setattr(Membership, "_change", lazy)


def _lease_a_shard_twice(monkeypatch: pytest.MonkeyPatch) -> None:
    take = LeasedDeal.take

    def careless(self: LeasedDeal, worker_id: str, ticket: int) -> Any:
        self._next = 0 if worker_id == "w1" and ticket == 1 else self._next
        return take(self, worker_id, ticket)

    monkeypatch.setattr(LeasedDeal, "take", careless)


def _take_a_rejected_checkpoint_in_again(monkeypatch: pytest.MonkeyPatch) -> None:
    def trusting(self: Job, command: c.AdoptCheckpoints, now_s: float) -> Any:
        return Done(), [effect for row in command.checkpoints for effect in self._commit(Committed(*row), now_s)]

    monkeypatch.setitem(_HANDLERS, c.AdoptCheckpoints, trusting)


def _reject_the_only_checkpoint(monkeypatch: pytest.MonkeyPatch) -> None:
    def hasty(self: Job, command: c.RejectCheckpoint, now_s: float) -> Any:
        self._check(command)
        if self._restored != (command.step,):
            return Done(), []
        self.membership.begin_anew()
        self.commits.reject(command.step, command.reason, until=self.membership.generation)
        return Done(), self._new_generation(now_s, "rejected")

    monkeypatch.setitem(_HANDLERS, c.RejectCheckpoint, hasty)


def _do_not_listen_to_who_vouches(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Membership, "vouch", lambda *_, **__: None)


def _set_a_key_again_when_that_is_repeated(monkeypatch: pytest.MonkeyPatch) -> None:
    once = Keys.set

    def careless(self: Keys, command: c.SetKey) -> KeyValue:
        return once(self, replace(command, token=self.get(command.key).token))

    monkeypatch.setattr(Keys, "set", careless)


def _forget_who_set_a_key(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(keys, "MAX_WRITERS", 1)


def _forget_what_was_skipped(monkeypatch: pytest.MonkeyPatch) -> None:
    roll_back = Ledger.roll_back

    def thorough(self: Ledger, cursors: str) -> None:
        roll_back(self, cursors)
        self._skipped.clear()

    monkeypatch.setattr(Ledger, "roll_back", thorough)


BUGS: list[Callable[[pytest.MonkeyPatch], None]] = [
    _accept_any_generation,
    _cut_at_the_present,
    _forget_to_roll_back,
    _commit_without_the_last_part,
    _count_reports_twice,
    _announce_before_it_is_durable,
    _keep_hands_in_a_new_generation,
    _keep_barriers_in_a_new_generation,
    _keep_the_generation_when_a_worker_fails,
    _lease_a_shard_twice,
    _take_a_rejected_checkpoint_in_again,
    _reject_the_only_checkpoint,
    _do_not_listen_to_who_vouches,
    _set_a_key_again_when_that_is_repeated,
    _forget_who_set_a_key,
    _forget_what_was_skipped,
]


@pytest.mark.parametrize("plant", BUGS, ids=lambda plant: plant.__name__.strip("_"))
def test_a_planted_bug_is_found(plant: Callable[[pytest.MonkeyPatch], None], monkeypatch: pytest.MonkeyPatch) -> None:
    plant(monkeypatch)
    for seed in range(SEEDS_PER_BUG):
        try:
            World(seed).run()
        except (ViolationError, KeyError, ValueError, AssertionError):
            return
    pytest.fail(f"{SEEDS_PER_BUG} worlds did not show it")


def test_a_failure_is_told_with_a_seed_that_replays_it_and_only_the_faults_it_needs(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    _forget_to_roll_back(monkeypatch)
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
