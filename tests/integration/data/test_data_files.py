"""Batches from real files: whole, cut short, skipped over, and resumed far into an epoch."""

from __future__ import annotations

import itertools
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from strata.data import merge_states, open_dataset
from strata.errors import CorruptFileError, PositionMismatchError

if TYPE_CHECKING:
    from collections.abc import Iterable
    from pathlib import Path

ROWS = 1_000


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    target = tmp_path / "data"
    target.mkdir()
    for number in range(4):
        first = number * 250
        table = pa.table(
            {
                "id": np.arange(first, first + 250),
                "x": pa.array([bytes([at % 256]) * 16 for at in range(first, first + 250)], type=pa.binary(16)),
                "text": [f"row {at}" for at in range(first, first + 250)],
            }
        )
        pq.write_table(table, target / f"{number}.parquet", row_group_size=50, compression="none")
    return target


def ids(batches: Iterable[dict[str, Any]]) -> list[int]:
    return [number for batch in batches for number in batch["id"].tolist()]


@pytest.mark.parametrize("order", ["sticky", "global", "dynamic"])
def test_rows_of_files_come_once_and_whole(folder: Path, order: str) -> None:
    for batch in (dataset := open_dataset(folder, batch_size=32, order=order)):
        assert (batch["x"] == (batch["id"] % 256)[:, None]).all()
        assert batch["text"].tolist() == [f"row {at}" for at in batch["id"]]
    assert dataset.plan.layout.shard_size == 50
    dataset.set_epoch(0)
    assert sorted(ids(dataset)) == list(range(ROWS))


def test_only_the_columns_asked_for_are_loaded(folder: Path) -> None:
    dataset = open_dataset(folder, batch_size=100, columns=["text"])
    assert dataset.names == ("text",)
    assert {tuple(batch) for batch in dataset} == {("text",)}


@pytest.mark.parametrize("order", ["sticky", "global"])
def test_a_damaged_row_group_is_an_error_or_is_skipped_and_named(folder: Path, order: str) -> None:
    path = folder / "2.parquet"
    group = pq.ParquetFile(path).metadata.row_group(3)
    data = bytearray(path.read_bytes())
    start = group.column(0).dictionary_page_offset or group.column(0).data_page_offset
    data[start : start + 200] = bytes([255]) * 200
    path.write_bytes(data)
    with pytest.raises(CorruptFileError, match=r"2\.parquet \(row group 3"):
        ids(open_dataset(folder, batch_size=32, order=order))
    dataset = open_dataset(folder, batch_size=32, order=order, on_error="skip")
    assert sorted(ids(dataset)) == [*range(650), *range(700, ROWS)]
    (skipped,) = dataset.skipped()
    assert skipped.file.endswith("2.parquet")
    assert (skipped.first_row, skipped.num_rows, skipped.start) == (150, 50, 650)
    assert dataset.epoch == 1


def test_a_position_is_of_its_files(folder: Path) -> None:
    dataset = open_dataset(folder, batch_size=32, shard_size=50)
    ids(itertools.islice(dataset, 3))
    state = dataset.state_dict()
    again = open_dataset(folder, batch_size=32, shard_size=50)
    again.load_state_dict(state)
    (folder / "3.parquet").rename(folder / "9.parquet")
    with pytest.raises(PositionMismatchError, match="files was"):
        open_dataset(folder, batch_size=32, shard_size=50).load_state_dict(state)


def test_a_position_at_ten_million_reads_one_shard_for_its_first_batch(tmp_path: Path) -> None:
    path = tmp_path / "tokens.bin"
    rows, width = 11_000_000, 4
    with path.open("wb") as file:
        file.truncate(rows * width * 2)
    options: dict[str, Any] = {"format": "tokens", "options": {"dtype": "uint16", "sequence_length": width}}
    for order, place in (("sticky", {"consumed": [0, 10_000_000]}), ("global", {"position": 10_000_000})):
        dataset = open_dataset(path, batch_size=64, order=order, threads=1, **options)
        dataset.load_state_dict(dataset.state_dict() | place)
        reads: list[int] = []
        read = dataset.rows.read
        dataset.rows.read = lambda start, stop, columns=None, read=read, reads=reads: (
            reads.append(stop - start) or read(start, stop, columns)
        )
        batch = next(iter(dataset))
        assert len(next(iter(batch.values()))) == 64
        # A page, one more that is read ahead, and in global order the shards of a window or two.
        assert sum(reads) <= 40 * dataset.plan.layout.shard_size
        dataset.close()


def test_ranks_share_files_and_their_states_meet(folder: Path) -> None:
    ranks = [open_dataset(folder, batch_size=16, rank=rank, world_size=3) for rank in range(3)]
    seen = [number for rank in ranks for number in ids(itertools.islice(rank, 4))]
    merged = merge_states(rank.state_dict() for rank in ranks)
    for rank in range(2):
        dataset = open_dataset(folder, batch_size=16, rank=rank, world_size=2)
        dataset.load_state_dict(merged)
        seen += ids(dataset)
    assert sorted(seen) == list(range(ROWS))


@pytest.mark.part("jax")
def test_batches_come_as_jax_arrays(folder: Path) -> None:
    import jax

    batch = next(iter(open_dataset(folder, batch_size=8, to="jax", shuffle=False, columns=["x", "text"])))
    assert isinstance(batch["x"], jax.Array)
    assert batch["x"].shape == (8, 16)
    assert batch["text"][3] == "row 3"
