"""A checkpoint is committed when its manifest is in storage, is never half announced, and outlives its writers."""

from __future__ import annotations

import json

import pytest

from strata.cluster import Cluster
from strata.cluster import commands as c
from strata.cluster import events as e
from strata.cluster.commits import CommitProgress
from strata.cluster.values import CommitRecord, Divergence
from strata.errors import (
    CheckpointAbortedError,
    CommitPendingError,
    OutOfOrderError,
    StaleGenerationError,
    StaleIncarnationError,
    StepTakenError,
    UnknownWorkerError,
)
from tests.unit.cluster.commit_steps import commit, confirm, report
from tests.unit.cluster.conftest import LIMITS, Bench


@pytest.fixture
def bench() -> Bench:
    bench = Bench()
    bench.join("a", "b", "c")
    return bench


def test_with_the_last_part_the_lowest_rank_is_asked_for_the_manifest(bench: Bench) -> None:
    assert report(bench, "c") == report(bench, "a") == []
    (wanted,) = report(bench, "b")
    assert isinstance(wanted, e.ManifestWanted)
    assert wanted.to == ("a",)
    assert [(part.path, part.digest) for part in wanted.reports] == [(f"step_10/{name}", name) for name in "abc"]


def test_a_commit_is_announced_to_everyone_once(bench: Bench) -> None:
    for worker in "abc":
        report(bench, worker)
    (announced,) = confirm(bench, "a")
    assert isinstance(announced, e.CheckpointCommitted)
    assert (announced.step, announced.to) == (10, ("a", "b", "c"))
    assert confirm(bench, "b") == []
    latest = bench.job.commits.latest()
    assert latest is not None
    assert latest.step == 10


def test_replicas_that_diverged_are_an_event_and_stay_in_the_index_through_a_restart(bench: Bench) -> None:
    for worker in "abc":
        report(bench, worker)
    diverged = Divergence((1, 2), "model.w", 3)
    confirm(bench, "a", diverged=diverged)
    last = bench.cluster.events.since(0)[1][-1]
    assert (last.kind, last.reason) == (
        "replicas diverged",
        "step 10: ranks 1, 2 held other values of model.w and 2 more",
    )
    commit(bench, 20)
    again = Cluster(LIMITS)
    again.restore(bench.cluster.snapshot())
    committed = again.job("default").commits.committed
    assert [committed[step].diverged for step in (10, 20)] == [diverged, None]


def test_an_ack_that_is_sent_twice_counts_once_even_after_the_commit(bench: Bench) -> None:
    report(bench, "a")
    assert report(bench, "a") == []
    report(bench, "b")
    report(bench, "c")
    confirm(bench, "a")
    assert report(bench, "c") == []
    assert bench.job.commits.pending == {}


def test_another_save_of_a_committed_step_is_refused(bench: Bench) -> None:
    commit(bench, 10)
    with pytest.raises(StepTakenError, match="step 10 of job 'default' already has a checkpoint"):
        report(bench, "a", path="step_10/other")


def test_if_the_asked_worker_dies_the_next_one_is_asked(bench: Bench) -> None:
    for worker in "abc":
        report(bench, worker)
    bench.apply(c.FailWorkers(workers=(("a", "1"),), reason="killed"))
    wanted = [effect for effect in bench.pass_time(0.1) if isinstance(effect, e.ManifestWanted)]
    assert len(wanted) == 1
    assert wanted[0].to[0] in {"b", "c"}
    assert wanted[0].reports[0].path == "step_10/a"


def test_a_worker_that_is_slow_with_the_manifest_is_followed_by_the_next(bench: Bench) -> None:
    for worker in "abc":
        report(bench, worker)
    asked = []
    for _ in range(4):
        bench.beat("a"), bench.beat("b"), bench.beat("c")
        for _ in range(4):
            bench.pass_time(8), bench.beat("a"), bench.beat("b"), bench.beat("c")
        asked += [p.asked for p in bench.job.commits.pending.values()]
    assert asked == [2, 3, 4, 5]


