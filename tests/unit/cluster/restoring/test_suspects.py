"""A restart goes on from the newest checkpoint that is not suspect, and the steps after it can be saved again."""

from __future__ import annotations

from typing import Any

import pytest

from strata.cluster import commands as c
from strata.cluster import events as e
from strata.cluster.commits import Commits
from strata.cluster.values import CommitRecord, Divergence
from strata.errors import CommitRefusedError, LastCheckpointError
from tests.unit.cluster.commit_steps import confirm, report
from tests.unit.cluster.conftest import Bench

SUSPECT = Divergence((2,), "model.w", 1, suspect=True)
REPAIRED = Divergence((2,), "model.w", 1)


@pytest.fixture
def bench() -> Bench:
    bench = Bench()
    bench.join("a", "b", "c")
    return bench


def commit(bench: Bench, step: int, diverged: Divergence | None = None, path: str = "") -> list[e.Effect]:
    for worker in "abc":
        report(bench, worker, step, f"{path}step_{step}/{worker}")
    return confirm(bench, "a", step, diverged=diverged)


def restore_step(bench: Bench, worker: str = "a", **fields: Any) -> int | None:
    checkpoint = bench.say(c.AskRestorePoint, worker, **fields)[0].checkpoint
    return None if checkpoint is None else int(checkpoint.step)


def begin_anew(bench: Bench) -> None:
    """Have a worker fail and come back, so that all restore again."""
    bench.apply(c.FailWorkers(workers=(("c", "1"),), reason="killed"))
    bench.join("c", incarnation="2")


def events(bench: Bench, kind: str) -> list[str]:
    return [event.reason for event in bench.cluster.events.since(0)[1] if event.kind == kind]


def test_a_restart_passes_over_suspect_checkpoints_and_saves_their_steps_again(bench: Bench) -> None:
    commit(bench, 10)
    commit(bench, 20, REPAIRED)
    for step in (30, 40):
        commit(bench, step, SUSPECT)
    old = bench.generation
    bench.apply(c.FailWorkers(workers=(("c", "1"),), reason="killed"))
    assert restore_step(bench) == restore_step(bench, "b") == 20
    assert [text.split()[1] for text in events(bench, "checkpoint passed over")] == ["30", "40"]
    # A late confirmation of what was passed over is refused, and a listing changes nothing, also after a restart.
    with pytest.raises(CommitRefusedError, match="it was rejected: it is suspect"):
        confirm(bench, "a", 40, generation=old, diverged=SUSPECT)
    again = bench.restarted()
    again.apply(c.AdoptCheckpoints(checkpoints=(CommitRecord(40, 0, "m", "[]", SUSPECT),)))
    assert restore_step(again) == 20
    for worker in "ab":
        report(again, worker, 25)
        report(again, worker, 30, f"again/{worker}")
    assert [type(effect) for effect in confirm(again, "a", 25)] == [e.CheckpointCommitted]
    assert [type(effect) for effect in confirm(again, "a", 30)] == [e.CheckpointCommitted]
    assert sorted(again.job.commits.committed) == [10, 20, 25, 30]


def test_a_suspect_checkpoint_is_an_event(bench: Bench) -> None:
    commit(bench, 10, SUSPECT)
    commit(bench, 20, REPAIRED)
    assert len(events(bench, "replicas diverged")) == 2
    (suspect,) = events(bench, "checkpoint suspect")
    assert suspect.startswith("step 10: a restart goes on from an older one")


def test_if_all_checkpoints_are_suspect_the_newest_is_restored_and_an_event_says_so(bench: Bench) -> None:
    for step in (10, 20):
        commit(bench, step, SUSPECT)
    bench.apply(c.FailWorkers(workers=(("c", "1"),), reason="killed"))
    assert restore_step(bench) == 20
    assert events(bench, "suspect checkpoint restored") == ["step 20, because there is no other one"]
    assert events(bench, "checkpoint passed over") == []


def test_the_first_worker_to_ask_may_allow_a_suspect_checkpoint(bench: Bench) -> None:
    commit(bench, 10)
    commit(bench, 20, SUSPECT)
    bench.apply(c.FailWorkers(workers=(("c", "1"),), reason="killed"))
    assert restore_step(bench, "b", allow_suspect=True) == 20
    assert restore_step(bench, "a") == 20
    assert events(bench, "suspect checkpoint restored") == ["step 20, because a worker allowed it"]


def test_suspect_checkpoints_come_back_if_the_last_other_one_is_damaged(bench: Bench) -> None:
    commit(bench, 10)
    for step in (20, 30):
        commit(bench, step, SUSPECT)
    bench.apply(c.FailWorkers(workers=(("c", "1"),), reason="killed"))
    assert restore_step(bench) == 10
    again = bench.restarted()
    again.say(c.RejectCheckpoint, "a", step=10, reason="a byte flipped")
    assert restore_step(again) == 30
    again.say(c.RejectCheckpoint, "a", step=30, reason="a byte flipped")
    assert restore_step(again) == 20
    with pytest.raises(LastCheckpointError):
        again.say(c.RejectCheckpoint, "a", step=20, reason="a byte flipped")


@pytest.mark.parametrize(
    "gone",
    [
        c.ForgetCheckpoints(steps=(20,)),
        c.ForgetCheckpoints(steps=(20,), even_newest=True),
        c.RewindJob(number=1, to_step=10, reason="an operator rewound it"),
    ],
    ids=["deleted", "removed by an operator", "rewound"],
)
def test_a_suspect_checkpoint_that_is_gone_from_storage_does_not_come_back(gone: c.JobCommand, bench: Bench) -> None:
    commit(bench, 10)
    commit(bench, 20, SUSPECT)
    bench.apply(c.FailWorkers(workers=(("c", "1"),), reason="killed"))
    assert restore_step(bench) == 10
    bench.apply(gone)
    assert restore_step(bench) == 10
    with pytest.raises(LastCheckpointError):
        bench.say(c.RejectCheckpoint, "a", step=10, reason="a byte flipped")


def test_a_record_of_an_older_coordinator_is_read(bench: Bench) -> None:
    commit(bench, 10)
    record = bench.job.commits.record()
    record["committed"].append([20, 0, "m", "[]", [[1], "w", 1]])
    record["rejected"].append([30, "a byte flipped", 2])
    commits = Commits()
    commits.restore(record)
    assert commits.committed[20].diverged == Divergence((1,), "w", 1, suspect=False)
    assert commits.rejected[30].suspect is None
