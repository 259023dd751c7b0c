"""The first API's ShardManager: its calls, its answers, and its errors."""

from __future__ import annotations

import itertools

import numpy as np
import pytest

from strata import ShardAssignment, ShardManager
from strata.errors import (
    DatasetConflictError,
    InvalidIdError,
    NoWorkersError,
    UnknownDatasetError,
    UnknownWorkerError,
)
from strata.sharding import DatasetParams


@pytest.fixture
def manager() -> ShardManager:
    """ImageNet on eight workers."""
    manager = ShardManager()
    manager.register_dataset_params("imagenet-1k", 1_281_167, 10_000, True, 42)
    for number in range(8):
        manager.register_worker(f"worker-{number:02}")
    return manager


def all_shards(manager: ShardManager, epoch: int = 0) -> list[ShardAssignment]:
    return [
        shard
        for worker in manager.active_workers
        for shard in manager.get_shard_for_worker("imagenet-1k", worker, epoch)
    ]


def test_all_workers_together_have_every_sample_once(manager: ShardManager) -> None:
    shards = sorted(all_shards(manager), key=lambda shard: shard.start_index)
    assert shards[0].start_index == 0
    assert shards[-1].end_index == 1_281_167
    assert all(first.end_index == second.start_index for first, second in itertools.pairwise(shards))
    assert {shard.total_shards for shard in shards} == {129}


def test_a_shard_says_all_that_a_reader_needs(manager: ShardManager) -> None:
    last = next(shard for shard in all_shards(manager, epoch=3) if shard.shard_id == 128)
    assert last == ShardAssignment(
        dataset_id="imagenet-1k",
        shard_id=128,
        total_shards=129,
        start_index=1_280_000,
        end_index=1_281_167,
        file_paths=(),
        epoch=3,
    )


def test_the_same_worker_has_the_same_shards_in_every_epoch_in_another_order(manager: ShardManager) -> None:
    first, second = (
        [shard.shard_id for shard in manager.get_shard_for_worker("imagenet-1k", "worker-01", epoch)]
        for epoch in (0, 1)
    )
    assert sorted(first) == sorted(second)
    assert first != second
    again = [shard.shard_id for shard in manager.get_shard_for_worker("imagenet-1k", "worker-01", 0)]
    assert again == first


def test_without_shuffle_shards_come_in_their_natural_order(manager: ShardManager) -> None:
    manager.register_dataset_params("plain", 1_000, 10)
    shards = [shard.shard_id for shard in manager.get_shard_for_worker("plain", "worker-03", 5)]
    assert shards == sorted(shards)


def test_a_lost_workers_shards_go_to_the_others_and_come_back(manager: ShardManager) -> None:
    before = manager.assignment("imagenet-1k")
    manager.remove_worker("worker-05")
    assert manager.rebalance_shards("imagenet-1k") == before.counts()["worker-05"]
    assert manager.rebalance_shards("imagenet-1k") == 0
    manager.register_worker("worker-05")
    again = manager.get_shard_for_worker("imagenet-1k", "worker-05", 0)
    warm = np.intersect1d([shard.shard_id for shard in again], before.shards_of("worker-05"))
    assert len(warm) >= len(again) - 1


def test_weights_give_shares_in_proportion(manager: ShardManager) -> None:
    manager.register_worker("worker-00", weight=8)
    counts = manager.assignment("imagenet-1k").counts()
    assert counts["worker-00"] in (68, 69)
    assert set(counts.values()) - {counts["worker-00"]} <= {8, 9}


def test_workers_that_all_leave_find_their_shards_again(manager: ShardManager) -> None:
    before = manager.assignment("imagenet-1k")
    for worker in manager.active_workers:
        manager.remove_worker(worker)
    with pytest.raises(NoWorkersError, match="dataset 'imagenet-1k' cannot be assigned"):
        manager.get_shard_for_worker("imagenet-1k", "worker-00", 0)
    for worker in before.workers:
        manager.register_worker(worker)
    assert manager.assignment("imagenet-1k") == before


def test_epochs_advance_per_dataset(manager: ShardManager) -> None:
    manager.register_dataset_params("other", 10, 1)
    assert manager.advance_epoch("imagenet-1k") == 1
    assert manager.advance_epoch("imagenet-1k") == 2
    assert (manager.current_epoch("imagenet-1k"), manager.current_epoch("other")) == (2, 0)
    assert manager.datasets == ["imagenet-1k", "other"]


def test_a_dataset_with_a_file_for_each_shard_hands_them_out() -> None:
    manager = ShardManager()
    paths = tuple(f"part-{number}.parquet" for number in range(3))
    manager.register_dataset(DatasetParams(dataset_id="d", total_samples=25, shard_size=10, file_paths=paths))
    manager.register_worker("w")
    assert [shard.file_paths for shard in manager.get_shard_for_worker("d", "w", 0)] == [(path,) for path in paths]


def test_registering_again_changes_nothing_unless_parameters_differ(manager: ShardManager) -> None:
    manager.register_dataset_params("imagenet-1k", 1_281_167, 10_000, True, 42)
    manager.register_worker("worker-00")
    with pytest.raises(DatasetConflictError) as caught:
        manager.register_dataset_params("imagenet-1k", 1_281_167, 5_000, True, 42)
    assert "is already registered with 1281167 samples in shards of 10000, shuffle on, seed 42" in str(caught.value)
    assert "use the same parameters, or another dataset id" in str(caught.value)
    assert len(all_shards(manager)) == 129


def test_unknown_names_and_bad_numbers_are_refused(manager: ShardManager) -> None:
    with pytest.raises(UnknownDatasetError, match="dataset 'imagenet' is not registered; there are imagenet-1k"):
        manager.get_shard_for_worker("imagenet", "worker-00", 0)
    with pytest.raises(UnknownWorkerError, match="worker 'w' is not registered; there are worker-00, worker-01"):
        manager.get_shard_for_worker("imagenet-1k", "w", 0)
    with pytest.raises(UnknownWorkerError):
        manager.remove_worker("w")
    with pytest.raises(ValueError, match="epoch is -1"):
        manager.get_shard_for_worker("imagenet-1k", "worker-00", -1)
    with pytest.raises(ValueError, match="worker 'w' has weight 0"):
        manager.register_worker("w", weight=0)
    with pytest.raises(InvalidIdError):
        manager.register_worker("../w")
    with pytest.raises(InvalidIdError):
        manager.register_dataset_params("a/b", 10, 1)
    for samples, size in ((0, 1), (-1, 1), (2**63, 2**40), (10, 0), (10, -1)):
        with pytest.raises(ValueError, match="use 1"):
            manager.register_dataset_params("bad", samples, size)
    with pytest.raises(ValueError, match="has 3 shards and 2 file paths; give one for each shard, or none"):
        DatasetParams(dataset_id="d", total_samples=25, shard_size=10, file_paths=("a", "b"))
    assert manager.datasets == ["imagenet-1k"]
