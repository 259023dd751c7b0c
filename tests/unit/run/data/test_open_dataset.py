"""What ``run.dataset`` takes, what it makes known to the job, and what it refuses."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import closing
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from strata import Mixture, open_dataset
from strata.checkpoint.format.rewind_record import Rewind
from strata.checkpoint.load.restore import Restored
from strata.errors import RewindError
from strata.run.data.run_dataset import RunDataset
from strata.run.team.solo_team import LocalTeam
from strata.sharding import DatasetParams

ALONE = LocalTeam().enter()


class Registered(LocalTeam):
    """A team of one that keeps which datasets were made known, with how many rows and which files."""

    def __init__(self) -> None:
        super().__init__()
        self.known: dict[str, tuple[int, Any]] = {}

    def register(self, params: DatasetParams, *, options: Mapping[str, Any], url: str) -> None:
        self.known[params.dataset_id] = params.total_samples, options.get("files")


def write_rows(folder: Path, count: int) -> Path:
    folder.mkdir()
    pq.write_table(pa.table({"id": np.arange(count)}), folder / "a.parquet")
    return folder


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return write_rows(tmp_path / "data", 12)


def open_in_run(source: Any, team: LocalTeam | None = None, **options: Any) -> RunDataset:
    return RunDataset.open(team or LocalTeam(), ALONE, source, name="d", block_size=1, options=options)


@pytest.mark.parametrize(
    ("options", "error", "words"),
    [
        ({"batch_size": 2, "rank": 0}, TypeError, "rank is not an option here: the run knows it, and it may change"),
        ({"batch_size": 2, "world_size": 1}, TypeError, "world_size is not an option here"),
        ({}, ValueError, "run.dataset needs batch_size, or global_batch_size with order='global'"),
        ({"order": "global", "batch_size": 2}, ValueError, "order='global' needs global_batch_size"),
    ],
)
def test_options_that_cannot_work_in_a_run_are_refused(
    folder: Path, options: dict[str, Any], error: type[Exception], words: str
) -> None:
    with pytest.raises(error, match=words):
        open_in_run(folder, **options)


@pytest.fixture
def folders(tmp_path: Path) -> list[Path]:
    return [write_rows(tmp_path / "web", 90), write_rows(tmp_path / "code", 60)]


@pytest.mark.parametrize("on_error", ["skip", "raise"])
def test_the_datasets_of_a_mixture_are_known_by_themselves_where_their_rows_may_be_skipped(
    folders: list[Path], on_error: str
) -> None:
    datasets = [open_dataset(folder, batch_size=10, order="global", on_error=on_error) for folder in folders]
    team = Registered()
    with closing(open_in_run(Mixture(datasets, (2, 1), seed=3), team)) as mixed:
        assert team.known.pop("d")[0] == mixed.num_rows
    if on_error == "raise":
        assert team.known == {}
    else:
        assert {name: rows for name, (rows, _) in team.known.items()} == {"d.0": 90, "d.1": 60}
        web, code = (files for _, files in team.known.values())
        assert web
        assert code
        assert web != code, "each is known by its own files"


def test_a_rewind_that_skips_batches_is_refused_where_they_have_no_numbers(folder: Path) -> None:
    rewind = Rewind(number=1, from_step=9, to_step=3, at_s=0.0, dataset="d", skips=((5, 6),))
    restored = Restored({}, step=3, epoch=0, metadata={}, cursors={}, generation=1, job_id="llm", rewinds=(rewind,))
    with closing(open_in_run(folder, batch_size=2, order="sticky")) as dataset, pytest.raises(RewindError) as caught:
        dataset.restore(ALONE, restored)
    assert caught.value.job_id == "llm"
    assert "it skips batches of dataset 'd', which have no numbers in sticky order" in str(caught.value)


def test_a_team_of_one_is_never_disturbed() -> None:
    team = LocalTeam()
    team.request_stop(ALONE)
    assert not team.is_stop_requested(ALONE)
    assert team.exchange(ALONE, "name", b"mine", timeout_s=None) == [b"mine"]
    assert team.look() is None
