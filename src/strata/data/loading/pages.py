"""Pages: stretches of rows, read at once and put into the epoch's order, that batches are cut from."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Protocol

import numpy as np
import numpy.typing as npt

from strata.data.rows.columns import Columns
from strata.data.rows.row_sequence import DatasetRows, Rows
from strata.data.rows.skips import Skips
from strata.data.single_flight import SingleFlight
from strata.errors import CorruptFileError
from strata.sharding.cursor import Spans
from strata.sharding.shard_layout import ShardLayout

Ints = npt.NDArray[np.int64]
# One row (shard, start, stop) of work.
Row = tuple[int, int, int]
# How much of a batch an error names.
_NAMED_SAMPLES = 256
_NAMED_ROWS = 16


@dataclass(frozen=True, slots=True)
class Page:
    """Rows in the order in which batches take them.

    ``kept`` says which of them are there, ascending, where some could not be read and were skipped. ``read_bytes`` is
    what they took up when they were read, where the columns cannot say it.
    """

    columns: Columns
    kept: Ints | None = None
    read_bytes: int | None = None

    @property
    def size_bytes(self) -> int:
        """How many bytes the rows take up."""
        return self.columns.size_bytes if self.read_bytes is None else self.read_bytes

    def slice(self, start: int, stop: int) -> Columns:
        """Return what is there of places [start, stop)."""
        if self.kept is None:
            return self.columns.slice(start, stop)
        first, last = np.searchsorted(self.kept, (start, stop)).tolist()
        return self.columns.slice(first, last)


class PageSource(Protocol):
    """What a loader reads its pages from."""

    def plan(self, spans: Spans) -> Iterator[Spans]:
        """Cut work that was dealt into pages."""
        ...

    def read(self, epoch: int, spans: Spans) -> Page:
        """Return the rows of the spans, one after the other; called from several threads at once."""
        ...

    def locate(self, epoch: int, work: Sequence[Row]) -> str:
        """Say which rows of which files the work is, for people."""
        ...


class PageReader:
    """Reads each shard once, and only what was dealt of it, then puts its rows into the epoch's order in one copy.

    In ``global`` order a page takes rows from all shards of a window; these are kept until the window is behind.
    """

    def __init__(
        self, rows: Rows, layout: ShardLayout, *, columns: Sequence[str] | None = None, skips: Skips | None = None
    ) -> None:
        """With ``skips``, what cannot be read is noted there and left out; without, it is an error."""
        self._rows = rows
        self._layout = layout
        self._columns = columns
        self._skips = skips
        self._window = _ShardCache(self._read_shard, capacity=2 * layout.window_shards)

    def plan(self, spans: Spans) -> Iterator[Spans]:
        """Cut work into pages: one for each stretch of a shard, or for so many batches as have a shard's rows."""
        if not self._layout.is_global:
            yield from (spans[at : at + 1] for at in range(len(spans)))
        elif len(spans):
            size = batches_per_page(spans, self._layout.shard_size)
            yield from (spans[at : at + size] for at in range(0, len(spans), size))

    def read(self, epoch: int, spans: Spans) -> Page:
        """Return the rows of the spans in the epoch's order."""
        if self._layout.is_global:
            return self.gather(epoch, span_places(spans))
        ((shard, start, stop),) = spans.tolist()
        samples = self._layout.order(epoch=epoch).samples_of(shard, start, stop)
        if not self._layout.shuffle:
            return self._read(int(samples[0]), int(samples[-1]) + 1)
        first = int(samples.min())
        page = self._read(first, int(samples.max()) + 1)
        loose = _take(replace(page, columns=page.columns.with_objects()), samples - first)
        return replace(loose, read_bytes=page.size_bytes)

    def locate(self, epoch: int, work: Sequence[Row]) -> str:
        """Say which rows of which files the work is, for people."""
        order = self._layout.order(epoch=epoch)
        if self._layout.is_global:
            samples = order.samples_at(span_places(np.array(work, dtype=np.int64)))
        else:
            samples = np.concatenate([order.samples_of(*row) for row in work])
        return f"epoch {epoch}: {name_rows(self._rows, samples)}"

    def locate_samples(self, epoch: int, positions: Ints) -> str:
        """Say which rows of which files stand at these positions of an epoch."""
        return f"epoch {epoch}: {name_rows(self._rows, self._layout.order(epoch=epoch).samples_at(positions))}"

    def gather(self, epoch: int, places: Ints) -> Page:
        """Return the rows at these positions of the epoch; the shards that they are in are kept for the next call."""
        if not len(places):
            return Page(self._rows.read(0, 0, self._columns))
        samples = self._layout.order(epoch=epoch).samples_at(places)
        if samples[-1] - samples[0] == len(samples) - 1 and not self._layout.shuffle:
            return self._read(int(samples[0]), int(samples[-1]) + 1)
        size = self._layout.shard_size
        shards = samples // size
        by_shard = np.argsort(shards, kind="stable")
        distinct, begins = np.unique(shards[by_shard], return_index=True)
        pieces = dict(zip(distinct.tolist(), np.split(by_shard, begins[1:]), strict=True))
        # Threads that read neighbouring pages need the same shards: each begins at another one.
        turn = int(samples[0]) % len(pieces)
        names = [*pieces][turn:] + [*pieces][:turn]
        pages = {shard: self._window.get(shard) for shard in names}
        wanted = {shard: samples[piece] - shard * size for shard, piece in pieces.items()}
        if all(page.kept is None for page in pages.values()):
            parts = [pages[shard].columns for shard in pieces]
            return Page(Columns.gather(parts, [*wanted.values()], [*pieces.values()]))
        return interleave([_take(pages[shard], wanted[shard]) for shard in pieces], [*pieces.values()])

    def _read_shard(self, shard: int) -> Page:
        size = self._layout.shard_size
        return self._read(shard * size, min(shard * size + size, self._rows.num_rows))

    def _read(self, start: int, stop: int) -> Page:
        if self._skips is None:
            return Page(self._rows.read(start, stop, self._columns))
        try:
            return Page(self._rows.read(start, stop, self._columns))
        except CorruptFileError as error:
            return self._read_around(start, stop, error, self._skips)

    def _read_around(self, start: int, stop: int, error: CorruptFileError, skips: Skips) -> Page:
        """Read what can be read, block by block; rows that know no blocks are lost together."""
        if not isinstance(self._rows, DatasetRows):
            skips.note(start, error.path, start, stop - start, error)
            return self._nothing(start)
        parts, kept = [], []
        for place in self._rows.places(start, stop):
            try:
                parts.append(self._rows.read(place.start, place.stop, self._columns))
                kept.append(np.arange(place.start - start, place.stop - start))
            except CorruptFileError as inner:
                skips.note(place.start, place.path, place.first, place.stop - place.start, inner)
        return Page(Columns.concat(parts), np.concatenate(kept)) if parts else self._nothing(start)

    def _nothing(self, start: int) -> Page:
        return Page(self._rows.read(start, start, self._columns), np.empty(0, dtype=np.int64))


