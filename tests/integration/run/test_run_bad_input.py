"""What cannot work is refused at once, with an error that says what to do."""

from __future__ import annotations

import shutil
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import strata
from strata.client.unary import configure_job
from strata.errors import (
    ConfigError,
    DatasetChangedError,
    DuplicateWorkerError,
    ForeignCheckpointError,
    ProtocolMismatchError,
    StateMismatchError,
    WorldSizeError,
)
from tests.testbed.coordinator import CoordinatorProcess


@pytest.fixture
def url(tmp_path: Path) -> Iterator[str]:
    coordinator = CoordinatorProcess(tmp_path)
    with coordinator.serving():
        yield coordinator.url


def join(url: str, tmp_path: Path, worker_id: str = "w", **fields: Any) -> strata.run.loop.run.Run:
    return strata.join(coordinator_url=url, worker_id=worker_id, checkpoints=tmp_path / "checkpoints", **fields)


def write_rows(folder: Path, name: str, count: int = 10) -> Path:
    folder.mkdir(exist_ok=True)
    pq.write_table(pa.table({"id": np.arange(count)}), folder / name)
    return folder


def test_without_a_coordinator_it_says_how_to_run_alone() -> None:
    with pytest.raises(ConfigError, match=r"COORDINATOR_URL.*local=True"):
        strata.join()


def test_a_cadence_that_cannot_be_kept_is_refused_before_anything_starts() -> None:
    with pytest.raises(ValueError, match="save_every"):
        strata.join(save_every="often")


def test_a_world_that_is_too_small_for_the_job_is_refused(url: str, tmp_path: Path) -> None:
    configure_job(url, "default", min_workers=4, max_workers=None)
    with pytest.raises(WorldSizeError, match=r"WORLD_SIZE=2.*needs 4 workers"):
        join(url, tmp_path, world_size=2, rank=0)


def test_of_two_workers_with_one_name_the_older_is_told(url: str, tmp_path: Path) -> None:
    with join(url, tmp_path) as older, join(url, tmp_path) as newer:
        assert newer.world_size == 1
        with pytest.raises(DuplicateWorkerError, match="its own WORKER_ID"):
            for attempt in range(600):
                older.restore({"x": np.zeros(1)})
                older.step(attempt + 1)
                time.sleep(0.05)


def test_a_coordinator_of_another_version_is_refused(url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("strata.client.driver.PROTOCOL", 2)
    with pytest.raises(ProtocolMismatchError, match="update Strata on the coordinator"):
        join(url, tmp_path)


def test_a_state_that_the_checkpoint_does_not_fit_is_refused(url: str, tmp_path: Path) -> None:
    with join(url, tmp_path) as run:
        run.restore({"w": np.zeros(3)})
    with join(url, tmp_path) as run, pytest.raises(StateMismatchError, match="w: shape"):
        run.restore({"w": np.zeros(4)})


def test_a_checkpoint_of_another_job_is_refused(url: str, tmp_path: Path) -> None:
    with join(url, tmp_path, job_id="one") as run:
        run.restore({"w": np.zeros(3)})
    shutil.copytree(tmp_path / "checkpoints" / "one", tmp_path / "checkpoints" / "two")
    with join(url, tmp_path, job_id="two") as run, pytest.raises(ForeignCheckpointError, match="JOB_ID=one"):
        run.restore({"w": np.zeros(3)})


@pytest.mark.parametrize("change", ["more rows", "other files"])
def test_a_dataset_whose_files_changed_is_refused(url: str, tmp_path: Path, change: str) -> None:
    folder = write_rows(tmp_path / "data", "a.parquet")
    with join(url, tmp_path) as run:
        run.dataset(folder, batch_size=2)
    if change == "more rows":
        write_rows(folder, "a.parquet", 11)
    else:
        (folder / "a.parquet").rename(folder / "b.parquet")
    with join(url, tmp_path) as run, pytest.raises(DatasetChangedError, match="have changed"):
        run.dataset(folder, batch_size=2)


def test_two_datasets_of_one_name_are_refused(url: str, tmp_path: Path) -> None:
    folder = write_rows(tmp_path / "data", "a.parquet")
    with join(url, tmp_path) as run:
        run.dataset(folder, batch_size=2)
        with pytest.raises(ValueError, match="another name"):
            run.dataset(folder, batch_size=2)


def test_a_global_order_needs_the_size_of_the_global_batch(url: str, tmp_path: Path) -> None:
    with join(url, tmp_path) as run, pytest.raises(ValueError, match="global_batch_size"):
        run.dataset(write_rows(tmp_path / "data", "a.parquet"), order="global", batch_size=2)
