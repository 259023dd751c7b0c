"""A checkpoint is committed when its manifest is in storage, is never half announced, and outlives its writers."""

from __future__ import annotations

import json
from typing import Any

import pytest

from strata.cluster import commands as c
from strata.cluster import events as e
from strata.cluster.commits import CommitProgress
from strata.errors import (
    CheckpointAbortedError,
    CommitPendingError,
    LastCheckpointError,
    StaleGenerationError,
    StepTakenError,
)
from tests.unit.cluster.conftest import Bench


@pytest.fixture
def bench() -> Bench:
    bench = Bench()
    bench.join("a", "b", "c")
    return bench


def ack(bench: Bench, worker: str, step: int = 10, **fields: Any) -> list[e.Effect]:
    fields = {"epoch": 0, "part": f"step_{step}/{worker}", "size_bytes": 5, "digest": worker, **fields}
    effects: list[e.Effect] = bench.say(c.AckPart, worker, step=step, **fields)[1]
    return effects


def confirm(bench: Bench, worker: str, step: int = 10, **fields: Any) -> list[e.Effect]:
    fields = {"generation": bench.generation, "manifest": f"step_{step}/metadata.json", "cursors": "[]", **fields}
    effects: list[e.Effect] = bench.say(c.ConfirmCommit, worker, step=step, epoch=0, **fields)[1]
    return effects


def commit(bench: Bench, step: int) -> None:
    for worker in bench.job.membership.ids():
        ack(bench, worker, step)
    confirm(bench, bench.job.membership.ids()[0], step)


def test_with_the_last_part_the_lowest_rank_is_asked_for_the_manifest(bench: Bench) -> None:
    assert ack(bench, "c") == ack(bench, "a") == []
    (wanted,) = ack(bench, "b")
    assert isinstance(wanted, e.ManifestWanted)
    assert wanted.to == ("a",)
    assert wanted.parts == (("step_10/a", 5, "a"), ("step_10/b", 5, "b"), ("step_10/c", 5, "c"))


def test_a_commit_is_announced_to_everyone_once(bench: Bench) -> None:
    for worker in "abc":
        ack(bench, worker)
    (announced,) = confirm(bench, "a")
    assert isinstance(announced, e.CheckpointCommitted)
    assert (announced.step, announced.to) == (10, ("a", "b", "c"))
    assert confirm(bench, "b") == []
    latest = bench.job.commits.latest()
    assert latest is not None
    assert latest.step == 10


def test_an_ack_that_is_sent_twice_counts_once_even_after_the_commit(bench: Bench) -> None:
    ack(bench, "a")
    assert ack(bench, "a") == []
    ack(bench, "b")
    ack(bench, "c")
    confirm(bench, "a")
    assert ack(bench, "c") == []
    assert bench.job.commits.pending == {}


def test_another_save_of_a_committed_step_is_refused(bench: Bench) -> None:
    commit(bench, 10)
    with pytest.raises(StepTakenError, match="step 10 of job 'default' has its checkpoint already"):
        ack(bench, "a", part="step_10/other")


def test_if_the_asked_worker_dies_the_next_one_is_asked(bench: Bench) -> None:
    for worker in "abc":
        ack(bench, worker)
    bench.apply(c.FailWorkers(workers=(("a", "1"),), reason="killed"))
    wanted = [effect for effect in bench.pass_time(0.1) if isinstance(effect, e.ManifestWanted)]
    assert len(wanted) == 1
    assert wanted[0].to[0] in {"b", "c"}
    assert wanted[0].parts[0] == ("step_10/a", 5, "a")


def test_a_worker_that_is_slow_with_the_manifest_is_followed_by_the_next(bench: Bench) -> None:
    for worker in "abc":
        ack(bench, worker)
    asked = []
    for _ in range(4):
        bench.beat("a"), bench.beat("b"), bench.beat("c")
        for _ in range(4):
            bench.pass_time(8), bench.beat("a"), bench.beat("b"), bench.beat("c")
        asked += [p.asked for p in bench.job.commits.pending.values()]
    assert asked == [2, 3, 4, 5]


def test_a_worker_that_dies_before_its_part_ends_the_checkpoint(bench: Bench) -> None:
    ack(bench, "a")
    effects = bench.apply(c.FailWorkers(workers=(("c", "1"),), reason="killed"))[1]
    (aborted,) = [effect for effect in effects if isinstance(effect, e.CheckpointAborted)]
    assert (aborted.step, aborted.to) == (10, ("a", "b"))
    with pytest.raises(StaleGenerationError):
        ack(bench, "b", generation=3)
    assert bench.job.commits.pending == {}


