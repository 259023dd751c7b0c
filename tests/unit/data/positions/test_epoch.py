"""``epoch`` is the epoch that the next batch is of, and a state says the same, for every kind of dataset."""

from __future__ import annotations

import json
from functools import partial
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa
import pytest

from strata import Mixture, open_dataset
from strata.data import Dataset, merge_states
from strata.data.text.assembled import AssembledDataset, bucket_dataset, pack_dataset
from tests.testbed.data.rows import MemoryRows

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

EPOCHS = 3
open_rows = partial(open_dataset, batch_size=8, shard_size=10)


def open_documents(**options: Any) -> Dataset:
    documents = [np.arange(1 + number % 7) for number in range(40)]
    return open_dataset(pa.table({"tokens": documents}), batch_size=8, shard_size=10, **options)


def open_mixture(**options: Any) -> Mixture:
    parts = [open_rows(MemoryRows(size), order="global", **options) for size in (40, 25)]
    return Mixture(parts, [2, 1])


KINDS: dict[str, Callable[[], Dataset | AssembledDataset]] = {
    "sticky": lambda: open_rows(MemoryRows(40)),
    "sticky with a rest": lambda: open_rows(MemoryRows(43)),
    "sticky without its rest": lambda: open_rows(MemoryRows(43), drop_last=True),
    "global": lambda: open_rows(MemoryRows(40), order="global"),
    "global without its rest": lambda: open_rows(MemoryRows(43), order="global", drop_last=True),
    "global, one of two ranks": lambda: open_rows(MemoryRows(43), order="global", rank=1, world_size=2),
    "dynamic": lambda: open_rows(MemoryRows(40), order="dynamic"),
    "several epochs": lambda: open_rows(MemoryRows(40), epochs=EPOCHS),
    "without end": lambda: open_rows(MemoryRows(40), epochs=None),
    "transformed, far ahead": lambda: open_rows(
        MemoryRows(40), transform=lambda batch: batch, threads=4, prefetch_bytes=1 << 30
    ),
    "mixture": open_mixture,
    "mixture without its rest": lambda: open_mixture(drop_last=True),
    "packed": lambda: pack_dataset(open_documents(), sequence_length=16, batch_size=2),
    "packed, global": lambda: pack_dataset(open_documents(order="global"), sequence_length=16, batch_size=2),
    "packed without its rest": lambda: pack_dataset(open_documents(), sequence_length=16, batch_size=2, drop_last=True),
    "bucketed": lambda: bucket_dataset(open_documents(), boundaries=[4], batch_size=4),
}


def reload(state: Any) -> Any:
    return json.loads(json.dumps(state))


def contents_of(batch: Any) -> list[Any]:
    return [np.asarray(column).tolist() for _, column in sorted(batch.items())]


def epochs_of(kind: str) -> list[list[Any]]:
    """Return the batches of each epoch, by loops that ask for one batch more at the end of each."""
    dataset = KINDS[kind]()
    found = []
    for epoch in range(EPOCHS):
        dataset.set_epoch(epoch)
        if kind in ("several epochs", "without end"):
            assert isinstance(dataset, Dataset)
            found.append([contents_of(batch) for batch in dataset.resume(until_epoch=epoch + 1)])
        else:
            found.append([contents_of(batch) for batch in dataset])
    return found