def test_a_worker_that_dies_before_its_part_ends_the_checkpoint(bench: Bench) -> None:
    report(bench, "a")
    effects = bench.apply(c.FailWorkers(workers=(("c", "1"),), reason="killed"))[1]
    (aborted,) = [effect for effect in effects if isinstance(effect, e.CheckpointAborted)]
    assert (aborted.step, aborted.to) == (10, ("a", "b"))
    with pytest.raises(StaleGenerationError):
        report(bench, "b", generation=3)
    assert bench.job.commits.pending == {}


def test_parts_that_do_not_come_in_time_end_the_checkpoint_and_are_named(bench: Bench) -> None:
    report(bench, "a")
    effects: list[e.Effect] = []
    for _ in range(13):
        effects += bench.pass_time(8)
        for worker in "abc":
            bench.beat(worker)
    (aborted,) = effects
    assert isinstance(aborted, e.CheckpointAborted)
    assert aborted.reason == "no part of b, c in 100 s"


def test_a_manifest_that_turns_up_after_all_is_the_truth(bench: Bench) -> None:
    bench.apply(c.AdoptCheckpoints(checkpoints=(CommitRecord(30, 1, "step_30/metadata.json", "[]"),)))
    latest = bench.job.commits.latest()
    assert latest is not None
    assert (latest.step, latest.epoch) == (30, 1)


def test_the_newest_checkpoint_is_never_forgotten(bench: Bench) -> None:
    for step in (10, 20, 30):
        commit(bench, step)
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
        report(bench, worker)
    report(bench, "a", step=20)
    again = bench.restarted()
    (wanted,) = again.pass_time(0.1)
    assert isinstance(wanted, e.ManifestWanted)
    assert wanted.step == 10
    report(again, "b", step=20)
    (second,) = report(again, "c", step=20)
    assert isinstance(second, e.ManifestWanted)


def test_the_cut_holds_what_was_seen_up_to_the_step_and_nothing_after(bench: Bench) -> None:
    bench.apply(c.RegisterDataset(dataset_id="d", total_samples=30, shard_size=10))
    where = {"dataset_id": "d", "epoch": 0}
    bench.say(c.ReportProgress, "a", sequence=1, step=10, spans=((0, 0, 5),), **where)
    bench.say(c.ReportProgress, "b", sequence=1, step=10, spans=((1, 0, 5),), **where)
    report(bench, "a")
    bench.say(c.ReportProgress, "a", sequence=2, step=11, spans=((0, 5, 8),), **where)
    report(bench, "b")
    (wanted,) = report(bench, "c")
    assert isinstance(wanted, e.ManifestWanted)
    (cursor,) = json.loads(wanted.cursors)
    dataset = cursor.pop("dataset")
    assert cursor == {"order": "sticky", "epoch": 0, "consumed": [0, 5, 5, 5]}
    assert (dataset["dataset_id"], dataset["total_samples"], dataset["data_order"]) == ("d", 30, "sticky")


def test_a_part_of_a_later_step_gives_up_the_earlier_step_that_waits_for_that_worker(bench: Bench) -> None:
    """Saves come in order, so what the earlier step waits for never comes; nobody is left to wait for it."""
    report(bench, "a", step=10)
    (aborted,) = report(bench, "b", step=20)
    assert isinstance(aborted, e.CheckpointAborted)
    assert (aborted.step, aborted.reason) == (10, "b has saved step 20 without it")
    assert progress(bench, "a").phase == "aborted"
    assert sorted(bench.job.commits.pending) == [20]


def test_a_part_of_a_later_step_leaves_an_earlier_one_alone_that_has_this_worker_s_part(bench: Bench) -> None:
    report(bench, "a", step=10)
    assert report(bench, "a", step=20) == []
    assert sorted(bench.job.commits.pending) == [10, 20]


