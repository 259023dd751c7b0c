"""Several datasets as one stream: which of them each sample is from follows from (seed, epoch, position) alone."""

from __future__ import annotations

import threading
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from fractions import Fraction
from functools import cached_property
from typing import Any, Literal

import numpy as np

from strata.data.dataset import Dataset
from strata.data.dealer import Share, cut_global
from strata.data.loader import Loader
from strata.data.pages import Ints, Page, PageReader, interleave, span_places
from strata.data.position import Row, State
from strata.data.skips import Skips
from strata.errors import DamagedRecordError, PositionMismatchError
from strata.sharding.cursor import Spans
from strata.sharding.hashing import U64, mix_integers, spread

WhenExhausted = Literal["stop", "repeat"]

_VERSION = 1
# How far apart it is noted how many samples each dataset has given; what lies between is counted again.
_MARK_SAMPLES = 1 << 14
# Distinguishes the choice among datasets from the orders that are made of the same seed.
_CHOICE = 3
_CHUNK_BATCHES = 512


@dataclass(frozen=True)
class Draws:
    """Which dataset the sample at each position of a mixture is from."""

    seed: int
    weights: tuple[float, ...]

    def __post_init__(self) -> None:
        if not self.weights or any(not 0 < weight < float("inf") for weight in self.weights):
            raise ValueError(f"weights are {list(self.weights)}; give each dataset one that is greater than 0")

    @cached_property
    def _bounds(self) -> U64:
        shares = [Fraction(weight) for weight in self.weights]
        below = [sum(shares[: at + 1]) / sum(shares) for at in range(len(shares) - 1)]
        return np.array([int(bound * 2**64) for bound in below], dtype=np.uint64)

    def sources_at(self, epoch: int, start: int, stop: int) -> Ints:
        """Return the number of the dataset for each of positions [start, stop)."""
        drawn = spread(mix_integers(self.seed, epoch, _CHOICE), np.arange(start, stop))
        return np.searchsorted(self._bounds, drawn, side="right").astype(np.int64)

    def counts(self, epoch: int, start: int, stop: int) -> Ints:
        """Return how many of positions [start, stop) are from each dataset."""
        counts = np.zeros(len(self.weights), dtype=np.int64)
        for first in range(start, stop, _MARK_SAMPLES):
            sources = self.sources_at(epoch, first, min(first + _MARK_SAMPLES, stop))
            counts += np.bincount(sources, minlength=len(counts))
        return counts


class _Tally:
    """How many samples each dataset has given before a position; asking near a place asked before is cheap."""

    def __init__(self, draws: Draws) -> None:
        self._draws = draws
        self._lock = threading.Lock()
        self.start(0, 0, np.zeros(len(draws.weights), dtype=np.int64))

    def start(self, epoch: int, position: int, counts: Ints) -> None:
        """Begin anew from a place at which the counts are known."""
        with self._lock:
            self._epoch, self._position, self._marks = epoch, position, [counts]

    def at(self, epoch: int, position: int) -> Ints:
        """Return the counts before a position."""
        with self._lock:
            assert epoch == self._epoch
            mark = (position - self._position) // _MARK_SAMPLES
            while len(self._marks) <= mark:
                begin = self._position + (len(self._marks) - 1) * _MARK_SAMPLES
                self._marks.append(self._marks[-1] + self._draws.counts(epoch, begin, begin + _MARK_SAMPLES))
            known, begin = self._marks[mark], self._position + mark * _MARK_SAMPLES
        return known + self._draws.counts(epoch, begin, position)


