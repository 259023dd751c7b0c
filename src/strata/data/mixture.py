"""Several datasets as one: which of them each sample is from follows from (seed, epoch, position) alone."""

from __future__ import annotations

import copy
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, fields
from fractions import Fraction
from typing import Any, Literal

import numpy as np

from strata.data.dataset import Dataset
from strata.data.dataset_plan import Plan
from strata.data.draws import ENDLESS, Draws, Stage, find_total
from strata.data.loading.pages import Ints, Page, PageReader, PageSource, Row, batches_per_page, interleave, span_places
from strata.data.loading.position import State
from strata.data.option_checks import check_choice, check_weights, check_whole
from strata.data.rows.columns import Columns
from strata.data.rows.row_sequence import Rows
from strata.data.rows.skips import SkippedRows, Skips
from strata.sharding.cursor import Spans
from strata.sharding.order import DataOrder
from strata.sharding.shard_layout import ShardLayout

WhenExhausted = Literal["stop", "repeat"]


@dataclass(frozen=True, kw_only=True)
class MixturePlan(Plan):
    """A plan whose samples are drawn from several datasets."""

    sources: tuple[Plan, ...]
    draws: Draws
    when_exhausted: WhenExhausted

    def count_batches(self) -> int | None:
        """Return how many batches the share gets of an epoch; None if it has no end."""
        return None if self.when_exhausted == "repeat" else super().count_batches()

    def agreement(self) -> dict[str, Any]:
        """Return all that decides which worker gets which sample, as values that JSON can hold."""
        mixed = self.fingerprint()
        files = [source.pop("files") for source in mixed["datasets"]]
        splits = [source.split for source in self.sources]
        return super().agreement() | mixed | {"files": files, "split": splits if any(splits) else None}

    def fingerprint(self) -> State:
        """Return what a saved position depends on, as values that JSON can hold."""
        return {
            "seed": self.draws.seed,
            "stages": [[stage.start, list(stage.weights)] for stage in self.draws.stages],
            "when_exhausted": self.when_exhausted,
            "datasets": [source.fingerprint() for source in self.sources],
        }

    def advise(self, saved: Mapping[str, Any]) -> str:
        """Return which global batch was meant, if the stages of a saved position may be the same in steps."""
        here = self.fingerprint()
        meant = _find_global_batch(saved.get("stages"), here["stages"], self.global_batch_size)
        if meant is None or {**saved, "stages": here["stages"]} != here:
            return ""
        return (
            "stages begin at steps, counted in samples by the global batch: if they are the same in steps, it was "
            f"{meant} and is {self.global_batch_size}, so open the datasets of the mixture with "
            f"global_batch_size={meant} (by default it is batch_size * world_size)"
        )


class MixedRows:
    """The rows of all datasets of a mixture, one dataset after the other."""

    def __init__(self, parts: Sequence[Rows]) -> None:
        self.parts = tuple(parts)
        self.starts = np.cumsum([0, *(part.num_rows for part in parts)])

    def __copy__(self) -> MixedRows:
        return MixedRows([copy.copy(part) for part in self.parts])

    @property
    def num_rows(self) -> int:
        """How many rows all of them have."""
        return int(self.starts[-1])

    @property
    def left_out(self) -> list[SkippedRows]:
        """Files of all of them that were left out because they could not be understood."""
        return [rows for part in self.parts for rows in getattr(part, "left_out", ())]

    @property
    def names(self) -> tuple[str, ...]:
        """The names of the columns, which all have."""
        return self.parts[0].names

    def read(self, start: int, stop: int, columns: Sequence[str] | None = None) -> Columns:
        """Return rows [start, stop)."""
        found = []
        for part, begin in zip(self.parts, self.starts.tolist(), strict=False):
            low, high = max(start - begin, 0), min(stop - begin, part.num_rows)
            if low < high:
                found.append(part.read(low, high, columns))
        return Columns.concat(found) if found else self.parts[0].read(0, 0, columns)