def test_a_step_that_a_worker_has_no_part_of_is_given_up_before_and_after_the_others_report_theirs(
    bench: Bench,
) -> None:
    report(bench, "a", step=10)
    (aborted,) = bench.say(c.GiveUpCheckpoint, "b", step=10, generation=bench.generation, reason="disk full")[1]
    assert aborted.reason == "b: disk full"
    bench.say(c.GiveUpCheckpoint, "b", step=20, generation=bench.generation, reason="disk full")
    for again in (bench, bench.restarted()):
        with pytest.raises(CheckpointAbortedError, match="b: disk full"):
            report(again, "a", step=20)


def test_a_step_that_begins_after_a_worker_has_saved_a_later_one_is_given_up_at_once(bench: Bench) -> None:
    """The worker that left the step out was faster than those that did not."""
    report(bench, "b", step=20)
    for again in (bench, bench.restarted()):
        with pytest.raises(CheckpointAbortedError, match="b has saved step 20 without it"):
            report(again, "a", step=10)
        assert sorted(again.job.commits.pending) == [20]


def test_a_step_that_was_given_up_while_it_collected_does_not_begin_again(bench: Bench) -> None:
    report(bench, "a", step=10)
    bench.say(c.GiveUpCheckpoint, "b", step=10, generation=bench.generation, reason="disk full")
    with pytest.raises(CheckpointAbortedError, match="disk full"):
        report(bench, "c", step=10)
    assert bench.job.commits.pending == {}


def test_a_part_without_a_progress_report_that_was_sent_before_it_waits(bench: Bench) -> None:
    """The report was refused for a while: a cut without it would be torn."""
    bench.apply(c.RegisterDataset(dataset_id="d", total_samples=30, shard_size=10))
    with pytest.raises(OutOfOrderError) as caught:
        report(bench, "a", progress=1)
    assert (caught.value.expected, caught.value.sent) == (1, 2), "the report that is missing, and what would follow it"
    bench.say(c.ReportProgress, "a", sequence=1, step=10, dataset_id="d", epoch=0, spans=((0, 0, 5),))
    report(bench, "a", progress=1)


def test_only_a_member_confirms_or_gives_up(bench: Bench) -> None:
    for worker in "abc":
        report(bench, worker)
    with pytest.raises(UnknownWorkerError):
        confirm(bench, "stranger")
    with pytest.raises(StaleIncarnationError):
        bench.say(c.GiveUpCheckpoint, "a", "0", step=10, generation=bench.generation, reason="no")
    assert bench.job.commits.pending[10].reports


def test_a_restore_waits_for_a_checkpoint_whose_parts_are_all_durable(bench: Bench) -> None:
    for worker in "abc":
        report(bench, worker)
    saved_in = bench.generation
    bench.join("c", incarnation="2")
    with pytest.raises(CommitPendingError, match="step 10 of job 'default' is about to be committed"):
        bench.say(c.AskRestorePoint, "a")
    confirm(bench, "b", generation=saved_in)
    assert bench.say(c.AskRestorePoint, "a")[0].checkpoint.step == 10


def progress(bench: Bench, worker: str, step: int = 10, path: str | None = None) -> CommitProgress:
    reply: CommitProgress = bench.say(c.AskCommit, worker, step=step, path=path or f"step_{step}/{worker}")[0]
    return reply


def test_a_worker_that_missed_the_announcement_can_ask(bench: Bench) -> None:
    assert progress(bench, "a").phase == "unknown"
    report(bench, "a")
    assert progress(bench, "a") == CommitProgress(phase="collecting", missing=("b", "c"))
    report(bench, "b")
    report(bench, "c")
    assert progress(bench, "a") == CommitProgress(phase="writing", missing=("a",))
    confirm(bench, "a")
    assert progress(bench, "a").phase == "committed"
    assert progress(bench, "a", path="step_10/other").phase == "unknown"
    assert progress(bench.restarted(), "a").phase == "committed"


def test_a_worker_that_missed_the_abort_learns_who_is_to_blame(bench: Bench) -> None:
    report(bench, "a")
    bench.apply(c.FailWorkers(workers=(("c", "1"),), reason="lease ended"))
    asked = progress(bench, "a")
    assert (asked.phase, asked.reason) == ("aborted", "c failed: lease ended")
    with pytest.raises(CheckpointAbortedError, match="c failed: lease ended"):
        report(bench, "a")
    assert bench.job.commits.pending == {}


