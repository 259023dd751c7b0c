"""The face of all this: open a dataset, iterate its batches, keep its position."""

from __future__ import annotations

import copy
import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal, Self, TypedDict, Unpack

from strata.data.arrangement import Order, arrange
from strata.data.batches import Batch, Target
from strata.data.cache import Cache
from strata.data.dealer import Dealer, LocalDealer, Share, SharedDealer
from strata.data.index import Index
from strata.data.loader import DEFAULT_PREFETCH_BYTES, DEFAULT_THREADS, Loader, LoaderOptions
from strata.data.pages import PageReader
from strata.data.position import Position, State
from strata.data.rows import DatasetRows, Rows, open_rows
from strata.data.skips import SkippedRows, Skips
from strata.data.workers import Filter, Transform
from strata.sharding.arrangement import Arrangement
from strata.sharding.cursor import Spans
from strata.sharding.order import DataOrder
from strata.storage import Storage

OnError = Literal["raise", "skip"]


class Reading(TypedDict, total=False):
    """How a path or URL is read; see :func:`strata.data.rows.open_rows`."""

    format: str | None
    options: Mapping[str, Any] | None
    index: Index | None
    storage: Storage | None
    cache: Cache | str | os.PathLike[str] | None
    memory_bytes: int


@dataclass(frozen=True, kw_only=True)
class Plan:
    """All that makes a loader of rows: equal plans over equal rows deliver equal batches.

    ``files`` names what the numbers of samples mean, where they are rows of files.
    """

    arrangement: Arrangement
    options: LoaderOptions
    global_batch_size: int
    share: Share
    files: str = ""
    columns: tuple[str, ...] | None = None
    on_error: OnError = "raise"

    def __post_init__(self) -> None:
        if self.on_error not in ("raise", "skip"):
            raise ValueError(f"on_error is {self.on_error!r}; use 'raise' or 'skip'")
        if self.global_batch_size < self.share.world_size:
            raise ValueError(
                f"global_batch_size is {self.global_batch_size} for {self.share.world_size} ranks; use one sample for "
                "each or more"
            )

    def fingerprint(self) -> State:
        """Return what a saved position depends on, as values that JSON can hold."""
        return {
            "total_samples": self.arrangement.total_samples,
            "shard_size": self.arrangement.shard_size,
            "seed": self.arrangement.seed,
            "shuffle": self.arrangement.shuffle,
            "files": self.files,
        }


