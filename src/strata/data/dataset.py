"""The face of all this: open a dataset, iterate its batches, keep its position."""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any, Self, Unpack

from strata.data.dataset_plan import OnError, Plan
from strata.data.loading.batches import Batch, Target
from strata.data.loading.dealer import Dealer, LocalDealer, SharedDealer
from strata.data.loading.loader import DEFAULT_PREFETCH_BYTES, DEFAULT_THREADS, Loader, LoaderOptions
from strata.data.loading.pages import PageReader, PageSource
from strata.data.loading.position import Position, State
from strata.data.loading.row_layout import Order, arrange, check_layout
from strata.data.loading.shares import Share
from strata.data.loading.transforms import Filter, TransformFn
from strata.data.media.decode import DecodeColumns, Decoder
from strata.data.opening import DataSource, Reading, open_source_rows
from strata.data.option_checks import check_choice, check_names, check_whole
from strata.data.rows.in_memory import TableRows
from strata.data.rows.row_sequence import DatasetRows, Rows
from strata.data.rows.skips import SkippedRows, Skips
from strata.sharding.cursor import GlobalCursor, Spans
from strata.sharding.order import DataOrder


class Dataset:
    """Batches of a dataset, each sample once an epoch, from a position that can be saved and loaded anywhere.

    Iterating goes from the position to the end of the epoch; iterating again begins the next epoch, or, if the loop was
    left early, goes on where it was left. See :func:`open_dataset` for the arguments.
    """

    def __init__(
        self,
        rows: Rows,
        plan: Plan,
        *,
        dealer: Callable[[Plan], Dealer] | None = None,
        on_demand: bool = False,
    ) -> None:
        """With ``dealer``, work comes from what it returns, and :meth:`delivered` must be called to report progress.

        ``on_demand``: shards come from a dealer that several datasets of this process share.
        """
        self._rows = rows
        self._plan = plan
        self._is_dealt = dealer is not None
        self._position = Position(
            plan.layout,
            plan.fingerprint(),
            plan.cut,
            on_demand=on_demand,
            reported=self._is_dealt,
            advise=plan.advise,
        )
        self._make_loader(self._local_dealer() if dealer is None else dealer(plan))

    @property
    def num_rows(self) -> int:
        """How many samples an epoch has, for all ranks together."""
        return self._plan.layout.total_samples

    @property
    def num_batches(self) -> int | None:
        """How many batches this share gets of an epoch from its beginning; None where only the loop can tell.

        With a filter, batches of which nothing is left are passed over, except in ``global`` order.
        """
        return self._plan.count_batches()

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
        """The epoch that the next batch is of: after the last batch of one it is the next, as in a state."""
        return self._loader.epoch

    def __iter__(self) -> Iterator[Batch]:
        return iter(self._loader)

    def resume(self, *, until_epoch: int | None) -> Iterator[Batch]:
        """Go on with an iteration that was begun in another process, and end it before this epoch.

        :meth:`__iter__` begins a new one, which goes through ``epochs`` epochs from here.
        """
        return self._loader.resume(until_epoch=until_epoch)

    @property
    def is_loaded(self) -> bool:
        """Whether a state was loaded from the middle of an epoch, and nothing was delivered since."""
        return self._position.is_loaded

    def set_epoch(self, epoch: int) -> None:
        """Go to the beginning of an epoch."""
        self._loader.set_epoch(epoch)

    def seek(self, epoch: int, batches: int) -> None:
        """Go to after so many global batches of an epoch, as a loop does that keeps only its step number.

        Only in ``global`` order, where that is the same place for any number of ranks and workers.
        """
        layout, cut = self._plan.layout, self._plan.cut
        if not layout.is_global:
            raise ValueError(f"seek() is for order='global', not for '{layout.data_order}'; load a state instead")
        count = cut.count(0, layout.total_samples)
        epoch = check_whole("epoch", epoch, least=0)
        batches = check_whole("batches", batches, least=0, most=count)
        position = min(batches * cut.global_batch_size, layout.total_samples)
        fresh = {"version": 1, "dataset": self._plan.fingerprint()}
        self.load_state_dict({**fresh, **GlobalCursor(epoch, position).to_json()})

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

    @property
    def last_rows(self) -> Sequence[tuple[int, int, int]]:
        """The rows (shard, start, stop) of the batch that was handed to the loop last."""
        return self._position.last_rows

    def skipped(self) -> list[SkippedRows]:
        """Return the rows that could not be read so far and were left out; they count as delivered.

        A file that was bad when it was scanned is there too, with 0 rows: it is no part of the dataset.
        """
        left_out: Sequence[SkippedRows] = getattr(self._rows, "left_out", ())
        return [*left_out, *self._loader.skipped()]

    def split(self, count: int) -> list[Dataset]:
        """Return ``count`` datasets that take shards on demand, for threads of this process; each sample is in one.

        They begin at this one's position; bring their states together with :func:`merge_states`.
        """
        if self._plan.layout.data_order is not DataOrder.DYNAMIC or self._plan.share.parts > 1:
            raise ValueError("only a dataset with order='dynamic' and one rank can be split")
        shared = SharedDealer(self._plan.layout, self._position)
        parts = [self._with_share(Share(worker=worker, num_workers=count), on_demand=True) for worker in range(count)]
        for part in parts:
            part._make_loader(shared.member(part._position))
        return parts

    def with_share(self, share: Share) -> Self:
        """Return this dataset, where it is now, for a part of its work; its files are opened anew."""
        return self._with_share(share)

    def with_dealer(self, dealer: Callable[[Plan], Dealer]) -> Self:
        """Return this dataset, from its beginning, with work that comes from a dealer; its files are opened anew."""
        return self._rebuilt(self._plan, dealer=dealer)

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
        layout = self._plan.layout
        return (
            f"Dataset({self.num_rows} rows of {', '.join(self.names)}; {layout.data_order} order, "
            f"epoch {self.epoch}, {layout.num_shards} shards)"
        )

    def _with_share(self, share: Share, *, on_demand: bool = False) -> Self:
        part = self._rebuilt(replace(self._plan, share=share), on_demand=on_demand)
        part._position.begin_as(self._position)
        return part

    def _rebuilt(self, plan: Plan, *, dealer: Callable[[Plan], Dealer] | None = None, on_demand: bool = False) -> Self:
        # Rows and plan are all that a dataset is made of, whatever kind of dataset it is.
        made = type(self).__new__(type(self))
        Dataset.__init__(made, copy.copy(self._rows), plan, dealer=dealer, on_demand=on_demand)
        return made

    def _local_dealer(self) -> Dealer:
        return LocalDealer(self._plan.layout, self._position, self._plan.cut)

    def _make_loader(self, dealer: Dealer) -> None:
        plan = self._plan
        skips = Skips() if plan.on_error == "skip" else None
        self._loader = Loader(
            self._page_source(skips),
            dealer,
            self._position,
            plan.options,
            row_is_batch=plan.layout.is_global,
            skips=skips,
        )

    def _page_source(self, skips: Skips | None) -> PageSource:
        return PageReader(self._rows, self._plan.layout, columns=self._plan.columns, skips=skips)