def test_a_part_that_counts_may_be_acknowledged_again_in_any_generation(bench: Bench) -> None:
    for worker in "abc":
        report(bench, worker)
    old = bench.job.membership.generation
    bench.join("d")
    assert report(bench, "b", generation=old) == []
    confirm(bench, "a", generation=old)
    assert report(bench, "b", generation=old) == []


def test_a_worker_that_was_asked_and_comes_back_is_asked_again(bench: Bench) -> None:
    for worker in "abc":
        report(bench, worker)
    (wanted,) = bench.say(c.RegisterWorker, "a")[1]
    assert isinstance(wanted, e.ManifestWanted)
    assert wanted.to == ("a",)
    assert bench.say(c.RegisterWorker, "b")[1] == []


def test_a_checkpoint_that_nobody_can_commit_is_given_up_and_stays_so_after_a_restart(bench: Bench) -> None:
    for worker in "abc":
        report(bench, worker)
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
            report(bench, worker, step=step)
        commit(bench, step)
    bench.apply(c.ForgetCheckpoints(steps=(10,)))
    bench.job.commits._reports_of.pop(10)
    with pytest.raises(CheckpointAbortedError, match="step 20 was committed before it began"):
        report(bench, "a", step=10)
    assert bench.job.commits.pending == {}


def test_a_step_whose_manifest_is_being_written_takes_no_part_of_a_later_generation(bench: Bench) -> None:
    for worker in "abc":
        report(bench, worker)
    bench.join("d")
    with pytest.raises(StepTakenError):
        report(bench, "a", path="step_10/again")
    assert bench.job.commits.pending[10].reports["a"].path == "step_10/a"


def test_a_manifest_waits_for_a_worker_when_all_are_gone(bench: Bench) -> None:
    for worker in "abc":
        report(bench, worker)
    bench.apply(c.FailWorkers(workers=(("a", "1"), ("b", "1"), ("c", "1")), reason="killed"))
    assert bench.apply(c.AskForManifest(step=10))[1] == []
    bench.join("d")
    wanted = [effect for effect in bench.pass_time(0.1) if isinstance(effect, e.ManifestWanted)]
    assert [effect.to for effect in wanted] == [("d",)]


def test_only_the_newest_commits_remember_their_parts(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("strata.cluster.commits.MAX_REMEMBERED", 2)
    for step in (10, 20, 30):
        commit(bench, step)
    phases = [bench.job.commits.progress(step, f"step_{step}/a").phase for step in (10, 20, 30)]
    assert phases == ["unknown", "committed", "committed"]


def test_only_the_newest_aborts_are_remembered(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("strata.cluster.commits.MAX_REMEMBERED", 2)
    saved = [("a", 10), ("b", 20), ("a", 30), ("b", 40)]
    for worker, step in saved:
        # Each ends the one before it, which this worker has no part of.
        report(bench, worker, step)
    phases = [progress(bench, worker, step).phase for worker, step in saved]
    assert phases == ["unknown", "aborted", "aborted", "collecting"]


def test_time_in_which_the_coordinator_was_away_ends_no_commit_and_asks_at_once_for_what_is_missing(
    bench: Bench,
) -> None:
    for worker in bench.job.membership.ids():
        report(bench, worker, 10)
    report(bench, bench.job.membership.ids()[0], 20)
    bench.now_s += LIMITS.collect_s
    again = bench.restarted()
    effects = again.pass_time(2.0)
    assert [effect.step for effect in effects if isinstance(effect, e.ManifestWanted)] == [10]
    assert 20 in again.job.commits.pending


def test_a_worker_has_its_time_to_write_a_manifest_also_if_the_coordinator_was_stopped(bench: Bench) -> None:
    for worker in bench.job.membership.ids():
        report(bench, worker, 10)
    bench.pass_time(1.0)
    bench.now_s += LIMITS.manifest_s
    bench.cluster.due(bench.now_s)
    assert [effect for effect in bench.pass_time(2.0) if isinstance(effect, e.ManifestWanted)] == []
