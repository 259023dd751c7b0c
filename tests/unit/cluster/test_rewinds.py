"""A job that was rewound goes on from the step that it was rewound to, whoever trained or saved at that moment."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from strata.cluster import commands as c
from strata.cluster import events as e
from strata.cluster.replies import RestorePoint
from strata.cluster.values import CommitRecord, PartReport
from strata.errors import CommitRefusedError
from strata.sharding import DataOrder
from tests.unit.cluster.conftest import Bench

REWIND = c.RewindJob(number=1, to_step=10, reason="rewound from step 30 to step 10")


@pytest.fixture
def bench() -> Bench:
    bench = Bench()
    order = {"shuffle": True, "seed": 3, "data_order": DataOrder.GLOBAL}
    bench.apply(c.RegisterDataset(dataset_id="d", total_samples=100, shard_size=10, **order))
    bench.join("a", "b")
    return bench


def see(bench: Bench, step: int, start: int, stop: int, **fields: Any) -> None:
    """Have worker a report positions; its reports are numbered by their steps."""
    spans = ((0, start, stop),)
    bench.say(c.ReportProgress, "a", sequence=step, dataset_id="d", epoch=0, step=step, spans=spans, **fields)


def save(bench: Bench, step: int) -> str:
    """Report the parts of all workers; return the cursors of the manifest."""
    effects: list[e.Effect] = []
    for worker in "ab":
        report = PartReport(f"{worker}/{step}/{bench.generation}", 1, "00")
        effects += bench.say(c.ReportPart, worker, step=step, epoch=0, report=report)[1]
    (wanted,) = effects
    assert isinstance(wanted, e.ManifestWanted)
    return wanted.cursors


def confirm(bench: Bench, step: int, cursors: str, generation: int | None = None) -> None:
    generation = bench.generation if generation is None else generation
    bench.say(c.ConfirmCommit, "a", step=step, epoch=0, generation=generation, manifest=f"m{step}", cursors=cursors)


def restore_step(bench: Bench) -> int | None:
    reply = bench.say(c.AskRestorePoint, "a")[0]
    assert isinstance(reply, RestorePoint)
    return None if reply.checkpoint is None else reply.checkpoint.step


def test_what_is_newer_is_not_restored_not_even_after_a_restart_or_from_a_listing(bench: Bench) -> None:
    for step in (10, 20, 30):
        confirm(bench, step, save(bench, step))
    bench.say(c.Goodbye, "a")
    bench.say(c.Goodbye, "b")
    bench.apply(REWIND)
    again = bench.restarted()
    again.join("a", "b", incarnation="2")
    again.apply(c.AdoptCheckpoints(checkpoints=tuple(CommitRecord(step, 0, "m", "[]") for step in (10, 20, 30))))
    assert isinstance(reply := again.say(c.AskRestorePoint, "a", "2")[0], RestorePoint)
    assert reply.checkpoint is not None
    assert reply.checkpoint.step == 10
    kinds = [(event.kind, event.reason) for event in bench.cluster.events.since(0)[1]]
    assert ("rewound", REWIND.reason) in kinds


def test_whoever_trains_restores_again_and_what_was_being_saved_is_given_up(bench: Bench) -> None:
    confirm(bench, 10, save(bench, 10))
    assert restore_step(bench) == 10
    confirm(bench, 20, save(bench, 20))
    cursors = save(bench, 30)
    before = bench.generation
    _, effects = bench.apply(REWIND)
    assert [type(effect) for effect in effects] == [e.CheckpointAborted, e.GenerationChanged]
    # Its manifest was written all the same, and is confirmed late.
    with pytest.raises(CommitRefusedError, match="it was rejected: the job was rewound"):
        confirm(bench, 30, cursors, generation=before)
    assert restore_step(bench) == 10
    for step in (20, 30):
        confirm(bench, step, save(bench, step))
    assert sorted(bench.job.commits.committed) == [10, 20, 30], "the same steps are saved anew"


def test_the_same_rewind_told_by_several_counts_once(bench: Bench) -> None:
    confirm(bench, 10, save(bench, 10))
    bench.apply(REWIND)
    assert restore_step(bench) == 10
    confirm(bench, 20, save(bench, 20))
    assert bench.apply(REWIND)[1] == []
    assert bench.restarted().apply(REWIND)[1] == []
    assert sorted(bench.job.commits.committed) == [10, 20]


def test_workers_that_tell_of_a_rewind_before_they_restore_go_on_in_their_generation(bench: Bench) -> None:
    before = bench.generation
    bench.apply(REWIND)
    bench.apply(c.AdoptCheckpoints(checkpoints=(CommitRecord(10, 0, "m", "[]"),)))
    assert bench.generation == before
    assert restore_step(bench) == 10
    confirm(bench, 20, save(bench, 20))
    assert sorted(bench.job.commits.committed) == [10, 20]


def test_what_is_passed_over_is_neither_missing_nor_seen_and_goes_with_the_checkpoint(bench: Bench) -> None:
    see(bench, 1, 0, 40)
    see(bench, 2, 40, 60, is_passed_over=True)
    see(bench, 3, 60, 90)
    audit = bench.restarted().job.ledger.audit("d", 0)
    assert (audit.missing.count, audit.repeated.count, audit.passed_over.count) == (10, 0, 20)
    positions = bench.job.ledger.datasets["d"].order(epoch=0).samples_at
    named = sorted(positions(np.arange(40, 60)).tolist())
    assert [sample for start, stop in audit.passed_over for sample in range(start, stop)] == named
    # A coordinator that lost its journal learns it from the manifest; one before the skip knows nothing of it.
    for step, expected in ((1, (60, 0)), (3, (10, 20))):
        fresh = Bench()
        fresh.join("a", "b")
        cut = bench.job.ledger.cut(step)
        fresh.apply(c.AdoptCheckpoints(checkpoints=(CommitRecord(step, 0, "m", cut),)))
        assert restore_step(fresh) == step
        found = fresh.job.ledger.audit("d", 0)
        assert (found.missing.count, found.passed_over.count) == expected
