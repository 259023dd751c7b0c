"""The index has what storage has: a checkpoint that was deleted is neither listed nor restored, except for the last."""

from __future__ import annotations

import pytest

from strata.cluster import commands as c
from strata.cluster.replies import CommittedSteps
from strata.cluster.values import CommitRecord
from strata.errors import LastCheckpointError
from tests.unit.cluster.commit_steps import commit, confirm, report
from tests.unit.cluster.conftest import Bench


@pytest.fixture
def bench() -> Bench:
    bench = Bench()
    bench.join("a", "b", "c")
    return bench


@pytest.fixture
def trained(bench: Bench) -> Bench:
    for step in (10, 20, 30):
        commit(bench, step)
    return bench


def steps_of(bench: Bench) -> list[int]:
    reply = bench.apply(c.AskCheckpoints())[0]
    assert isinstance(reply, CommittedSteps)
    assert list(reply.steps) == sorted(bench.job.commits.committed)
    return list(reply.steps)


def restore_step(bench: Bench, worker: str = "a") -> int | None:
    checkpoint = bench.say(c.AskRestorePoint, worker)[0].checkpoint
    return None if checkpoint is None else int(checkpoint.step)


def listing(*steps: int) -> c.AdoptCheckpoints:
    return c.AdoptCheckpoints(checkpoints=tuple(CommitRecord(step, 0, "m", "[]") for step in steps))


@pytest.mark.parametrize(
    ("gone", "left"),
    [((10,), [20, 30]), ((30,), [10, 20]), ((20, 30, 99), [10]), ((), [10, 20, 30]), ((10, 20, 30), [30])],
)
def test_what_is_gone_from_storage_is_dropped_and_only_the_last_stays(
    gone: tuple[int, ...], left: list[int], trained: Bench
) -> None:
    trained.apply(c.DropCheckpoints(steps=gone))
    assert steps_of(trained) == left
    assert restore_step(trained) == left[-1]


def test_the_checkpoint_that_a_generation_goes_on_from_is_dropped_and_the_generation_goes_on(bench: Bench) -> None:
    commit(bench, 10)
    assert restore_step(bench, "a") == 10
    commit(bench, 20)
    bench.apply(c.DropCheckpoints(steps=(10,)))
    assert steps_of(bench) == [20]
    # All workers of a generation go on from the same step; one that finds it gone has all go on from another.
    assert restore_step(bench, "b") == 10
    bench.say(c.RejectCheckpoint, "b", step=10, reason="it was deleted")
    assert restore_step(bench, "a") == 20
    assert steps_of(bench) == [20]


def test_a_dropped_restore_point_survives_a_restart_of_the_coordinator(bench: Bench) -> None:
    commit(bench, 10)
    assert restore_step(bench, "a") == 10
    commit(bench, 20)
    bench.apply(c.DropCheckpoints(steps=(10,)))
    again = bench.restarted()
    assert restore_step(again, "b") == 10
    assert steps_of(again) == [20]


def test_the_last_checkpoint_is_not_rejected_though_it_was_dropped_beside_others(trained: Bench) -> None:
    assert restore_step(trained) == 30
    trained.apply(c.DropCheckpoints(steps=(10, 20, 30)))
    with pytest.raises(LastCheckpointError, match="step 30 is the only checkpoint"):
        trained.say(c.RejectCheckpoint, "a", step=30, reason="it was deleted")


@pytest.mark.parametrize("gone", [(10,), (30,), (20, 30)])
def test_a_listing_that_is_older_than_a_deletion_brings_nothing_back(gone: tuple[int, ...], trained: Bench) -> None:
    trained.apply(c.DropCheckpoints(steps=gone))
    left = steps_of(trained)
    trained.apply(listing(10, 20, 30))
    assert steps_of(trained) == left


def test_a_step_that_was_deleted_can_be_saved_again(trained: Bench) -> None:
    trained.apply(c.DropCheckpoints(steps=(30,)))
    for worker in "abc":
        report(trained, worker, 30, path=f"step_30/{worker}-again")
    confirm(trained, "a", 30)
    assert steps_of(trained) == [10, 20, 30]
    trained.apply(listing(30))
    assert restore_step(trained) == 30


def test_what_was_dropped_no_longer_counts_against_the_quota(trained: Bench) -> None:
    before = trained.job.commits.size_bytes()
    trained.apply(c.DropCheckpoints(steps=(10, 30)))
    assert trained.job.commits.size_bytes() == before // 3
