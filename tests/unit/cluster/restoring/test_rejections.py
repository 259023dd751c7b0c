"""A checkpoint that cannot be restored is rejected by all workers together, and nothing brings it back."""

from __future__ import annotations

import pytest

from strata.cluster import commands as c
from strata.cluster import events as e
from strata.cluster.values import CommitRecord
from strata.errors import (
    CommitRefusedError,
    LastCheckpointError,
    StaleGenerationError,
)
from tests.unit.cluster.commit_steps import commit, confirm, report
from tests.unit.cluster.conftest import Bench


@pytest.fixture
def bench() -> Bench:
    bench = Bench()
    bench.join("a", "b", "c")
    return bench


def restore_step(bench: Bench, worker: str) -> int | None:
    checkpoint = bench.say(c.AskRestorePoint, worker)[0].checkpoint
    return None if checkpoint is None else int(checkpoint.step)


def test_a_checkpoint_that_cannot_be_restored_sends_all_workers_back_to_an_older_one_together(bench: Bench) -> None:
    for step in (10, 20):
        commit(bench, step)
    generation = bench.generation
    assert bench.say(c.RejectCheckpoint, "b", step=20, reason="a byte flipped")[1] == [], "nobody goes on from it"
    assert restore_step(bench, "a") == 20
    (changed,) = bench.say(c.RejectCheckpoint, "b", step=20, reason="a byte flipped")[1]
    assert isinstance(changed, e.GenerationChanged)
    assert (changed.generation, changed.to) == (generation + 1, ("a", "b", "c"))
    assert changed.reason == "step 20 cannot be restored"
    # Whoever finds the same later ends no other generation, nor does the same message again.
    assert bench.say(c.RejectCheckpoint, "c", step=20, reason="a byte flipped")[1] == []
    with pytest.raises(StaleGenerationError):
        bench.say(c.RejectCheckpoint, "b", step=20, reason="a byte flipped", generation=generation)
    assert [restore_step(bench, worker) for worker in "abc"] == [10, 10, 10]
    # What it leads to may be saved again, and a listing of storage does not bring it back, also after a restart.
    again = bench.restarted()
    again.apply(c.AdoptCheckpoints(checkpoints=(CommitRecord(10, 0, "m", "[]"), CommitRecord(20, 0, "m", "[]"))))
    assert [restore_step(again, worker) for worker in "abc"] == [10, 10, 10]
    commit(again, 30)
    again.apply(c.ForgetCheckpoints(steps=(20,)))
    commit(again, 40)
    assert sorted(again.job.commits.committed) == [10, 30, 40]
    assert again.job.commits.rejected == {}


def test_a_late_confirmation_does_not_bring_a_rejected_checkpoint_back(bench: Bench) -> None:
    for step in (10, 20):
        commit(bench, step)
    first = bench.generation
    restore_step(bench, "b")
    bench.say(c.RejectCheckpoint, "b", step=20, reason="a byte flipped")
    with pytest.raises(CommitRefusedError, match="it was rejected: a byte flipped"):
        confirm(bench, "a", step=20, generation=first)
    assert restore_step(bench, "a") == 10
    # While it is saved again, only the manifest of that save counts.
    for worker in "abc":
        report(bench, worker, step=20, path=f"again/{worker}")
    with pytest.raises(CommitRefusedError, match="its parts are those of generation 4"):
        confirm(bench, "a", step=20, generation=first)
    (committed,) = confirm(bench, "a", step=20)
    assert isinstance(committed, e.CheckpointCommitted)
    assert bench.job.commits.rejected == {}


def test_the_only_checkpoint_is_not_rejected_because_nobody_may_begin_anew_by_mistake(bench: Bench) -> None:
    commit(bench, 10)
    restore_step(bench, "b")
    before = bench.cluster.snapshot()
    with pytest.raises(LastCheckpointError, match="step 10 is the only checkpoint"):
        bench.say(c.RejectCheckpoint, "b", step=10, reason="a byte flipped")
    assert bench.cluster.snapshot() == before


def test_a_listing_that_is_older_than_a_deletion_brings_nothing_back(bench: Bench) -> None:
    listing = c.AdoptCheckpoints(checkpoints=tuple(CommitRecord(step, 0, "m", "[]") for step in (10, 20, 30)))
    bench.apply(listing)
    assert sorted(bench.job.commits.committed) == [10, 20, 30], "a coordinator that knows nothing takes all"
    bench.apply(c.ForgetCheckpoints(steps=(10, 20)))
    bench.apply(listing)
    assert sorted(bench.job.commits.committed) == [30]


def test_whoever_goes_on_from_a_checkpoint_that_an_operator_removes_restores_again(bench: Bench) -> None:
    for step in (10, 20):
        commit(bench, step)
    assert restore_step(bench, "a") == 20
    _, (changed,) = bench.apply(c.ForgetCheckpoints(steps=(20,), even_newest=True))
    assert isinstance(changed, e.GenerationChanged)
    assert (changed.to, changed.reason) == (("a", "b", "c"), "an operator removed its checkpoint")
    assert [restore_step(bench, worker) for worker in "abc"] == [10, 10, 10]
