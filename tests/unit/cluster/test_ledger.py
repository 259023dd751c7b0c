"""The ledger is what the model has seen: reported once, cut exactly, rolled back with the model, and audited."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from strata.cluster import Cluster
from strata.cluster import commands as c
from strata.cluster.ledger import ledger
from strata.cluster.replies import ShardLease
from strata.cluster.values import PartReport
from strata.errors import (
    DamagedRecordError,
    DatasetConflictError,
    JournalVersionError,
    OutOfOrderError,
    QuotaExceededError,
    RestoreTooLateError,
    UnknownDatasetError,
)
from strata.sharding import RangeSet
from tests.unit.cluster.commit_steps import commit, confirm
from tests.unit.cluster.conftest import Bench


@pytest.fixture
def bench() -> Bench:
    bench = Bench()
    bench.apply(c.RegisterDataset(dataset_id="d", total_samples=95, shard_size=10, shuffle=True, seed=3))
    bench.join("a", "b", "c")
    return bench


def lease(bench: Bench, worker: str) -> np.ndarray:
    reply = bench.say(c.LeaseShards, worker, dataset_id="d", epoch=0)[0]
    assert isinstance(reply, ShardLease)
    return reply.spans


def report(bench: Bench, worker: str, sequence: int, spans: Any, step: int = 1) -> None:
    rows = tuple(tuple(row) for row in np.asarray(spans).tolist())
    bench.say(c.ReportProgress, worker, sequence=sequence, dataset_id="d", epoch=0, step=step, spans=rows)


def consume_all(bench: Bench, sequence: int = 1) -> None:
    for worker in bench.job.membership.ids():
        report(bench, worker, sequence, lease(bench, worker))


def samples_in(ranges: RangeSet) -> list[int]:
    return [sample for start, stop in ranges for sample in range(start, stop)]


def test_leases_are_disjoint_and_together_all_samples(bench: Bench) -> None:
    leases = [lease(bench, worker) for worker in "abc"]
    shards = np.concatenate([spans[:, 0] for spans in leases])
    assert sorted(shards.tolist()) == list(range(10))
    assert sum((spans[:, 2] - spans[:, 1]).sum() for spans in leases) == 95


def test_a_lease_is_the_same_whenever_it_is_asked_for_in_a_generation(bench: Bench) -> None:
    first = lease(bench, "a")
    report(bench, "a", 1, first[:1])
    assert np.array_equal(lease(bench, "a"), first)
    assert np.array_equal(lease(bench.restarted(), "a"), first)


def test_an_epoch_that_everyone_finished_passes_the_audit(bench: Bench) -> None:
    consume_all(bench)
    assert bench.job.ledger.audit("d", 0).is_exactly_once


def test_the_audit_lists_exactly_what_is_missing_and_what_is_repeated(bench: Bench) -> None:
    order = bench.job.ledger.datasets["d"].order(epoch=0)
    report(bench, "a", 1, [(4, 0, 10)])
    report(bench, "b", 1, [(4, 8, 10), (9, 0, 5)])
    audit = bench.job.ledger.audit("d", 0)
    assert samples_in(audit.repeated.named) == sorted(order.samples_of(4, 8, 10).tolist())
    seen = set(range(40, 50)) | set(range(90, 95))
    assert samples_in(audit.missing.named) == sorted(set(range(95)) - seen)


def test_a_report_that_is_sent_twice_counts_once_and_a_gap_is_refused(bench: Bench) -> None:
    report(bench, "a", 1, [(4, 0, 5)])
    report(bench, "a", 1, [(4, 0, 5)])
    assert bench.job.ledger.audit("d", 0).repeated.count == 0
    with pytest.raises(OutOfOrderError, match="sent report 3, but report 2"):
        report(bench, "a", 3, [(4, 5, 6)])
    again = bench.restarted()
    report(again, "a", 1, [(4, 0, 5)])
    assert again.job.ledger.audit("d", 0).repeated.count == 0


def test_what_is_left_is_dealt_anew_in_a_new_generation(bench: Bench) -> None:
    first = lease(bench, "a")
    report(bench, "a", 1, first[:2])
    bench.apply(c.FailWorkers(workers=(("c", "1"),), reason="killed"))
    leases = [lease(bench, worker) for worker in "ab"]
    assert sum((spans[:, 2] - spans[:, 1]).sum() for spans in leases) == 95 - (first[:2, 2] - first[:2, 1]).sum()


def test_a_restore_voids_what_was_reported_after_the_checkpoint(bench: Bench) -> None:
    first = lease(bench, "a")
    report(bench, "a", 1, first[:1], step=1)
    for worker in "abc":
        bench.say(c.ReportPart, worker, step=1, epoch=0, report=PartReport(worker, 0, ""))
    confirm(bench, "a", step=1)
    report(bench, "a", 2, first[1:2], step=2)
    bench.join("c", incarnation="2")
    point = bench.say(c.AskRestorePoint, "a")[0]
    assert point.checkpoint.step == 1
    assert bench.job.ledger.audit("d", 0).missing.count == 95 - (first[0, 2] - first[0, 1])


def test_without_a_checkpoint_a_restore_begins_at_the_beginning(bench: Bench) -> None:
    report(bench, "a", 1, lease(bench, "a"))
    bench.join("c", incarnation="2")
    assert bench.say(c.AskRestorePoint, "b")[0].checkpoint is None
    assert bench.job.ledger.audit("d", 0).missing.count == 95


def test_all_workers_of_a_generation_get_the_same_restore_point(bench: Bench) -> None:
    assert bench.say(c.AskRestorePoint, "a")[0].checkpoint is None
    commit(bench, 5)
    assert bench.say(c.AskRestorePoint, "b")[0].checkpoint is None


def test_a_restore_after_data_was_dealt_is_too_late(bench: Bench) -> None:
    lease(bench, "a")
    with pytest.raises(RestoreTooLateError, match="after data was handed out"):
        bench.say(c.AskRestorePoint, "b")


@pytest.mark.parametrize("spans", [((10, 0, 1),), ((0, 0, 11),), ((9, 0, 6),), ((0, 5, 4),), ((-1, 0, 1),)])
def test_spans_outside_the_dataset_are_refused_and_change_nothing(bench: Bench, spans: Any) -> None:
    before = bench.cluster.snapshot()
    with pytest.raises(ValueError, match=r"of shard|of a dataset"):
        report(bench, "a", 1, spans)
    report(bench, "a", 1, [(0, 0, 1)])
    assert bench.cluster.snapshot() != before


def test_datasets_are_registered_once_and_others_are_unknown(bench: Bench) -> None:
    bench.apply(c.RegisterDataset(dataset_id="d", total_samples=95, shard_size=10, shuffle=True, seed=3))
    with pytest.raises(DatasetConflictError):
        bench.apply(c.RegisterDataset(dataset_id="d", total_samples=96, shard_size=10))
    with pytest.raises(UnknownDatasetError):
        bench.say(c.LeaseShards, "a", dataset_id="x", epoch=0)


def test_a_dataset_of_too_many_shards_is_refused_by_itself_and_in_a_checkpoint(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    report(bench, "a", 1, [(4, 0, 5)])
    cursors = bench.job.ledger.cut(1)
    monkeypatch.setattr(ledger, "MAX_SHARDS_PER_DATASET", 9)
    with pytest.raises(QuotaExceededError, match="9 shards in one dataset"):
        bench.apply(c.RegisterDataset(dataset_id="e", total_samples=91, shard_size=10))
    assert set(bench.job.ledger.datasets) == {"d"}
    with pytest.raises(QuotaExceededError, match="9 shards in one dataset"):
        bench.job.ledger.roll_back(cursors)
    bench.apply(c.RegisterDataset(dataset_id="e", total_samples=90, shard_size=10))


def test_a_snapshot_brings_everything_back_to_the_byte(bench: Bench) -> None:
    consume_all(bench)
    for worker in "ab":
        bench.say(c.ReportPart, worker, step=1, epoch=0, report=PartReport(worker, 0, ""))
    again = Cluster()
    again.restore(bench.cluster.snapshot())
    assert again.snapshot() == bench.cluster.snapshot()


def test_a_snapshot_of_another_version_is_refused() -> None:
    with pytest.raises(DamagedRecordError, match="its version is 1, and this Strata reads 2 to 4"):
        Cluster().restore(b'{"version": 1}')
    with pytest.raises(JournalVersionError, match=r"the journal j was .* a snapshot of version 9, .* versions 2 to 4"):
        Cluster().restore(b'{"version": 9}', where="j")


def test_samples_that_could_not_be_read_are_remembered_apart(bench: Bench) -> None:
    skip = {"dataset_id": "d", "start": 20, "stop": 25, "reason": "a.parquet is cut off"}
    consume_all(bench)
    for _ in range(2):
        bench.say(c.SkipSamples, "a", **skip)
    audit = bench.restarted().job.ledger.audit("d", 0)
    assert (samples_in(audit.skipped.named), audit.is_exactly_once) == ([20, 21, 22, 23, 24], True)
    kinds = [event.kind for event in bench.cluster.events.since(0)[1]]
    assert kinds.count("samples skipped") == 1
    with pytest.raises(ValueError, match="samples 90 to 96 of a dataset that has 95"):
        bench.say(c.SkipSamples, "a", **{**skip, "start": 90, "stop": 96})


def test_an_audit_of_an_epoch_that_nobody_began_changes_nothing(bench: Bench) -> None:
    before = bench.job.ledger.cut(1)
    assert bench.job.ledger.audit("d", 7).missing.named == RangeSet([0], [95])
    assert bench.job.ledger.cut(1) == before


def test_progress_and_skips_of_a_dataset_that_nobody_registered_are_refused(bench: Bench) -> None:
    before = bench.cluster.snapshot()
    with pytest.raises(UnknownDatasetError, match="dataset 'x' is not registered"):
        bench.say(c.ReportProgress, "a", sequence=1, dataset_id="x", epoch=0, step=1, spans=((0, 0, 1),))
    with pytest.raises(UnknownDatasetError, match="dataset 'x' is not registered"):
        bench.say(c.SkipSamples, "a", dataset_id="x", start=0, stop=1, reason="cannot be read")
    assert bench.cluster.snapshot() == before