def test_parts_that_do_not_come_in_time_end_the_checkpoint_and_are_named(bench: Bench) -> None:
    ack(bench, "a")
    effects: list[e.Effect] = []
    for _ in range(13):
        effects += bench.pass_time(8)
        for worker in "abc":
            bench.beat(worker)
    (aborted,) = effects
    assert isinstance(aborted, e.CheckpointAborted)
    assert aborted.reason == "no part of b, c in 100 s"


def test_a_manifest_that_turns_up_after_all_is_the_truth(bench: Bench) -> None:
    bench.apply(c.AdoptCheckpoints(checkpoints=((30, 1, "step_30/metadata.json", "[]"),)))
    latest = bench.job.commits.latest()
    assert latest is not None
    assert (latest.step, latest.epoch) == (30, 1)


def test_the_newest_checkpoint_is_never_forgotten(bench: Bench) -> None:
    for step in (10, 20, 30):
        commit(bench, step)
    assert bench.job.commits.surplus(keep_count=2) == [10]
    assert bench.job.commits.surplus(keep_count=0) == [10, 20]
    bench.apply(c.ForgetCheckpoints(steps=(10, 30, 99)))
    assert sorted(bench.job.commits.committed) == [20, 30]


def test_the_checkpoint_that_a_generation_goes_on_from_is_not_forgotten(bench: Bench) -> None:
    commit(bench, 10)
    bench.say(c.AskRestorePoint, "a")
    commit(bench, 20)
    bench.apply(c.ForgetCheckpoints(steps=(10,)))
    assert sorted(bench.job.commits.committed) == [10, 20]
    reply = bench.say(c.AskRestorePoint, "b")[0]
    assert reply.checkpoint.step == 10


def test_a_restart_of_the_coordinator_goes_on_with_what_is_pending(bench: Bench) -> None:
    for worker in "abc":
        ack(bench, worker)
    ack(bench, "a", step=20)
    again = bench.restarted()
    (wanted,) = again.pass_time(0.1)
    assert isinstance(wanted, e.ManifestWanted)
    assert wanted.step == 10
    ack(again, "b", step=20)
    (second,) = ack(again, "c", step=20)
    assert isinstance(second, e.ManifestWanted)


def test_the_cut_holds_what_was_seen_up_to_the_step_and_nothing_after(bench: Bench) -> None:
    bench.apply(c.RegisterDataset(dataset_id="d", total_samples=30, shard_size=10))
    report = {"dataset_id": "d", "epoch": 0}
    bench.say(c.ReportProgress, "a", sequence=1, step=10, spans=((0, 0, 5),), **report)
    bench.say(c.ReportProgress, "b", sequence=1, step=10, spans=((1, 0, 5),), **report)
    ack(bench, "a")
    bench.say(c.ReportProgress, "a", sequence=2, step=11, spans=((0, 5, 8),), **report)
    ack(bench, "b")
    (wanted,) = ack(bench, "c")
    assert isinstance(wanted, e.ManifestWanted)
    (cursor,) = json.loads(wanted.cursors)
    dataset = cursor.pop("dataset")
    assert cursor == {"order": "sticky", "epoch": 0, "consumed": [0, 5, 5, 5]}
    assert (dataset["dataset_id"], dataset["total_samples"], dataset["data_order"]) == ("d", 30, "sticky")


def test_a_commit_while_an_older_step_still_collects_leaves_the_older_cut_possible(bench: Bench) -> None:
    bench.apply(c.RegisterDataset(dataset_id="d", total_samples=30, shard_size=10))
    ack(bench, "a", step=10)
    bench.say(c.ReportProgress, "a", sequence=1, step=15, dataset_id="d", epoch=0, spans=((0, 0, 5),))
    commit(bench, 20)
    ack(bench, "b", step=10)
    (wanted,) = ack(bench, "c", step=10)
    assert isinstance(wanted, e.ManifestWanted)
    assert json.loads(wanted.cursors)[0]["consumed"] == []


def test_a_restore_waits_for_a_checkpoint_whose_parts_are_all_durable(bench: Bench) -> None:
    for worker in "abc":
        ack(bench, worker)
    bench.join("c", incarnation="2")
    with pytest.raises(CommitPendingError, match="step 10 of job 'default' is about to be committed"):
        bench.say(c.AskRestorePoint, "a")
    confirm(bench, "b")
    assert bench.say(c.AskRestorePoint, "a")[0].checkpoint.step == 10


