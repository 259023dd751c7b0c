"""Datasets in torch's own loaders: each sample once with any number of workers, and resumable with another."""

from __future__ import annotations

import itertools
import json
from typing import TYPE_CHECKING, Any

import pytest

from strata import open_dataset
from strata.data import Dataset
from tests.testbed.data.rows import MemoryRows

if TYPE_CHECKING:
    from collections.abc import Iterable

pytestmark = [
    pytest.mark.part("torch"),
    # torch starts its workers by fork while the threads of a loader are there.
    pytest.mark.filterwarnings("ignore:This process .* is multi-threaded:DeprecationWarning"),
    # JAX says so as soon as another test has imported it; no worker here uses JAX.
    pytest.mark.filterwarnings(r"ignore:os\.fork\(\) was called:RuntimeWarning"),
    # There may be fewer cores than workers here.
    pytest.mark.filterwarnings("ignore:This DataLoader will create:UserWarning"),
    # torchdata calls what torch no longer wants to be called.
    pytest.mark.filterwarnings("ignore:'set_vital' is deprecated:UserWarning"),
]

ORDERS = ["sticky", "global", "dynamic"]


def opened(order: str, **options: Any) -> Dataset:
    return open_dataset(
        MemoryRows(203), **{"batch_size": 8, "order": order, "shard_size": 10, "to": "torch", **options}
    )


def ids(batches: Iterable[dict[str, Any]]) -> list[int]:
    return [number for batch in batches for number in batch["id"].tolist()]


def plain(dataset: Dataset, num_workers: int) -> Any:
    from torch.utils.data import DataLoader

    from strata.integrations.torch_data import TorchDataset

    return DataLoader(TorchDataset(dataset), batch_size=None, num_workers=num_workers)


def stateful(dataset: Dataset, num_workers: int) -> Any:
    from torchdata.stateful_dataloader import StatefulDataLoader

    from strata.integrations.torch_data import TorchDataset

    return StatefulDataLoader(TorchDataset(dataset), batch_size=None, num_workers=num_workers)


@pytest.mark.parametrize("order", ORDERS)
@pytest.mark.parametrize("num_workers", [0, 3])
def test_a_plain_loader_gets_each_sample_once(order: str, num_workers: int) -> None:
    import torch

    batches = list(plain(opened(order), num_workers))
    assert isinstance(batches[0]["vector"], torch.Tensor)
    assert sorted(ids(batches)) == list(range(203))


@pytest.mark.parametrize("num_workers", [1, 2, 3])
def test_global_order_stays_for_any_number_of_workers(num_workers: int) -> None:
    expected = [ids([batch]) for batch in opened("global")]
    assert [ids([batch]) for batch in plain(opened("global"), num_workers)] == expected


@pytest.mark.parametrize("order", ORDERS)
@pytest.mark.parametrize("num_workers", [0, 2])
@pytest.mark.parametrize("stop", [3, 25])
def test_a_stateful_loader_resumes_bit_for_bit(order: str, num_workers: int, stop: int) -> None:
    whole = [ids([batch]) for batch in stateful(opened(order), num_workers)]
    first = stateful(opened(order), num_workers)
    batches = iter(first)
    begun = [ids([next(batches)]) for _ in range(stop)]
    state = first.state_dict()
    second = stateful(opened(order), num_workers)
    second.load_state_dict(state)
    assert begun + [ids([batch]) for batch in second] == whole


@pytest.mark.parametrize("order", ORDERS)
@pytest.mark.parametrize(("before", "after"), [(2, 3), (3, 0), (0, 2)])
def test_the_position_of_a_stateful_loader_goes_to_any_number_of_workers_and_ranks(
    order: str, before: int, after: int
) -> None:
    from strata.integrations.torch_data import merge_loader_states

    loaders = [stateful(opened(order, rank=rank, world_size=2), before) for rank in range(2)]
    iterators = [iter(loader) for loader in loaders]
    seen = ids(next(iterator) for _, iterator in itertools.product(range(5), iterators))
    state = json.loads(json.dumps(merge_loader_states(loader.state_dict() for loader in loaders)))
    for rank in range(3):
        dataset = opened(order, rank=rank, world_size=3)
        dataset.load_state_dict(state)
        seen += ids(plain(dataset, after))
    assert sorted(seen) == list(range(203))


def test_epochs_differ_when_the_loader_is_told_the_epoch() -> None:
    loader = plain(opened("sticky"), 2)
    first = ids(loader)
    loader.dataset.set_epoch(1)
    second = ids(loader)
    assert first != second
    assert sorted(first) == sorted(second)


@pytest.mark.parametrize("order", ORDERS)
def test_workers_that_persist_go_on_to_the_next_epoch_by_themselves(order: str) -> None:
    from torch.utils.data import DataLoader

    from strata.integrations.torch_data import TorchDataset

    loader = DataLoader(TorchDataset(opened(order)), batch_size=None, num_workers=2, persistent_workers=True)
    first, second = ids(loader), ids(loader)
    assert first != second
    assert sorted(first) == sorted(second) == list(range(203))


def test_a_dataset_of_several_ranks_that_was_iterated_is_not_split_among_workers() -> None:
    dataset = opened("sticky", rank=0, world_size=2)
    next(iter(dataset))
    with pytest.raises(ValueError, match="iterated already"):
        ids(plain(dataset, 2))


def test_torch_tensors_of_memory_that_must_not_change_are_copies() -> None:
    import numpy as np

    from strata.data.loading.batches import convert

    array = np.arange(4)
    array.flags.writeable = False
    words = np.array(["a", "b"], dtype=object)
    batch = convert({"x": array, "words": words}, "torch")
    batch["x"][0] = 9
    assert (array[0], batch["x"].tolist()) == (0, [9, 1, 2, 3])
    assert batch["words"] is words


def test_a_packed_dataset_is_named_where_it_needs_no_loader() -> None:
    from strata.data.text.assembled import pack_dataset
    from strata.integrations.torch_data import TorchDataset

    documents = open_dataset({"tokens": [[1, 2, 3]] * 4}, batch_size=2)
    packed = pack_dataset(documents, sequence_length=4, batch_size=1, to="torch")
    with pytest.raises(TypeError, match="needs no torch loader: iterate it as it is"):
        TorchDataset(packed)
    assert len(list(packed)) == 3
