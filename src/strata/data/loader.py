"""The loader: from work that is dealt to batches that are delivered, each exactly once."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from strata.data.batches import Batch, Target, check_target, convert, cut_batches
from strata.data.dealer import Dealer
from strata.data.pages import PageSource
from strata.data.position import Row, State, Tracker
from strata.data.prefetch import Prefetch
from strata.data.skips import SkippedRows, Skips
from strata.data.workers import Filter, Transform, Work, Workers

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
    transform: Transform | None = None
    to: Target = "numpy"
    epochs: int | None = 1
    prefetch_bytes: int = DEFAULT_PREFETCH_BYTES
    threads: int = DEFAULT_THREADS
    processes: int = 0

    def __post_init__(self) -> None:
        for name in ("batch_size", "prefetch_bytes", "threads", "epochs"):
            value = getattr(self, name)
            if value is not None and value < 1:
                raise ValueError(f"{name} is {value}; use 1 or more")
        if self.processes < 0:
            raise ValueError(f"processes is {self.processes}; use 0 or more")
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
        position: Tracker,
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
        self._workers: Workers | None = None
        if options.filter or options.transform:
            work = Work(options.filter, options.transform, keep_empty=row_is_batch)
            self._workers = Workers(work, threads=options.threads, processes=options.processes)
        self._prefetch: Prefetch | None = None
        self._iteration = 0

    @property
    def epoch(self) -> int:
        """The epoch that the next batch is of."""
        return self._position.epoch

    def __iter__(self) -> Iterator[Batch]:
        self._abandon()
        return self._iterate(self._iteration)

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

    def _iterate(self, iteration: int) -> Iterator[Batch]:
        left = self._options.epochs
        self._check_alive(iteration)
        while left is None or left > 0:
            epoch = self._position.epoch
            for work, arrays in self._epoch_batches(epoch):
                self._position.record(epoch, work)
                if arrays is not None:
                    yield convert(dict(arrays), self._options.to)
                    self._check_alive(iteration)
            self._position.end(epoch)
            left = None if left is None else left - 1

    def _check_alive(self, iteration: int) -> None:
        if self._iteration != iteration:
            raise RuntimeError("this iteration is over: the loader was iterated, moved or closed since it began")

    def _epoch_batches(self, epoch: int) -> Iterator[tuple[list[Row], Mapping[str, Any] | None]]:
        """Yield each batch with its work; None in place of one that has no rows and is passed over."""
        options = self._options
        prefetch = Prefetch(
            self._dealer, self._source, epoch, threads=options.threads, limit_bytes=options.prefetch_bytes
        )
        self._prefetch = prefetch
        try:
            batches = cut_batches(
                iter(prefetch),
                batch_size=options.batch_size,
                row_is_batch=self._row_is_batch,
                drop_last=options.drop_last,
            )
            if self._workers is not None:
                yield from self._workers.run(batches)
                return
            for batch in batches:
                is_shown = batch.columns.num_rows > 0 or self._row_is_batch
                yield batch.work, batch.columns.to_numpy() if is_shown else None
        finally:
            prefetch.close()
