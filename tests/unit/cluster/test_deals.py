"""Each order deals in its own way: shards that stay, one sequence for all, or shards on demand."""

from __future__ import annotations

import json

import numpy as np
import pytest

from strata.cluster import commands as c
from strata.cluster.ledger import ledger
from strata.cluster.ledger.deals import Preparation
from strata.cluster.replies import ShardLease
from strata.cluster.values import CommitRecord
from strata.errors import DatasetConflictError, OutOfOrderError, SavedDatasetError
from strata.sharding import DataOrder
from tests.unit.cluster.conftest import Bench


def bench_with(data_order: DataOrder) -> Bench:
    bench = Bench()
    bench.apply(register(data_order))
    bench.join("a", "b", "c")
    return bench


def register(data_order: DataOrder, *, seed: int = 3) -> c.RegisterDataset:
    return c.RegisterDataset(
        dataset_id="d", total_samples=95, shard_size=10, shuffle=True, seed=seed, data_order=data_order
    )


def take(bench: Bench, worker: str, sequence: int = 1) -> list[list[int]]:
    reply = bench.say(c.LeaseShards, worker, dataset_id="d", epoch=0, sequence=sequence)[0]
    assert isinstance(reply, ShardLease)
    return reply.spans.tolist()


def report(bench: Bench, worker: str, spans: list[list[int]], *, sequence: int = 1, step: int = 1) -> None:
    rows = tuple((shard, start, stop) for shard, start, stop in spans)
    bench.say(c.ReportProgress, worker, sequence=sequence, dataset_id="d", epoch=0, step=step, spans=rows)


def test_every_worker_gets_the_whole_rest_of_the_one_sequence() -> None:
    bench = bench_with(DataOrder.GLOBAL)
    assert take(bench, "a") == take(bench, "b") == [[0, 0, 95]]
    assert take(bench, "a", sequence=2) == []


def test_the_cursor_of_the_one_sequence_is_one_number() -> None:
    bench = bench_with(DataOrder.GLOBAL)
    for turn, worker in enumerate("abc"):
        report(bench, worker, [[0, 10 * turn, 10 * turn + 10]])
    (cursor,) = json.loads(bench.job.ledger.cut(1))
    assert (cursor["order"], cursor["position"]) == ("global", 30)


@pytest.mark.parametrize("row", [(0, 90, 96), (1, 0, 5), (0, 7, 6)])
def test_progress_outside_of_the_one_sequence_is_refused(row: tuple[int, int, int]) -> None:
    bench = bench_with(DataOrder.GLOBAL)
    with pytest.raises(ValueError, match=r"of a dataset|of shard"):
        report(bench, "a", [list(row)])


def test_shards_on_demand_go_to_whoever_asks() -> None:
    bench = bench_with(DataOrder.DYNAMIC)
    fast = [take(bench, "a", sequence) for sequence in range(1, 9)]
    slow = [take(bench, "b")]
    rest = [take(bench, "c", sequence) for sequence in (1, 2)]
    shards = [span[0] for lease in fast + slow + rest for span in lease]
    assert sorted(shards) == list(range(10))
    assert rest[1] == take(bench, "a", 9) == []


def test_the_same_ticket_gives_the_same_shard_also_after_a_restart() -> None:
    bench = bench_with(DataOrder.DYNAMIC)
    first, second = take(bench, "a"), take(bench, "b")
    assert take(bench, "a") == first
    restarted = bench.restarted()
    assert take(restarted, "b") == second
    assert take(restarted, "a", 2) not in (first, second)


def test_a_lease_sequence_cannot_be_skipped() -> None:
    bench = bench_with(DataOrder.DYNAMIC)
    take(bench, "a")
    with pytest.raises(OutOfOrderError, match="sent sequence 3, but sequence 2"):
        take(bench, "a", 3)
    with pytest.raises(ValueError, match="use 1 or more"):
        take(bench, "a", 0)


def test_what_a_lost_worker_had_leased_is_leased_anew() -> None:
    bench = bench_with(DataOrder.DYNAMIC)
    lost = take(bench, "c")
    report(bench, "a", take(bench, "a"))
    bench.apply(c.Goodbye(worker_id="c", incarnation="1"))
    again = [take(bench, "b", sequence) for sequence in range(1, 10)]
    assert lost in again
    assert np.unique([span[0] for lease in again for span in lease]).size == 9


def test_a_snapshot_does_not_grow_with_the_shards_that_were_dealt() -> None:
    for data_order in DataOrder:
        bench = Bench()
        bench.apply(
            c.RegisterDataset(dataset_id="d", total_samples=100_000, shard_size=1, shuffle=True, data_order=data_order)
        )
        bench.join("a", "b")
        take(bench, "a")
        ledger = bench.job.ledger.record()
        assert len(json.dumps(ledger["deals"])) < 500