@pytest.mark.parametrize("kind", KINDS)
def test_the_epoch_is_that_of_the_next_batch_and_that_of_the_state(kind: str) -> None:
    expected = [(epoch, batch) for epoch, batches in enumerate(epochs_of(kind)) for batch in batches]
    dataset = KINDS[kind]()
    assert dataset.epoch == 0
    seen: list[tuple[int, Any]] = []
    while len(seen) < len(expected):
        batches = iter(dataset)
        while len(seen) < len(expected):
            epoch = dataset.epoch
            fresh = KINDS[kind]()
            fresh.load_state_dict(reload(dataset.state_dict()))
            assert fresh.epoch == epoch, f"after {len(seen)} batches"
            # The state says it too, and what it was loaded into says the same again.
            again = KINDS[kind]()
            again.load_state_dict(reload(fresh.state_dict()))
            assert again.epoch == epoch
            following = contents_of(next(iter(fresh)))
            batch = next(batches, None)
            if batch is None:
                assert dataset.epoch == epoch  # to ask for one more at the end of an epoch changes nothing
                break
            seen.append((epoch, contents_of(batch)))
            assert following == seen[-1][1]
    assert seen == expected
    assert dataset.epoch == EPOCHS


@pytest.mark.parametrize("kind", KINDS)
def test_a_loop_that_counts_its_batches_goes_on_with_the_next_epoch(kind: str) -> None:
    dataset = KINDS[kind]()
    for epoch, expected in enumerate(epochs_of(kind)):
        assert dataset.epoch == epoch
        batches = iter(dataset)
        assert [contents_of(next(batches)) for _ in expected] == expected


@pytest.mark.parametrize("order", ["sticky", "global"])
@pytest.mark.parametrize("drop_last", [False, True])
def test_of_several_ranks_each_is_in_the_next_epoch_after_its_last_batch(order: str, *, drop_last: bool) -> None:
    ranks = [
        open_rows(MemoryRows(53), order=order, drop_last=drop_last, rank=rank, world_size=2)  # type: ignore[arg-type]  # one of its names
        for rank in range(2)
    ]
    for rank in ranks:
        count = rank.num_batches
        assert count
        batches = iter(rank)
        for taken in range(count):
            assert rank.epoch == 0, taken
            next(batches)
        assert rank.epoch == 1
        assert next(batches, None) is None
        assert rank.epoch == 1
    merged = merge_states([rank.state_dict() for rank in ranks])
    for rank in ranks:
        rank.load_state_dict(reload(merged))
        assert rank.epoch == merged["epoch"] == 1


class Coordinator:
    """Deals each epoch in two pieces."""

    def __init__(self, pieces: list[list[list[int]]]) -> None:
        self.pieces = pieces

    def deal(self, epoch: int) -> Iterator[Any]:
        for piece in self.pieces:
            yield np.array(piece)


@pytest.mark.parametrize("order", ["sticky", "dynamic"])
def test_work_of_a_coordinator_is_over_when_it_was_delivered_and_there_is_no_more(order: str) -> None:
    coordinator = Coordinator([[[3, 0, 10]], [[1, 5, 10], [0, 0, 1]]])
    dataset = open_rows(MemoryRows(40), order=order, dealer=lambda plan: coordinator)  # type: ignore[arg-type]  # one of its names
    batches = iter(dataset)
    for _ in range(2):
        assert dataset.epoch == 0
        next(batches)
    assert dataset.epoch == 1
    assert next(batches, None) is None
    assert dataset.epoch == 1


def test_work_of_a_coordinator_in_global_order_is_over_at_its_last_batch() -> None:
    coordinator = Coordinator([[[0, 24, 32], [0, 32, 40]]])
    dataset = open_rows(MemoryRows(40), order="global", dealer=lambda plan: coordinator)
    batches = iter(dataset)
    next(batches)
    assert dataset.epoch == 0
    next(batches)
    assert dataset.epoch == 1
    assert next(batches, None) is None
    assert dataset.epoch == 1


def test_an_epoch_of_which_every_row_is_dropped_is_no_further_in_the_state_than_in_the_dataset() -> None:
    dataset = open_rows(MemoryRows(3), drop_last=True)
    assert dataset.epoch == dataset.state_dict()["epoch"] == 0
    dataset.load_state_dict(reload(dataset.state_dict()))
    assert dataset.epoch == 0
    assert list(dataset) == []
    assert dataset.epoch == dataset.state_dict()["epoch"] == 1