class _MixturePosition:
    """Where a mixture is: one position for all ranks, and what each dataset has given up to there."""

    def __init__(self, fingerprint: dict[str, Any], tally: _Tally, *, global_batch_size: int) -> None:
        self._fingerprint = fingerprint
        self._tally = tally
        self._global_batch_size = global_batch_size
        self._nothing = tally.at(0, 0)
        self.start(0)

    @property
    def epoch(self) -> int:
        return self._epoch

    @property
    def position(self) -> int:
        # The other ranks have the rest of the same global batch, so all of it is behind us; but not more than there is.
        batches = -(-(self._stop - self._origin) // self._global_batch_size)
        return min(self._origin + batches * self._global_batch_size, self._end)

    def start(self, epoch: int) -> None:
        self._set(epoch, 0, self._nothing)

    def record(self, epoch: int, rows: Sequence[Row]) -> None:
        self._stop = rows[-1][2]

    def end(self, epoch: int) -> None:
        self.start(epoch + 1)

    def limit(self, end: int) -> None:
        """Keep where the epoch ends, once it is known."""
        self._end = end

    def to_state(self) -> State:
        drawn = self._tally.at(self._epoch, self.position)
        return {
            "version": _VERSION,
            "order": "mixture",
            "mixture": self._fingerprint,
            "epoch": self._epoch,
            "position": self.position,
            "drawn": drawn.tolist(),
        }

    def restore(self, state: Mapping[str, Any]) -> None:
        if (found := state.get("mixture")) != self._fingerprint:
            raise PositionMismatchError(found if isinstance(found, dict) else {}, self._fingerprint)
        match state:
            case {"version": 1, "epoch": int(epoch), "position": int(position), "drawn": list(drawn)} if (
                len(drawn) == len(self._nothing) and sum(drawn) == position >= 0 and epoch >= 0
            ):
                self._set(epoch, position, np.array(drawn, dtype=np.int64))
            case _:
                raise DamagedRecordError("data position", "it has not the fields of a mixture's position")

    def _set(self, epoch: int, position: int, drawn: Ints) -> None:
        self._epoch = epoch
        self._origin = self._stop = position
        self._end = 2**62
        self._tally.start(epoch, position, drawn)


class _MixtureDealer:
    """Deals positions of the mixture until a dataset has no more, or without end."""

    def __init__(
        self, draws: Draws, tally: _Tally, totals: Ints, position: _MixturePosition, share: Share, **cut: Any
    ) -> None:
        self._draws = draws
        self._tally = tally
        self._totals = totals
        self._position = position
        self._share = share
        self._cut = cut

    def deal(self, epoch: int) -> Iterator[Spans]:
        size = self._cut["global_batch_size"] * _CHUNK_BATCHES * self._share.num_workers
        start = self._position.position
        while True:
            stop = start + size
            if (self._tally.at(epoch, stop) > self._totals).any():
                stop = self._first_missing(epoch, start, stop)
                self._position.limit(stop)
                yield from cut_global(start, stop, share=self._share, **self._cut)
                return
            yield from cut_global(start, stop, share=self._share, **self._cut)
            start = stop

    def _first_missing(self, epoch: int, start: int, stop: int) -> int:
        """Return the first position whose dataset has given all it has."""
        sources = self._draws.sources_at(epoch, start, stop)
        left = self._totals - self._tally.at(epoch, start)
        beyond = [np.flatnonzero(sources == source)[count : count + 1] for source, count in enumerate(left.tolist())]
        return start + int(np.concatenate(beyond).min())


class _MixtureReader:
    """Reads pages of a mixture: of each dataset the next rows of its own epoch, then all in the order drawn."""

    def __init__(
        self, readers: Sequence[PageReader], totals: Ints, draws: Draws, tally: _Tally, page_rows: int
    ) -> None:
        self._readers = readers
        self._totals = totals.tolist()
        self._draws = draws
        self._tally = tally
        self._page_rows = page_rows

    def plan(self, spans: Spans) -> Iterator[Spans]:
        if len(spans):
            size = max(1, self._page_rows // int((spans[:, 2] - spans[:, 1]).max()))
            yield from (spans[at : at + size] for at in range(0, len(spans), size))

    def read(self, epoch: int, spans: Spans) -> Page:
        first, last = int(spans[0, 1]), int(spans[-1, 2])
        before, sources = self._tally.at(epoch, first), self._draws.sources_at(epoch, first, last)
        wanted = span_places(spans) - first
        parts, places = [], []
        for source, (reader, total) in enumerate(zip(self._readers, self._totals, strict=True)):
            mine = np.flatnonzero(sources[wanted] == source)
            # Samples of this dataset that stand before each place, those of other ranks among them.
            numbers = int(before[source]) + np.cumsum(sources == source)[wanted[mine]] - 1
            passes, positions = np.divmod(numbers, total)
            for number in np.unique(passes).tolist():
                chosen = passes == number
                parts.append(reader.gather(epoch + number, positions[chosen]))
                places.append(mine[chosen])
        return interleave(parts, places)


class Mixture(Loader):
    """Batches that mix several datasets by weight, sample by sample, and resume with any number of ranks.

    The same global batches come for any number of ranks, as in ``global`` order. Each iteration is one epoch of the
    mixture; if datasets repeat, it has no end. Its state is the same on every rank after the same step.
    """

    def __init__(
        self,
        datasets: Sequence[Dataset],
        weights: Sequence[float],
        *,
        seed: int = 0,
        when_exhausted: WhenExhausted = "stop",
    ) -> None:
        """Mix datasets that were opened with ``order="global"`` and with the same options for batches.

        ``when_exhausted``: a mixture stops before the first sample that its dataset does not have, or the dataset
        begins its next epoch.
        """
        if len(datasets) != len(weights) or not datasets:
            raise ValueError(f"{len(datasets)} datasets and {len(weights)} weights; give each dataset its weight")
        if when_exhausted not in ("stop", "repeat"):
            raise ValueError(f"when_exhausted is {when_exhausted!r}; use 'stop' or 'repeat'")
        plan = datasets[0].plan
        for dataset in datasets:
            if not dataset.plan.arrangement.is_global:
                raise ValueError("datasets in a mixture need order='global'; open each of them so")
            if (dataset.plan.options, dataset.plan.share) != (plan.options, plan.share):
                raise ValueError("datasets in a mixture need the same batch size, transform, rank and other options")
            if dataset.names != datasets[0].names:
                raise ValueError(f"columns are {datasets[0].names} and {dataset.names}; choose the same with columns=")
        draws = Draws(seed, tuple(map(float, weights)))
        tally = _Tally(draws)
        totals = np.array([dataset.num_rows for dataset in datasets], dtype=np.int64)
        limits = totals if when_exhausted == "stop" else np.full(len(totals), 2**62)
        fingerprint = {
            "seed": seed,
            "weights": list(draws.weights),
            "when_exhausted": when_exhausted,
            "datasets": [dataset.plan.fingerprint() for dataset in datasets],
        }
        cut = {"global_batch_size": plan.global_batch_size, "drop_last": plan.options.drop_last}
        skips = Skips() if plan.on_error == "skip" else None
        readers = [
            PageReader(each.rows, each.plan.arrangement, columns=each.plan.columns, skips=skips) for each in datasets
        ]
        page_rows = max(each.plan.arrangement.shard_size for each in datasets)
        position = _MixturePosition(fingerprint, tally, global_batch_size=plan.global_batch_size)
        super().__init__(
            _MixtureReader(readers, totals, draws, tally, page_rows),
            _MixtureDealer(draws, tally, limits, position, plan.share, **cut),
            position,
            plan.options,
            row_is_batch=True,
            skips=skips,
        )