class Dataset:
    """Batches of a dataset, each sample once an epoch, from a position that can be saved and loaded anywhere.

    Iterating goes from the position to the end of the epoch; iterating again begins the next epoch, or, if the loop was
    left early, goes on where it was left. See :func:`open_dataset` for the arguments.
    """

    def __init__(self, rows: Rows, plan: Plan, *, dealer: Callable[[Plan], Dealer] | None = None) -> None:
        """With ``dealer``, work comes from what it returns, and :meth:`delivered` must be called to report progress."""
        self._rows = rows
        self._plan = plan
        self._is_dealt = dealer is not None
        share = plan.share
        self._position = Position(
            plan.arrangement,
            plan.fingerprint(),
            global_batch_size=plan.global_batch_size,
            # In global order, what one rank says is true for all; only its workers know each a part.
            part=share.worker if plan.arrangement.is_global else share.part,
            parts=share.num_workers if plan.arrangement.is_global else share.parts,
            reported=self._is_dealt,
        )
        self._make_loader(self._local_dealer() if dealer is None else dealer(plan))

    @property
    def num_rows(self) -> int:
        """How many samples an epoch has, for all ranks together."""
        return self._rows.num_rows

    @property
    def names(self) -> tuple[str, ...]:
        """The names of the columns that are read."""
        return self._plan.columns or self._rows.names

    @property
    def rows(self) -> Rows:
        """What batches are read from."""
        return self._rows

    @property
    def plan(self) -> Plan:
        """How batches are made of rows."""
        return self._plan

    @property
    def epoch(self) -> int:
        """The epoch that the next batch is of."""
        return self._loader.epoch

    def __iter__(self) -> Iterator[Batch]:
        return iter(self._loader)

    def set_epoch(self, epoch: int) -> None:
        """Go to the beginning of an epoch."""
        self._loader.set_epoch(epoch)

    def state_dict(self) -> State:
        """Return exactly what was delivered, as values that JSON can hold.

        Of several ranks, bring the states together with :func:`merge_states`; what comes out can be loaded by any
        number of ranks.
        """
        return self._loader.state_dict()

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Go to where the state was taken."""
        self._loader.load_state_dict(state)

    def delivered(self) -> list[tuple[int, Spans]]:
        """Return what was handed to the loop since the last call, as (epoch, rows of (shard, start, stop)).

        Only where work comes from a dealer that wants to know; see :meth:`state_dict` otherwise.
        """
        return self._position.take_delivered()

    def skipped(self) -> list[SkippedRows]:
        """Return the rows that could not be read so far and were left out; they count as delivered."""
        return self._loader.skipped()

    def split(self, count: int) -> list[Dataset]:
        """Return ``count`` datasets that take shards on demand, for threads of this process; each sample is in one.

        They begin at this one's position; bring their states together with :func:`merge_states`.
        """
        if self._plan.arrangement.data_order is not DataOrder.DYNAMIC or self._plan.share.parts > 1:
            raise ValueError("only a dataset with order='dynamic' and one rank can be split")
        shared = SharedDealer(self._plan.arrangement, self._position)
        parts = [self.with_share(Share(worker=worker, num_workers=count)) for worker in range(count)]
        for part in parts:
            part._make_loader(shared.member(part._position))
        return parts

    def with_share(self, share: Share) -> Dataset:
        """Return this dataset, where it is now, for a part of its work; its files are opened anew."""
        part = Dataset(copy.copy(self._rows), replace(self._plan, share=share))
        part._position.begin_as(self._position)
        return part

    def close(self) -> None:
        """End threads and processes."""
        self._loader.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exc_info: object) -> None:
        self.close()

    def __getstate__(self) -> dict[str, Any]:
        if self._is_dealt:
            raise TypeError("a dataset whose work is dealt by a coordinator cannot be sent to another process")
        return {"rows": self._rows, "plan": self._plan, "position": self._position}

    def __setstate__(self, state: Mapping[str, Any]) -> None:
        self._rows, self._plan, self._position = state["rows"], state["plan"], state["position"]
        self._is_dealt = False
        self._make_loader(self._local_dealer())

    def __repr__(self) -> str:
        arrangement = self._plan.arrangement
        return (
            f"Dataset({self.num_rows} rows of {', '.join(self.names)}; {arrangement.data_order} order, "
            f"epoch {self.epoch}, {arrangement.num_shards} shards)"
        )

    def _local_dealer(self) -> Dealer:
        return LocalDealer(
            self._plan.arrangement,
            self._position,
            self._plan.share,
            global_batch_size=self._plan.global_batch_size,
            drop_last=self._plan.options.drop_last,
        )

    def _make_loader(self, dealer: Dealer) -> None:
        plan = self._plan
        skips = Skips() if plan.on_error == "skip" else None
        reader = PageReader(self._rows, plan.arrangement, columns=plan.columns, skips=skips)
        self._loader = Loader(
            reader, dealer, self._position, plan.options, row_is_batch=plan.arrangement.is_global, skips=skips
        )


def open_dataset(
    source: str | os.PathLike[str] | Rows,
    *,
    batch_size: int,
    order: Order = "sticky",
    shuffle: bool = True,
    seed: int = 0,
    shard_size: int | None = None,
    drop_last: bool = False,
    columns: Sequence[str] | None = None,
    filter: Filter | None = None,  # noqa: A002 - what users look for
    transform: Transform | None = None,
    to: Target = "numpy",
    epochs: int | None = 1,
    rank: int = 0,
    world_size: int = 1,
    global_batch_size: int | None = None,
    prefetch_bytes: int = DEFAULT_PREFETCH_BYTES,
    threads: int = DEFAULT_THREADS,
    processes: int = 0,
    on_error: OnError = "raise",
    dealer: Callable[[Plan], Dealer] | None = None,
    **reading: Unpack[Reading],
) -> Dataset:
    """Open a dataset for loading; each epoch delivers each sample once, over all ranks.

    ``source`` is a path or URL that :func:`strata.data.rows.open_rows` takes, with its arguments (``format``, ``cache``
    and so on) as further ones, or an object with rows.
    ``order``: ``sticky`` reads a shard on one rank, ``global`` gives the same global batches for any number of ranks
    (``global_batch_size``, by default ``batch_size * world_size``), ``dynamic`` hands out shards on demand.
    ``shard_size`` and ``seed`` are part of the order: a position is only good for the same ones.
    ``filter`` gets a batch as NumPy arrays and returns a boolean for each row; batches are not filled up again.
    ``transform`` gets the batch and returns another. ``to`` then makes torch tensors or JAX arrays of it.
    """
    rows = _open(source, columns, reading)
    arrangement = arrange(rows, shard_size=shard_size, order=order, shuffle=shuffle, seed=seed)
    if global_batch_size is not None and not arrangement.is_global:
        raise ValueError(f"global_batch_size is for order='global', not for '{arrangement.data_order}'; use batch_size")
    options = LoaderOptions(
        batch_size=batch_size,
        drop_last=drop_last,
        filter=filter,
        transform=transform,
        to=to,
        epochs=epochs,
        prefetch_bytes=prefetch_bytes,
        threads=threads,
        processes=processes,
    )
    if columns is not None and (unknown := [name for name in columns if name not in rows.names]):
        raise ValueError(f"there is no column {unknown[0]!r}; the columns are {', '.join(rows.names)}")
    plan = Plan(
        arrangement=arrangement,
        options=options,
        global_batch_size=batch_size * world_size if global_batch_size is None else global_batch_size,
        share=Share(rank=rank, world_size=world_size),
        files=rows.fingerprint if isinstance(rows, DatasetRows) else "",
        columns=None if columns is None else tuple(columns),
        on_error=on_error,
    )
    return Dataset(rows, plan, dealer=dealer)


def _open(source: str | os.PathLike[str] | Rows, columns: Sequence[str] | None, reading: Reading) -> Rows:
    if isinstance(source, str | os.PathLike):
        return open_rows(source, columns=columns, **reading)
    if reading:
        raise TypeError(f"{next(iter(reading))!r} is for paths and URLs, not for rows that are open already")
    return source
