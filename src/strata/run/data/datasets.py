"""All datasets of one worker's run, as one thing that is restored, collected and saved together."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from strata.checkpoint.load.restore import Restored
from strata.cluster.values import RankInfo
from strata.run.data.batch_numbers import BATCHES
from strata.run.team.protocol import Progress, Team

if TYPE_CHECKING:
    from strata.run.data.dataset_sources import DatasetOptions, Source
    from strata.run.data.run_dataset import RunDataset


class Datasets:
    """The datasets that a run has opened, by name."""

    def __init__(self) -> None:
        self._by_name: dict[str, RunDataset] = {}

    def open(
        self,
        team: Team,
        rank_info: RankInfo,
        source: Source,
        options: DatasetOptions,
        *,
        name: str | None,
        block_size: int,
    ) -> RunDataset:
        """Open a dataset and take it in; a name is given once."""
        # Imported here: a loop that brings its own batches needs no pyarrow.
        from strata.run.data.run_dataset import RunDataset

        dataset = RunDataset.open(team, rank_info, source, name=name, block_size=block_size, options=options)
        if dataset.name in self._by_name:
            raise ValueError(f"this run has a dataset {dataset.name!r} already; give one of them another name")
        self._by_name[dataset.name] = dataset
        return dataset

    @property
    def epoch(self) -> int:
        """The epoch that the run is in."""
        return max((dataset.epoch for dataset in self._by_name.values()), default=0)

    @property
    def passed(self) -> int:
        """How many batches were passed over since the last step; their numbers are those of no step."""
        return max((dataset.passed for dataset in self._by_name.values()), default=0)

    def restore(self, rank_info: RankInfo, restored: Restored) -> None:
        """Go to where a checkpoint was taken."""
        for dataset in self._by_name.values():
            dataset.restore(rank_info, restored)

    def collect(self, step: int) -> int:
        """Count what was delivered until now as seen by the model of this step; return how many samples that are."""
        return sum(dataset.collect(step) for dataset in self._by_name.values())

    def take_progress(self) -> list[Progress]:
        """Return what was collected since the last call."""
        return [each for dataset in self._by_name.values() for each in dataset.take_progress()]

    def cursors(self) -> dict[str, Any]:
        """Return what a checkpoint keeps of the position, and how batches are counted."""
        found: dict[str, Any] = {}
        for dataset in self._by_name.values():
            found.update(dataset.cursors())
        if self._by_name:
            found[BATCHES] = {name: dataset.describe_batches() for name, dataset in self._by_name.items()}
        return found

    def close(self) -> None:
        """End threads and processes."""
        for dataset in self._by_name.values():
            dataset.close()


def count_steps(dataset: RunDataset | None, *, epochs: int, until: int | None) -> int | None:
    """Return how many steps a loop has, if that is known beforehand."""
    per_epoch = None if dataset is None else dataset.steps_per_epoch
    if per_epoch is None:
        return until
    return epochs * per_epoch if until is None else min(until, epochs * per_epoch)