class _ShardCache:
    """The shards of a window, each read by whoever asks first while others wait for it."""

    def __init__(self, read: Callable[[int], Page], *, capacity: int) -> None:
        self._read = read
        self._capacity = capacity
        self._lock = threading.Lock()
        self._shards: dict[int, Page] = {}
        self._reading: SingleFlight[int, Page] = SingleFlight()

    def get(self, shard: int) -> Page:
        """Return the shard, or raise what reading it raised; then the next one who asks tries again."""
        return self._find(shard) or self._reading.get(shard, lambda: self._find(shard) or self._keep(shard))

    def _find(self, shard: int) -> Page | None:
        with self._lock:
            if (page := self._shards.pop(shard, None)) is not None:
                # The one asked for last stands last; the first goes when there are too many.
                self._shards[shard] = page
            return page

    def _keep(self, shard: int) -> Page:
        page = self._read(shard)
        with self._lock:
            self._shards[shard] = page
            while len(self._shards) > self._capacity:
                del self._shards[next(iter(self._shards))]
        return page


def name_rows(rows: Rows, samples: Ints) -> str:
    """Return the files of samples with the rows in them, the first few of each."""
    if not isinstance(rows, DatasetRows):
        return f"rows {_list_some(samples.tolist())} of {type(rows).__name__}"
    by_file: dict[str, list[int]] = {}
    for sample in samples[:_NAMED_SAMPLES].tolist():
        (place,) = rows.places(sample, sample + 1)
        by_file.setdefault(place.path, []).append(place.first)
    told = "; ".join(f"{path} rows {_list_some(found)}" for path, found in by_file.items())
    more = len(samples) - _NAMED_SAMPLES
    return f"{told}; and {more} rows more" if more > 0 else told


def _list_some(numbers: list[int]) -> str:
    shown = ", ".join(map(str, numbers[:_NAMED_ROWS]))
    return f"{shown} and {len(numbers) - _NAMED_ROWS} more" if len(numbers) > _NAMED_ROWS else shown


def _take(page: Page, places: Ints) -> Page:
    """Return the rows at these places, in this order."""
    if page.kept is None:
        return Page(page.columns.take(places))
    at = np.searchsorted(page.kept, places)
    there = np.flatnonzero(np.append(page.kept, -1)[at] == places)
    return Page(page.columns.take(at[there]), there)


def interleave(parts: Sequence[Page], places: Sequence[Ints]) -> Page:
    """Return one page of several, given at which places of it the rows of each stand."""
    if all(part.kept is None for part in parts):
        columns = [part.columns for part in parts]
        return Page(Columns.gather(columns, [np.arange(len(at)) for at in places], places))
    joined = Columns.concat([part.columns for part in parts])
    there = [at if part.kept is None else at[part.kept] for part, at in zip(parts, places, strict=True)]
    standing = np.concatenate(there)
    return Page(joined.take(np.argsort(standing)), np.sort(standing))


def batches_per_page(spans: Spans, page_rows: int) -> int:
    """Return how many of the batches make a page of about so many rows."""
    return max(1, page_rows // max(1, int((spans[:, 2] - spans[:, 1]).max())))


def span_places(spans: Spans) -> Ints:
    """Return all positions of rows (0, start, stop), one after the other."""
    return np.concatenate([np.arange(start, stop) for _, start, stop in spans.tolist()])