def progress(bench: Bench, worker: str, step: int = 10, part: str | None = None) -> CommitProgress:
    reply: CommitProgress = bench.say(c.AskCommit, worker, step=step, part=part or f"step_{step}/{worker}")[0]
    return reply


def test_a_worker_that_missed_the_announcement_can_ask(bench: Bench) -> None:
    assert progress(bench, "a").phase == "unknown"
    ack(bench, "a")
    assert progress(bench, "a") == CommitProgress(phase="collecting", missing=("b", "c"))
    ack(bench, "b")
    ack(bench, "c")
    assert progress(bench, "a") == CommitProgress(phase="writing", missing=("a",))
    confirm(bench, "a")
    assert progress(bench, "a").phase == "committed"
    assert progress(bench, "a", part="step_10/other").phase == "unknown"


def test_a_worker_that_missed_the_abort_learns_who_is_to_blame(bench: Bench) -> None:
    ack(bench, "a")
    bench.apply(c.FailWorkers(workers=(("c", "1"),), reason="lease ended"))
    asked = progress(bench, "a")
    assert (asked.phase, asked.reason) == ("aborted", "c failed: lease ended")
    with pytest.raises(CheckpointAbortedError, match="c failed: lease ended"):
        ack(bench, "a")
    assert bench.job.commits.pending == {}


def test_a_part_that_counts_may_be_acknowledged_again_in_any_generation(bench: Bench) -> None:
    for worker in "abc":
        ack(bench, worker)
    old = bench.job.membership.generation
    bench.join("d")
    assert ack(bench, "b", generation=old) == []
    confirm(bench, "a")
    assert ack(bench, "b", generation=old) == []


def test_a_worker_that_was_asked_and_comes_back_is_asked_again(bench: Bench) -> None:
    for worker in "abc":
        ack(bench, worker)
    (wanted,) = bench.say(c.RegisterWorker, "a")[1]
    assert isinstance(wanted, e.ManifestWanted)
    assert wanted.to == ("a",)
    assert bench.say(c.RegisterWorker, "b")[1] == []


def test_a_checkpoint_that_nobody_can_commit_is_given_up_and_stays_so_after_a_restart(bench: Bench) -> None:
    for worker in "abc":
        ack(bench, worker)
    generation = bench.job.membership.generation
    give_up = {"step": 10, "reason": "the parts differ"}
    assert bench.say(c.GiveUpCheckpoint, "a", generation=generation - 1, **give_up)[1] == []
    (aborted,) = bench.say(c.GiveUpCheckpoint, "a", generation=generation, **give_up)[1]
    assert isinstance(aborted, e.CheckpointAborted)
    assert aborted.reason == "a: the parts differ"
    again = bench.restarted()
    assert again.cluster.snapshot() == bench.cluster.snapshot()
    assert progress(again, "b").phase == "aborted"


def test_a_checkpoint_cannot_begin_behind_a_newer_one(bench: Bench) -> None:
    """Its cut is gone; and one that was committed, deleted and forgotten must not be begun again by a late question."""
    for step in (10, 20):
        for worker in "abc":
            ack(bench, worker, step=step)
        commit(bench, step)
    bench.apply(c.ForgetCheckpoints(steps=(10,)))
    bench.job.commits._parts_of.pop(10)
    with pytest.raises(CheckpointAbortedError, match="step 20 was committed before it began"):
        ack(bench, "a", step=10)
    assert bench.job.commits.pending == {}


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
    again.apply(c.AdoptCheckpoints(checkpoints=((10, 0, "m", "[]"), (20, 0, "m", "[]"))))
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
    assert confirm(bench, "a", step=20, generation=first) == []
    assert restore_step(bench, "a") == 10
    # While it is saved again, only the manifest of that save counts.
    for worker in "abc":
        ack(bench, worker, step=20, part=f"again/{worker}")
    assert confirm(bench, "a", step=20, generation=first) == []
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
    listing = c.AdoptCheckpoints(checkpoints=tuple((step, 0, "m", "[]") for step in (10, 20, 30)))
    bench.apply(listing)
    assert sorted(bench.job.commits.committed) == [10, 20, 30], "a coordinator that knows nothing takes all"
    bench.apply(c.ForgetCheckpoints(steps=(10, 20)))
    bench.apply(listing)
    assert sorted(bench.job.commits.committed) == [30]