@pytest.fixture
def large(monkeypatch: pytest.MonkeyPatch) -> Bench:
    """A job with a dataset that counts as too large to be dealt between two heartbeats."""
    monkeypatch.setattr(ledger, "LARGE_SHARDS", 10)
    return bench_with(DataOrder.STICKY)


def test_what_was_worked_out_in_a_thread_is_dealt_and_not_worked_out_again(
    large: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    books, workers = large.job.ledger, large.job.membership.ids()
    preparation = books.preparation("d", 0, workers)
    assert preparation is not None
    books.take_over(preparation, workers, *preparation.run())
    assert books.preparation("d", 0, workers) is None
    assert books.preparation("d", None, workers) is None, "it says who owns which shard, too"
    expected = take(bench_with(DataOrder.STICKY), "a")
    monkeypatch.setattr(Preparation, "run", None)
    assert take(large, "a") == expected
    assert books.preparation("d", 0, workers) is None, "it is dealt"


def test_what_was_worked_out_before_something_changed_is_not_dealt(large: Bench) -> None:
    books, workers = large.job.ledger, large.job.membership.ids()
    preparation = books.preparation("d", 0, workers)
    assert preparation is not None
    outcome = preparation.run()
    report(large, "a", [[4, 0, 10]])
    books.take_over(preparation, workers, *outcome)
    assert books.preparation("d", 0, workers) is not None
    rows = [row for worker in workers for row in take(large, worker)]
    assert 4 not in [shard for shard, _, _ in rows], "the model has seen it meanwhile"


def test_what_was_worked_out_for_other_workers_is_not_dealt(large: Bench) -> None:
    books, before = large.job.ledger, large.job.membership.ids()
    preparation = books.preparation("d", 0, before)
    assert preparation is not None
    outcome = preparation.run()
    large.join("d")
    workers = large.job.membership.ids()
    books.take_over(preparation, workers, *outcome)
    assert books.preparation("d", 0, workers) is not None
    rows = {worker: take(large, worker) for worker in workers}
    assert rows["d"] != []
    assert sorted(shard for each in rows.values() for shard, _, _ in each) == list(range(10))


def test_what_was_worked_out_before_a_worker_restarted_is_worked_out_again(large: Bench) -> None:
    books, workers = large.job.ledger, large.job.membership.ids()
    preparation = books.preparation("d", 0, workers)
    assert preparation is not None
    books.take_over(preparation, workers, *preparation.run())
    large.join("c", incarnation="2")
    assert large.job.membership.ids() == workers
    assert books.preparation("d", 0, workers) is not None
    assert take(large, "a") == take(bench_with(DataOrder.STICKY), "a")


def test_a_lookup_and_a_deal_of_the_same_workers_are_two_preparations(large: Bench) -> None:
    books, workers = large.job.ledger, large.job.membership.ids()
    lookup, dealing = books.preparation("d", None, workers), books.preparation("d", 0, workers)
    assert lookup is not None
    assert dealing is not None
    assert not lookup.is_same(dealing)
    assert not dealing.is_same(lookup)
    assert lookup.is_same(lookup)
    books.take_over(lookup, workers, *lookup.run())
    assert books.preparation("d", None, workers) is None
    assert books.preparation("d", 0, workers) is not None


def test_a_small_dataset_needs_no_preparation() -> None:
    bench = bench_with(DataOrder.STICKY)
    assert bench.job.ledger.preparation("d", 0, bench.job.membership.ids()) is None


def test_a_dataset_that_only_a_checkpoint_knows_becomes_known_by_it() -> None:
    bench = bench_with(DataOrder.GLOBAL)
    report(bench, "a", [[0, 0, 30]])
    cursors = bench.job.ledger.cut(1)
    fresh = Bench()
    fresh.apply(c.AdoptCheckpoints(checkpoints=(CommitRecord(1, 0, "m", cursors),)))
    fresh.join("a")
    fresh.say(c.AskRestorePoint, "a")
    assert take(fresh, "a") == [[0, 30, 95]]
    with pytest.raises(DatasetConflictError, match="seed=4"):
        fresh.apply(register(DataOrder.GLOBAL, seed=4))


def test_a_checkpoint_of_other_data_is_not_restored() -> None:
    bench = bench_with(DataOrder.GLOBAL)
    report(bench, "a", [[0, 0, 30]])
    other = bench_with(DataOrder.STICKY)
    other.apply(c.AdoptCheckpoints(checkpoints=(CommitRecord(1, 0, "m", bench.job.ledger.cut(1)),)))
    for _ in range(2):
        with pytest.raises(SavedDatasetError, match="but the checkpoint to continue from was saved with "):
            other.say(c.AskRestorePoint, "a")
