"""The loader: from work that is dealt to batches that are delivered, each exactly once."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any

from strata.data.loading.batches import Batch, Target, check_target, convert, cut_batches
from strata.data.loading.dealer import Dealer
from strata.data.loading.pages import PageSource
from strata.data.loading.position import Position, Row, State
from strata.data.loading.prefetch import Prefetch
from strata.data.loading.transforms import Filter, Transform, TransformFn, TransformPool
from strata.data.option_checks import check_callable, check_flag, check_whole
from strata.data.rows.skips import SkippedRows, Skips

DEFAULT_PREFETCH_BYTES = 128 << 20
DEFAULT_THREADS = 2


@dataclass(frozen=True, kw_only=True)
class LoaderOptions:
    """How batches are made. None of it changes which samples are delivered, or in which order.

    ``epochs`` is how many one iteration goes through (None: without end). ``prefetch_bytes`` bounds the pages that wait
    to be used, not those in use. ``threads`` read, and as many again run ``filter`` and ``transform``, unless
    ``processes`` do.
    """

    batch_size: int
    drop_last: bool = False
    filter: Filter | None = None
    transform: TransformFn | None = None
    to: Target = "numpy"
    epochs: int | None = 1
    prefetch_bytes: int = DEFAULT_PREFETCH_BYTES
    threads: int = DEFAULT_THREADS
    processes: int = 0

    def __post_init__(self) -> None:
        for name in ("batch_size", "prefetch_bytes", "threads"):
            check_whole(name, getattr(self, name), least=1)
        check_whole("epochs", self.epochs, least=1, or_none=True)
        check_whole("processes", self.processes, least=0)
        check_flag("drop_last", self.drop_last)
        check_callable("filter", self.filter)
        check_callable("transform", self.transform)
        check_target(self.to)


class Loader:
    """Iterates batches from where it is to the end of the epoch; the next iteration begins the next epoch.

    Its position is what was handed to the loop, never what was read ahead: an iteration that was abandoned goes on,
    when it is begun again, with the very next sample. One iteration is alive at a time. Not for several threads.
    """

    def __init__(
        self,
        source: PageSource,
        dealer: Dealer,
        position: Position,
        options: LoaderOptions,
        *,
        row_is_batch: bool = False,
        skips: Skips | None = None,
    ) -> None:
        """``row_is_batch``: the dealer cuts the batches, as in ``global`` order; an empty one is then not passed over.

        ``skips`` is where the source notes what it could not read.
        """
        self._source = source
        self._dealer = dealer
        self._position = position
        self._options = options
        self._row_is_batch = row_is_batch
        self._skips = skips
        self._workers: TransformPool | None = None
        if options.filter or options.transform:
            work = Transform(options.filter, options.transform, keep_empty=row_is_batch)
            self._workers = TransformPool(work, threads=options.threads, processes=options.processes)
        self._prefetch: Prefetch | None = None
        self._iteration = 0
        # How many rows of the epoch that is being read were delivered.
        self._delivered_rows = 0

    @property
    def epoch(self) -> int:
        """The epoch that the next batch is of: after the last batch of one it is the next, as in a state."""
        if not self._position.follows_dealer:
            return self._position.next_epoch
        return self._position.epoch + self._has_finished_dealt()

    def _has_finished_dealt(self) -> bool:
        """Whether all that was dealt of the epoch was delivered, and the dealer has said that there is no more."""
        prefetch = self._prefetch
        if prefetch is None or prefetch.epoch != self._position.epoch or not self._delivered_rows:
            return False
        dealt_rows = prefetch.count_dealt()
        least = self._options.batch_size if self._options.drop_last else 1
        return dealt_rows is not None and dealt_rows - self._delivered_rows < least

    def __iter__(self) -> Iterator[Batch]:
        self._abandon()
        self._position.begin_iteration()
        epochs = self._options.epochs
        return self._iterate(self._iteration, None if epochs is None else self._position.epoch + epochs)

    def resume(self, *, until_epoch: int | None) -> Iterator[Batch]:
        """Go on with an iteration that was begun elsewhere, and end it before this epoch; None: without end."""
        self._abandon()
        return self._iterate(self._iteration, until_epoch)

    def set_epoch(self, epoch: int) -> None:
        """Go to the beginning of an epoch."""
        self._abandon()
        self._position.start(epoch)

    def skipped(self) -> list[SkippedRows]:
        """Return the rows that could not be read so far and were left out; they count as delivered."""
        return [] if self._skips is None else self._skips.listed()

    def state_dict(self) -> State:
        """Return exactly what was delivered, as values that JSON can hold."""
        return self._position.to_state()

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Go to where the state was taken; an iteration that is under way must be begun again."""
        self._position.restore(state)
        self._abandon()

    def close(self) -> None:
        """End threads and processes; iterating again would start new ones."""
        self._abandon()
        if self._workers is not None:
            self._workers.close()

    def _abandon(self) -> None:
        self._iteration += 1
        if self._prefetch is not None:
            self._prefetch.close()
            self._prefetch = None
        if self._workers is not None:
            self._workers.abandon()

    def _iterate(self, iteration: int, until_epoch: int | None) -> Iterator[Batch]:
        self._check_alive(iteration)
        empty_epochs = 0
        while until_epoch is None or self._position.epoch < until_epoch:
            epoch = self._position.epoch
            empty_epochs += 1
            for work, arrays in self._epoch_batches(epoch):
                self._position.record(epoch, work)
                self._delivered_rows += sum(stop - start for _, start, stop in work)
                if arrays is not None:
                    empty_epochs = 0
                    yield convert(dict(arrays), self._options.to)
                    self._check_alive(iteration)
            self._position.end(epoch)
            # The first may have been the rest of an epoch.
            if until_epoch is None and empty_epochs > 1:
                raise ValueError(
                    f"epoch {epoch} has no batch for this loader, and it would be searched for without end; use a "
                    "smaller batch_size or shard_size, fewer ranks or workers, or a filter that leaves something"
                )

    def _check_alive(self, iteration: int) -> None:
        if self._iteration != iteration:
            raise RuntimeError("this iteration is over: the loader was iterated, moved or closed since it began")

    def _epoch_batches(self, epoch: int) -> Iterator[tuple[list[Row], Mapping[str, Any] | None]]:
        """Yield each batch with its work; None in place of one that has no rows and is passed over."""
        options = self._options
        prefetch = Prefetch(
            self._dealer, self._source, epoch, threads=options.threads, limit_bytes=options.prefetch_bytes
        )
        self._prefetch, self._delivered_rows = prefetch, 0
        try:
            batches = cut_batches(
                iter(prefetch),
                batch_size=options.batch_size,
                row_is_batch=self._row_is_batch,
                drop_last=options.drop_last,
            )
            if self._workers is not None:
                yield from self._workers.run(batches, partial(self._source.locate, epoch))
                return
            for batch in batches:
                is_shown = batch.columns.num_rows > 0 or self._row_is_batch
                yield batch.work, batch.columns.to_numpy() if is_shown else None
        finally:
            prefetch.close()