class Mixture(Dataset):
    """Batches that mix several datasets by weight, sample by sample; usable wherever a dataset is.

    The same global batches come for any number of ranks, as in ``global`` order. Each iteration is one epoch of the
    mixture; if datasets repeat, it has no end.
    """

    def __init__(
        self,
        datasets: Sequence[Dataset],
        weights: Sequence[float],
        *,
        seed: int = 0,
        when_exhausted: WhenExhausted = "stop",
        stages: Mapping[int, Sequence[float]] | None = None,
    ) -> None:
        """Mix datasets that were opened with ``order="global"`` and with the same options for batches.

        ``when_exhausted``: an epoch stops before the first sample that its dataset does not have, or the dataset begins
        its next epoch. ``stages`` are other weights from certain steps on, such as ``{10_000: [1, 1]}``, for a mixture
        that repeats.
        """
        check_choice("when_exhausted", when_exhausted, ("stop", "repeat"))
        seed = check_whole("seed", seed, least=0)
        _check_alike(datasets)
        first = datasets[0].plan
        every = _read_stages(weights, stages, count=len(datasets), global_batch_size=first.global_batch_size)
        if len(every) > 1 and when_exhausted == "stop":
            raise ValueError(
                "stages are for when_exhausted='repeat': with 'stop', epochs would end at other places for each stage"
            )
        sizes = [dataset.num_rows for dataset in datasets]
        total = find_total(every[0].weights, sizes) if when_exhausted == "stop" else ENDLESS
        page_rows = max(dataset.plan.layout.shard_size for dataset in datasets)
        layout = ShardLayout(
            total_samples=total,
            # A shard means nothing here but how many rows are read at once, and there must not be too many of them.
            shard_size=max(page_rows, total >> 30),
            shuffle=False,
            seed=seed,
            data_order=DataOrder.GLOBAL,
        )
        plan = MixturePlan(
            **{field.name: getattr(first, field.name) for field in fields(Plan)}
            | {"layout": layout, "files": "", "split": None},
            sources=tuple(dataset.plan for dataset in datasets),
            draws=Draws(seed, every, total),
            when_exhausted=when_exhausted,
        )
        super().__init__(MixedRows([dataset.rows for dataset in datasets]), plan)

    @property
    def sources(self) -> tuple[Plan, ...]:
        """The plans of the datasets that are mixed."""
        assert isinstance(self._plan, MixturePlan)
        return self._plan.sources

    @property
    def source_starts(self) -> list[int]:
        """From which row of all on each dataset has its rows, in what :meth:`skipped` returns."""
        assert isinstance(self._rows, MixedRows)
        starts: list[int] = self._rows.starts[:-1].tolist()
        return starts

    def _page_source(self, skips: Skips | None) -> PageSource:
        assert isinstance(self._plan, MixturePlan)
        assert isinstance(self._rows, MixedRows)
        return _MixtureReader(self._rows, self._plan, skips)