def open_dataset(
    source: DataSource,
    *,
    batch_size: int,
    order: Order = "sticky",
    shuffle: bool = True,
    seed: int = 0,
    shard_size: int | None = None,
    window_shards: int | None = None,
    drop_last: bool = False,
    columns: Sequence[str] | None = None,
    filter: Filter | None = None,  # noqa: A002 - what users look for
    transform: TransformFn | None = None,
    decode: Mapping[str, Decoder] | None = None,
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

    ``source`` is a path, a URL or a list of these, as :func:`strata.data.rows.row_sequence.open_rows` takes it, with
    its arguments (``format``, ``cache`` and so on) as further ones; or an Arrow table or dataset, a
    ``datasets.Dataset``, a
    NumPy array, a dict of arrays, or any object with rows.
    ``order``: ``sticky`` reads a shard on one rank, ``global`` gives the same global batches for any number of ranks
    (``global_batch_size``, by default ``batch_size * world_size``), ``dynamic`` hands out shards on demand.
    ``shard_size``, ``window_shards`` and ``seed`` are part of the order: a position is only good for the same ones.
    ``filter`` gets a batch as NumPy arrays and returns a boolean for each row; batches are not filled up again.
    ``decode`` names columns of bytes that are pictures or sound, as ``{"jpg": "rgb", "wav": "audio"}``; the transform
    gets them as arrays.
    ``transform`` gets the batch and returns another. ``to`` then makes torch tensors or JAX arrays of it.
    """
    check_names("columns", columns)
    # A number of NumPy becomes one of Python: it goes into states, which are JSON.
    batch_size = check_whole("batch_size", batch_size, least=1)
    global_batch_size = check_whole("global_batch_size", global_batch_size, least=1, or_none=True) or None
    world_size = check_whole("world_size", world_size, least=1)
    epochs = check_whole("epochs", epochs, least=1, or_none=True) or None
    # Before anything is read: scanning files may take minutes.
    options = LoaderOptions(
        batch_size=batch_size,
        drop_last=drop_last,
        filter=filter,
        transform=transform if decode is None else DecodeColumns(decode, transform),
        to=to,
        epochs=epochs,
        prefetch_bytes=prefetch_bytes,
        threads=threads,
        processes=processes,
    )
    share = Share(rank=check_whole("rank", rank, least=0), world_size=world_size)
    check_layout(shard_size=shard_size, order=order, shuffle=shuffle, seed=seed, window_shards=window_shards)
    check_choice("on_error", on_error, ("raise", "skip"))
    if isinstance(source, Dataset):
        raise TypeError("this dataset is open already; use it as it is, or give what it was opened from")
    rows = open_source_rows(source, columns, reading, skip_bad=on_error == "skip")
    layout = arrange(rows, shard_size=shard_size, order=order, shuffle=shuffle, seed=seed, window_shards=window_shards)
    if global_batch_size is not None and not layout.is_global:
        raise ValueError(f"global_batch_size is for order='global', not for '{layout.data_order}'; use batch_size")
    if columns is not None and isinstance(rows, DatasetRows | TableRows):
        columns = rows.names  # with the masks of those that may miss values
    if columns is not None and (unknown := [name for name in columns if name not in rows.names]):
        raise ValueError(f"there is no column {unknown[0]!r}; the columns are {', '.join(rows.names)}")
    plan = Plan(
        layout=layout,
        options=options,
        global_batch_size=batch_size * world_size if global_batch_size is None else global_batch_size,
        share=share,
        files=rows.fingerprint if isinstance(rows, DatasetRows) else "",
        split=reading.get("split"),
        columns=None if columns is None else tuple(columns),
        on_error=on_error,
        nulls=reading.get("nulls", "mask"),
    )
    return Dataset(rows, plan, dealer=dealer)
