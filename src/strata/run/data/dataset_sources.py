"""What ``run.dataset`` is given: an address to open, or a dataset that is open already, dealt by the run."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, cast

from strata.data.dataset import Dataset, open_dataset
from strata.data.dataset_plan import OnError, Plan
from strata.data.loading.batches import Target
from strata.data.loading.dealer import Dealer
from strata.data.loading.row_layout import Order
from strata.data.loading.shares import Share
from strata.data.loading.transforms import Filter, TransformFn
from strata.data.media.decode import Decoder
from strata.data.mixture import Mixture
from strata.data.opening import DataSource, Reading
from strata.data.text.assembled import AssembledDataset
from strata.run.team.protocol import Team
from strata.sharding import DatasetParams

# What ``open_dataset`` takes, or a dataset that is open already, such as a mixture or a packed one.
Source = DataSource | Dataset | AssembledDataset


class DatasetOptions(Reading, total=False):
    """What ``run.dataset`` takes beside the source, as ``strata.data.open_dataset`` does."""

    batch_size: int
    global_batch_size: int
    order: Order
    shuffle: bool
    seed: int
    shard_size: int
    window_shards: int
    drop_last: bool
    columns: Sequence[str]
    filter: Filter
    decode: Mapping[str, Decoder]
    transform: TransformFn
    to: Target
    prefetch_bytes: int
    threads: int
    processes: int
    on_error: OnError


def open_source(source: DataSource, options: DatasetOptions, dealer: Callable[[Plan], Dealer] | None) -> Dataset:
    """Open what is at an address, with its work dealt by the run."""
    given = cast("dict[str, Any]", dict(options))
    for name in ("rank", "world_size"):
        if name in given:
            raise TypeError(f"{name} is not an option here: the run knows it, and it may change")
    if given.get("order") == "global":
        if given.get("global_batch_size") is None:
            raise ValueError(
                "order='global' needs global_batch_size: it must stay the same whatever the number of workers is"
            )
        given.setdefault("batch_size", given["global_batch_size"])
    if "batch_size" not in given:
        raise ValueError("run.dataset needs batch_size, or global_batch_size with order='global'")
    return open_dataset(source, **given, dealer=dealer)


def take_open(dataset: Dataset, options: DatasetOptions, dealer: Callable[[Plan], Dealer] | None) -> Dataset:
    """Return a dataset that was opened before, such as a mixture, with its work dealt by the run."""
    if options:
        raise TypeError(f"{next(iter(options))!r} is an option for opening, and this dataset is open already")
    if dataset.plan.share != Share():
        raise ValueError("this dataset was opened for one rank of several; open it without rank and world_size")
    return dataset if dealer is None else dataset.with_dealer(dealer)


def take_assembled(
    source: AssembledDataset, options: DatasetOptions, dealer: Callable[[Plan], Dealer] | None
) -> AssembledDataset:
    """Return a packed dataset with the work of its documents dealt by the run."""
    take_open(source.dataset, options, None)
    if source.is_shared:
        raise ValueError("this dataset was opened for one rank of several; open it without rank and world_size")
    if source.dataset.plan.options.epochs != 1:
        raise ValueError("documents that are packed in a run are opened with epochs=1; give epochs to run.steps")
    return source if dealer is None else source.with_dealer(dealer)


def register_sources(team: Team, dataset: Dataset, dataset_id: str, url: str) -> list[tuple[int, str]]:
    """Make the datasets of a mixture known, if rows of them may be skipped; return where the rows of each begin."""
    if not isinstance(dataset, Mixture) or dataset.plan.on_error != "skip":
        return [(0, dataset_id)]
    homes = [(start, f"{dataset_id}.{number}") for number, start in enumerate(dataset.source_starts)]
    for source, (_, home) in zip(dataset.sources, homes, strict=True):
        team.register(DatasetParams.of(source.layout, home), options={"files": source.files}, url=url)
    return homes
