"""Every batch is a resume point in torch's loaders: what comes after it is what would have come."""

from __future__ import annotations

import json
from itertools import chain, islice
from typing import TYPE_CHECKING, Any

import pytest

from strata import open_dataset
from strata.data import Dataset
from strata.errors import DamagedRecordError
from tests.testbed.data.rows import MemoryRows

if TYPE_CHECKING:
    from collections.abc import Iterable

pytestmark = [
    pytest.mark.part("torch"),
    pytest.mark.timeout(300),
    # torch starts its workers by fork while the threads of a loader are there.
    pytest.mark.filterwarnings("ignore:This process .* is multi-threaded:DeprecationWarning"),
    # JAX says so as soon as another test has imported it; no worker here uses JAX.
    pytest.mark.filterwarnings(r"ignore:os\.fork\(\) was called:RuntimeWarning"),
    # There may be fewer cores than workers here.
    pytest.mark.filterwarnings("ignore:This DataLoader will create:UserWarning"),
    # torchdata calls what torch no longer wants to be called.
    pytest.mark.filterwarnings("ignore:'set_vital' is deprecated:UserWarning"),
]

EPOCHS = 3
NUM_ROWS = 45
ORDERS = ["sticky", "global", "dynamic"]


def opened(order: str, **options: Any) -> Dataset:
    return open_dataset(
        MemoryRows(NUM_ROWS), **{"batch_size": 8, "order": order, "shard_size": 6, "threads": 1, **options}
    )


def numbers(batches: Iterable[dict[str, Any]]) -> list[list[int]]:
    return [batch["id"].tolist() for batch in batches]


def stateful(dataset: Dataset, num_workers: int, *, persistent: bool = False) -> Any:
    from torchdata.stateful_dataloader import StatefulDataLoader

    from strata.integrations.torch_data import TorchDataset

    return StatefulDataLoader(
        TorchDataset(dataset), batch_size=None, num_workers=num_workers, persistent_workers=persistent
    )


def plain(dataset: Dataset, num_workers: int) -> Any:
    from torch.utils.data import DataLoader

    from strata.integrations.torch_data import TorchDataset

    return DataLoader(TorchDataset(dataset), batch_size=None, num_workers=num_workers)


def walk(loader: Any, *, tell_epoch: bool) -> tuple[list[list[list[int]]], list[tuple[int, int, Any]]]:
    """Return the batches of three epochs, and the state after each batch and each epoch as (epoch, batches, state)."""
    epochs, states = [], []
    for epoch in range(EPOCHS):
        if tell_epoch:
            loader.dataset.set_epoch(epoch)
        epochs.append([])
        for batch in loader:
            epochs[-1].append(batch["id"].tolist())
            states.append((epoch, len(epochs[-1]), json.loads(json.dumps(loader.state_dict()))))
    return epochs, states


@pytest.mark.parametrize("order", ORDERS)
@pytest.mark.parametrize(
    ("num_workers", "persistent", "drop_last"),
    [
        (0, False, False),
        (2, False, False),
        (2, True, False),
        (0, False, True),
        (2, True, True),
        pytest.param(4, False, False, marks=pytest.mark.slow),
        pytest.param(4, True, False, marks=pytest.mark.slow),
    ],
)
def test_every_batch_is_a_resume_point_of_a_stateful_loader(
    order: str, num_workers: int, persistent: bool, drop_last: bool
) -> None:
    # Without persistent workers, torch makes new copies of the dataset for each epoch, which must be told its number.
    tell_epoch = num_workers > 0 and not persistent
    whole, states = walk(
        stateful(opened(order, drop_last=drop_last), num_workers, persistent=persistent), tell_epoch=tell_epoch
    )
    if not drop_last:
        assert all(sorted(chain(*epoch)) == list(range(NUM_ROWS)) for epoch in whole)
    assert whole[0] != whole[1] != whole[2]
    for epoch, count, state in states:
        loader = stateful(opened(order, drop_last=drop_last), num_workers, persistent=persistent)
        loader.load_state_dict(state)
        for following in range(epoch, min(epoch + 2, EPOCHS)):
            if tell_epoch:
                loader.dataset.set_epoch(following)
            expected = whole[following][count:] if following == epoch else whole[following]
            assert numbers(loader) == expected, (epoch, count, following)


@pytest.mark.parametrize("order", ORDERS)
@pytest.mark.parametrize(("before", "after"), [(0, 2), (2, 4), (4, 0), pytest.param(2, 2, marks=pytest.mark.slow)])
def test_every_batch_is_a_resume_point_for_a_plain_loader_with_other_workers(
    order: str, before: int, after: int
) -> None:
    from strata.integrations.torch_data import merge_loader_states

    whole, states = walk(stateful(opened(order), before), tell_epoch=before > 0)
    for epoch, count, state in states:
        dataset = opened(order)
        dataset.load_state_dict(merge_loader_states([state]))
        # The end of an epoch is the beginning of the next.
        at_end = count == len(whole[epoch])
        assert dataset.epoch == epoch + at_end
        if dataset.epoch == EPOCHS:
            continue
        expected = whole[dataset.epoch] if at_end else whole[epoch][count:]
        loader = plain(dataset, after)
        loader.dataset.set_epoch(dataset.epoch)
        rest = numbers(loader)
        assert sorted(chain(*rest)) == sorted(chain(*expected))
        if order == "global":
            assert rest == expected


