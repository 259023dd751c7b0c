"""A job goes on in the epoch that its checkpoint says."""

from __future__ import annotations

from typing import Any

from strata.run.data.run_dataset import find_epoch
from strata.sharding import DataOrder, DatasetParams, GlobalCursor

PARAMS = DatasetParams(dataset_id="d", total_samples=100, shard_size=10, data_order=DataOrder.GLOBAL)


def row(epoch: int, position: int, dataset_id: str = "d") -> dict[str, Any]:
    return {"dataset": {**PARAMS.to_json(), "dataset_id": dataset_id}, **GlobalCursor(epoch, position).to_json()}


def test_without_a_position_it_begins_at_the_beginning() -> None:
    assert find_epoch([], PARAMS) == 0
    assert find_epoch([row(3, 50, "another")], PARAMS) == 0


def test_it_goes_on_in_the_epoch_that_is_not_over() -> None:
    assert find_epoch([row(0, 100), row(1, 64)], PARAMS) == 1
    assert find_epoch([row(1, 64), row(2, 10)], PARAMS) == 1


def test_an_epoch_of_which_only_dropped_samples_are_left_is_over() -> None:
    assert find_epoch([row(0, 96)], PARAMS, least=8) == 1
    assert find_epoch([row(0, 92)], PARAMS, least=8) == 0


def test_after_an_epoch_that_is_over_comes_the_next() -> None:
    assert find_epoch([row(0, 100), row(1, 100)], PARAMS) == 2