class _MixtureReader:
    """Reads pages of a mixture: of each dataset the next rows of its own epoch, then all in the order drawn."""

    def __init__(self, rows: MixedRows, plan: MixturePlan, skips: Skips | None) -> None:
        self._readers = [
            PageReader(part, source.layout, columns=source.columns, skips=None if skips is None else skips.after(start))
            for part, source, start in zip(rows.parts, plan.sources, rows.starts.tolist(), strict=False)
        ]
        self._sizes = [part.num_rows for part in rows.parts]
        self._draws = plan.draws
        self._page_rows = max(source.layout.shard_size for source in plan.sources)

    def plan(self, spans: Spans) -> Iterator[Spans]:
        if len(spans):
            size = batches_per_page(spans, self._page_rows)
            yield from (spans[at : at + size] for at in range(0, len(spans), size))

    def locate(self, epoch: int, work: Sequence[Row]) -> str:
        return "; ".join(
            f"datasets[{source}], {reader.locate_samples(number, positions)}"
            for source, reader, number, positions, _ in self._pieces(epoch, np.array(work, dtype=np.int64))
        )

    def read(self, epoch: int, spans: Spans) -> Page:
        parts, places = [], []
        for _, reader, number, positions, at in self._pieces(epoch, spans):
            parts.append(reader.gather(number, positions))
            places.append(at)
        return interleave(parts, places) if parts else self._readers[0].gather(epoch, np.empty(0, dtype=np.int64))

    def _pieces(self, epoch: int, spans: Spans) -> Iterator[tuple[int, PageReader, int, Ints, Ints]]:
        """Yield (dataset, its reader, its epoch, positions in that, and at which places of the page they stand)."""
        first, last = int(spans[0, 1]), int(spans[-1, 2])
        before, sources = self._draws.counts_before(epoch, first), self._draws.sources_at(epoch, first, last)
        wanted = span_places(spans) - first
        for source, (reader, size) in enumerate(zip(self._readers, self._sizes, strict=True)):
            mine = np.flatnonzero(sources[wanted] == source)
            # Samples of this dataset that stand before each place, those of other ranks among them.
            numbers = int(before[source]) + np.cumsum(sources == source)[wanted[mine]] - 1
            passes, positions = np.divmod(numbers, size)
            for number in np.unique(passes).tolist():
                chosen = passes == number
                yield source, reader, epoch + number, positions[chosen], mine[chosen]


def _check_alike(datasets: Any) -> None:
    """Raise an error that names the option in which two datasets differ that must not."""
    if not isinstance(datasets, list | tuple) or not datasets:
        raise TypeError(f"datasets is {datasets!r}; use a list of what strata.data.open_dataset returned")
    for number, dataset in enumerate(datasets):
        if not isinstance(dataset, Dataset) or isinstance(dataset, Mixture):
            raise TypeError(
                f"datasets[{number}] is a {type(dataset).__name__}; give what strata.data.open_dataset returned"
            )
        if not dataset.plan.layout.is_global:
            raise ValueError(f"datasets[{number}] has order='{dataset.plan.layout.data_order}'; open it with 'global'")
        for name, mine in _shared_options(dataset).items():
            theirs = _shared_options(datasets[0])[name]
            if mine != theirs:
                raise ValueError(
                    f"{name} is {theirs!r} in datasets[0] and {mine!r} in datasets[{number}]; give all datasets of a "
                    "mixture the same"
                )


def _shared_options(dataset: Dataset) -> dict[str, Any]:
    plan = dataset.plan
    return {
        **{field.name: getattr(plan.options, field.name) for field in fields(plan.options)},
        "rank": plan.share.rank,
        "world_size": plan.share.world_size,
        "global_batch_size": plan.global_batch_size,  # after what its default is made of
        "on_error": plan.on_error,
        "nulls": plan.nulls,
        "columns": dataset.names,
    }


def _read_stages(
    weights: Sequence[float], stages: Mapping[int, Sequence[float]] | None, *, count: int, global_batch_size: int
) -> tuple[Stage, ...]:
    read = [Stage(0, check_weights("weights", weights, count=count))]
    if stages is None:
        return tuple(read)
    if not isinstance(stages, Mapping):
        raise TypeError(f"stages is {stages!r}; use a dict of weights by step, such as {{10_000: [1, 1]}}")
    for step in sorted(check_whole("a step of stages", step, least=1) for step in stages):
        later = check_weights(f"stages[{step}]", stages[step], count=count)
        read.append(Stage(step * global_batch_size, later))
    return tuple(read)


def _find_global_batch(saved: Any, here: list[Any], global_batch_size: int) -> int | None:
    """Return the global batch with which the stages here would be the saved ones; None if there is none."""
    match saved:
        case [_, [int(start), _], *_] if len(here) > 1:
            meant = Fraction(start * global_batch_size, here[1][0])
            is_same = saved == [[begin * meant / global_batch_size, weights] for begin, weights in here]
            return meant.numerator if is_same and meant.denominator == 1 else None
    return None