@pytest.mark.parametrize("epochs", [EPOCHS, None])
@pytest.mark.parametrize("num_workers", [0, 2, pytest.param(4, marks=pytest.mark.slow)])
def test_an_iteration_through_several_epochs_keeps_the_global_order_and_resumes_at_any_batch(
    num_workers: int, epochs: int | None
) -> None:
    expected = numbers(islice(opened("global", epochs=epochs), 18))
    loader = stateful(opened("global", epochs=epochs), num_workers)
    states, seen = [], []
    for batch in islice(loader, 18):
        seen.append(batch["id"].tolist())
        states.append(loader.state_dict())
    assert seen == expected
    for count, state in enumerate(states[:17], start=1):
        resumed = stateful(opened("global", epochs=epochs), num_workers)
        resumed.load_state_dict(state)
        rest = numbers(resumed if epochs else islice(resumed, 18 - count))
        assert rest == expected[count:], count


@pytest.mark.parametrize("order", ORDERS)
@pytest.mark.parametrize("num_workers", [0, 2, 4])
@pytest.mark.parametrize("drop_last", [False, True])
def test_a_loader_knows_its_length(order: str, num_workers: int, drop_last: bool) -> None:
    from torch.utils.data import DataLoader

    from strata.integrations.torch_data import TorchDataset

    dataset = TorchDataset(opened(order, drop_last=drop_last), num_workers=num_workers)
    loader = DataLoader(dataset, batch_size=None, num_workers=num_workers)
    assert len(loader) == len(list(loader))


def test_a_loader_that_cannot_know_its_length_says_so() -> None:
    from strata.integrations.torch_data import TorchDataset

    for dataset in (opened("global", epochs=None), opened("sticky", filter=lambda batch: batch["id"] > 3)):
        with pytest.raises(TypeError, match="has no length"):
            len(TorchDataset(dataset))
    assert len(TorchDataset(opened("global", filter=lambda batch: batch["id"] > 3))) == 6
    assert len(TorchDataset(opened("global", epochs=4))) == 24


def test_a_loop_that_was_left_begins_its_pass_again_in_workers_that_persist() -> None:
    from torch.utils.data import DataLoader

    from strata.integrations.torch_data import TorchDataset

    loader = DataLoader(TorchDataset(opened("global")), batch_size=None, num_workers=2, persistent_workers=True)
    for _ in loader:
        break
    assert numbers(loader) == numbers(opened("global"))


def test_a_wrong_number_of_workers_is_refused() -> None:
    from torch.utils.data import DataLoader

    from strata.integrations.torch_data import TorchDataset

    loader = DataLoader(TorchDataset(opened("sticky"), num_workers=3), batch_size=None, num_workers=2)
    with pytest.raises(ValueError, match="num_workers=2, and TorchDataset was told 3"):
        numbers(loader)
    with pytest.raises(TypeError, match=r"num_workers is 2\.5"):
        TorchDataset(opened("sticky"), num_workers=2.5)
    with pytest.raises(TypeError, match="dataset is list"):
        TorchDataset([1, 2])


def test_a_worker_process_refuses_another_number_of_workers_than_its_dataset_was_told(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    from torch.utils.data._utils import worker

    from strata.integrations.torch_data import TorchDataset

    told = TorchDataset(opened("sticky"), num_workers=2)
    # This process as torch's worker 0 of 3.
    monkeypatch.setattr(worker, "_worker_info", worker.WorkerInfo(id=0, num_workers=3, seed=0, dataset=told))
    with pytest.raises(
        ValueError, match="the loader has num_workers=3, and TorchDataset was told 2; give both the same"
    ):
        iter(told)


@pytest.mark.parametrize("damaged", [{}, {"strata": 5}, {"begun": "yes"}, {"until": None}, None])
def test_a_state_of_something_else_is_refused_and_the_position_stays(damaged: dict[str, Any] | None) -> None:
    from strata.integrations.torch_data import TorchDataset

    dataset = TorchDataset(opened("sticky"))
    next(iter(dataset))
    state = dataset.state_dict()
    wrong = {**state, **damaged} if damaged else damaged
    with pytest.raises(DamagedRecordError, match="it has not the fields of a TorchDataset's state"):
        dataset.load_state_dict(wrong)
    assert dataset.state_dict() == state


def test_the_state_of_a_loader_that_is_some_steps_old_is_not_merged() -> None:
    from torchdata.stateful_dataloader import StatefulDataLoader

    from strata.integrations.torch_data import TorchDataset, merge_loader_states

    dataset = TorchDataset(opened("sticky"))
    loader = StatefulDataLoader(dataset, batch_size=None, num_workers=1, snapshot_every_n_steps=3)
    batches = iter(loader)
    for _ in range(2):
        next(batches)
    with pytest.raises(ValueError, match="the loader's state is 2 steps old; use snapshot_every_n_steps=1"):
        merge_loader_states([loader.state_dict()])
