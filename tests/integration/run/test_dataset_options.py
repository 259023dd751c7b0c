"""Workers that would share a dataset out differently are refused, and a mixture is shared out as any dataset is."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import strata
from strata import Mixture, open_dataset
from strata.data.text.assembled import AssembledDataset, pack_dataset
from strata.errors import DatasetOptionsError, SavedDatasetError
from tests.testbed.coordinator import CoordinatorProcess
from tests.testbed.process import STRATA, run_program


@pytest.fixture
def url(tmp_path: Path) -> Iterator[str]:
    coordinator = CoordinatorProcess(tmp_path)
    with coordinator.serving():
        yield coordinator.url


def join(url: str, tmp_path: Path, worker_id: str = "w", **fields: Any) -> strata.run.loop.run.Run:
    return strata.join(coordinator_url=url, worker_id=worker_id, checkpoints=tmp_path / "checkpoints", **fields)


def write_rows(folder: Path, count: int, *, first: int = 0) -> Path:
    folder.mkdir()
    ids = np.arange(first, first + count)
    pq.write_table(pa.table({"id": ids, "twice": 2 * ids}), folder / "a.parquet", row_group_size=16)
    return folder


def is_even(batch: dict[str, Any]) -> Any:
    return batch["id"] % 2 == 0


def is_odd(batch: dict[str, Any]) -> Any:
    return batch["id"] % 2 == 1


def test_a_worker_with_other_options_is_refused_by_the_name_of_the_option_and_of_both_workers(
    url: str, tmp_path: Path
) -> None:
    folder = write_rows(tmp_path / "data", 40)
    options = {"order": "global", "global_batch_size": 8, "block_size": 2, "columns": ["id"], "filter": is_even}
    with join(url, tmp_path, "anna") as first:
        first.dataset(folder, **options)
        for option, value in (
            ("global_batch_size", 12),
            ("block_size", 1),
            ("drop_last", True),
            ("columns", ["id", "twice"]),
            ("filter", is_odd),
            ("filter", lambda batch: batch["id"] > 3),
            ("filter", None),
            ("seed", 5),
            ("shuffle", False),
            ("shard_size", 8),
            ("window_shards", 4),
            ("order", "sticky"),
        ):
            other = {**options, option: value}
            if value == "sticky":
                other |= {"global_batch_size": None, "batch_size": 8}
            with join(url, tmp_path, "bert") as second, pytest.raises(DatasetOptionsError) as caught:
                second.dataset(folder, **other)
            assert (caught.value.option, caught.value.worker_id, caught.value.first) == (option, "bert", "anna")
            assert f"worker 'bert' has {option}=" in str(caught.value)
            assert "DatasetParams(" not in str(caught.value)
        with join(url, tmp_path, "bert") as second:
            second.dataset(folder, threads=1, **options)


def test_options_of_an_earlier_run_are_named_as_such_and_it_can_be_forgotten(url: str, tmp_path: Path) -> None:
    folder = write_rows(tmp_path / "data", 40)
    options = {"order": "global", "global_batch_size": 8}
    with join(url, tmp_path, "worker-0") as run:
        run.dataset(folder, **options)
    with join(url, tmp_path, "worker-0") as first, join(url, tmp_path, "worker-1") as second:
        first.refresh()
        for run in (first, second):
            with pytest.raises(
                DatasetOptionsError, match=r"an earlier run of job 'default' \(worker 'worker-0', "
            ) as caught:
                run.dataset(folder, **{**options, "global_batch_size": 4})
            assert caught.value.is_earlier_run
            assert "'strata job rm default'" in str(caught.value)
    assert run_program([STRATA, "job", "rm", "default", "--coordinator", url], capture_output=True).returncode == 0
    with join(url, tmp_path, "worker-0") as run:
        run.dataset(folder, **{**options, "global_batch_size": 4})


def test_a_checkpoint_that_was_saved_with_other_parameters_is_named_as_such(url: str, tmp_path: Path) -> None:
    folder = write_rows(tmp_path / "data", 40)
    with join(url, tmp_path, save_every="1 step") as run:
        dataset, state = run.dataset(folder, order="global", global_batch_size=8, seed=1, name="d"), {"x": np.zeros(1)}
        for _ in run.steps(state, dataset, until=2):
            state["x"] += 1
    assert run_program([STRATA, "job", "rm", "default", "--coordinator", url], capture_output=True).returncode == 0
    with join(url, tmp_path, save_every="1 step") as run:
        dataset = run.dataset(folder, order="global", global_batch_size=8, seed=2, name="d")
        with pytest.raises(SavedDatasetError, match=r"'d' has seed=2, but the checkpoint .* was saved with seed=1; "):
            next(run.steps(state, dataset, until=3))


def test_in_sticky_order_each_worker_gets_batches_of_its_own_size(url: str, tmp_path: Path) -> None:
    folder = write_rows(tmp_path / "data", 40)
    with join(url, tmp_path, "anna") as first, join(url, tmp_path, "bert") as second:
        first.refresh()
        batches = [
            next(iter(run.dataset(folder, batch_size=size, shard_size=10))) for run, size in ((first, 4), (second, 8))
        ]
        assert [len(batch["id"]) for batch in batches] == [4, 8]


def mixed(folders: list[Path], weights: tuple[float, ...] = (2, 1), **options: Any) -> Mixture:
    datasets = [open_dataset(folder, batch_size=10, order="global", **options) for folder in folders]
    return Mixture(datasets, weights, seed=3)


@pytest.mark.parametrize("is_local", [False, True])
def test_a_mixture_in_a_run_is_what_it_is_outside_and_goes_on_at_its_checkpoint(
    url: str, tmp_path: Path, is_local: bool
) -> None:
    folders = [write_rows(tmp_path / "web", 90), write_rows(tmp_path / "code", 60, first=1_000)]
    expected = [batch["id"].tolist() for batch in mixed(folders, epochs=2)]
    where = {"local": True} if is_local else {"coordinator_url": url, "worker_id": "w"}
    seen = []
    for until in (5, 14, 19, None):
        with strata.join(checkpoints=tmp_path / "checkpoints", save_every="1000 steps", **where) as run:
            dataset = run.dataset(mixed(folders), name="pile")
            assert dataset.num_rows == 135
            state = {"x": np.zeros(1)}
            for step in run.steps(state, dataset, epochs=2, until=until):
                state["x"] += 1
                seen.append(step.batch["id"].tolist())
    assert seen == expected


def test_a_mixture_of_other_weights_is_refused(url: str, tmp_path: Path) -> None:
    folders = [write_rows(tmp_path / "web", 90), write_rows(tmp_path / "code", 60, first=1_000)]
    with join(url, tmp_path, "anna") as first, join(url, tmp_path, "bert") as second:
        first.dataset(mixed(folders), name="pile")
        with pytest.raises(DatasetOptionsError, match=r"'bert'.*'anna'"):
            second.dataset(mixed(folders, (2, 2)), name="pile")
        with pytest.raises(TypeError, match="'batch_size' is an option for opening"):
            second.dataset(mixed(folders), name="other", batch_size=3)
        with pytest.raises(ValueError, match="without rank and world_size"):
            second.dataset(mixed(folders, rank=1, world_size=2), name="other")


def keep_from(first: int) -> Any:
    return lambda batch: batch["id"] >= first


def test_workers_that_would_pack_other_tokens_are_refused_by_the_name_of_the_option(url: str, tmp_path: Path) -> None:
    folder = tmp_path / "data"
    folder.mkdir()
    tokens = [[number] * 3 for number in range(40)]
    pq.write_table(pa.table({"id": range(40), "tokens": tokens, "others": tokens}), folder / "a.parquet")

    def packed(*, first: int = 0, **options: Any) -> AssembledDataset:
        documents = open_dataset(folder, batch_size=4, order="global", filter=keep_from(first))
        return pack_dataset(documents, **{"sequence_length": 8, "batch_size": 2, **options})

    with join(url, tmp_path, "anna") as anna, join(url, tmp_path, "bert") as bert:
        anna.dataset(packed(), name="pile")
        for option, value in (("column", "others"), ("pad_id", 9), ("drop_last", True), ("batch_size", 4)):
            with pytest.raises(DatasetOptionsError) as caught:
                bert.dataset(packed(**{option: value}), name="pile")
            fields = caught.value
            assert (fields.option, fields.worker_id, fields.first) == (f"assembled.{option}", "bert", "anna")
        with pytest.raises(DatasetOptionsError, match=r"'bert' has filter=.*first=1.*'anna'.*first=0"):
            bert.dataset(packed(first=1), name="pile")
        bert.dataset(packed(), name="pile")
