"""Prepared datasets: the same rows in files of equal size, in order or in an order that depends on the seed alone."""

from __future__ import annotations

import contextlib
import fcntl
import json
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st

from strata import MemoryStorage
from strata.data.files.cache import Cache
from strata.data.files.source import UNFINISHED
from strata.data.prepare import rewrite as prepare_module
from strata.data.prepare import unfinished
from strata.data.prepare.rewrite import Plan, prepare
from strata.data.rows.row_sequence import DatasetRows, open_rows
from strata.errors import DataError, DatasetExistsError

ROWS = st.lists(
    st.fixed_dictionaries(
        {
            "n": st.integers(-(2**60), 2**60),
            "maybe": st.none() | st.integers(0, 9),
            "text": st.text(max_size=5),
            "pair": st.none() | st.lists(st.integers(0, 255), min_size=2, max_size=2),
            "grid": st.lists(
                st.lists(st.floats(width=32, allow_nan=False), min_size=3, max_size=3), min_size=2, max_size=2
            ),
            "words": st.lists(st.text(max_size=2), max_size=2),
        }
    ),
    min_size=1,
    max_size=30,
)
ROW = {"n": 1, "maybe": None, "text": "a", "pair": None, "grid": [[0.0] * 3] * 2, "words": []}
SCHEMA = pa.schema(
    {
        "n": pa.int64(),
        "maybe": pa.int32(),
        "text": pa.string(),
        "pair": pa.list_(pa.uint8(), 2),
        "grid": pa.list_(pa.list_(pa.float32(), 3), 2),
        "words": pa.list_(pa.string()),
    }
)


def as_rows(rows: DatasetRows) -> list[dict[str, Any]]:
    columns = rows.read(0, rows.num_rows)
    lists = {name: columns[name].tolist() for name in sorted(columns.names)}
    return [dict(zip(lists, values, strict=True)) for values in zip(*lists.values(), strict=True)]


@example(rows=[ROW, ROW, ROW], per_file=1, per_group=1, piece=1, shuffle=True)
@given(
    rows=ROWS, per_file=st.integers(1, 40), per_group=st.integers(1, 9), piece=st.integers(1, 9), shuffle=st.booleans()
)
@settings(max_examples=25, suppress_health_check=[HealthCheck.too_slow])
def test_every_row_is_written_once_in_even_files(
    tmp_path_factory: pytest.TempPathFactory,
    rows: list[dict[str, Any]],
    per_file: int,
    per_group: int,
    piece: int,
    shuffle: bool,
) -> None:
    folder = tmp_path_factory.mktemp("prepare")
    pq.write_table(pa.Table.from_pylist(rows, SCHEMA), folder / "a.parquet", row_group_size=5)
    source = open_rows(folder / "a.parquet", cache=Cache(folder / "cache"))
    with pytest.MonkeyPatch.context() as patched:
        # Pieces of a few rows, so that some have missing values and some have not.
        patched.setattr(prepare_module, "READ_BYTES", piece)
        plan = Plan(
            rows_per_file=per_file, rows_per_group=per_group, shuffle=shuffle, seed=7, arrays_as_bytes=piece % 2 == 0
        )
        done = prepare(source, str(folder / "out"), plan, cache=folder / "cache")
    made = open_rows(folder / "out", cache=Cache(folder / "cache"))
    expected, found = as_rows(source), as_rows(made)
    if shuffle:
        expected, found = (sorted(each, key=lambda row: json.dumps(row)) for each in (expected, found))
    assert found == expected
    sizes = np.diff(made.index.row_starts)
    assert len(sizes) == done.files == -(-len(rows) // per_file)
    assert sizes.max() - sizes.min() <= 1
    assert (
        max(pq.ParquetFile(path).metadata.row_group(0).num_rows for path in (folder / "out").glob("*.parquet"))
        <= per_group
    )


def test_a_shuffle_depends_on_the_seed_alone(tmp_path: Path) -> None:
    np.save(tmp_path / "a.npy", np.arange(5000))
    source = open_rows(tmp_path / "a.npy", cache=tmp_path / "cache")

    def order(name: str, **options: Any) -> list[int]:
        prepare(source, str(tmp_path / name), Plan(shuffle=True, **options), cache=tmp_path / "cache")
        made = open_rows(tmp_path / name, cache=tmp_path / "cache")
        found: list[int] = made.read(0, 5000)["data"].tolist()
        assert sorted(found) == list(range(5000))
        return found

    first = order("a", seed=1)
    assert order("b", seed=1, rows_per_file=333, rows_per_group=10) == first
    assert order("c", seed=2) != first
    # About one row in 5,000 stays where it is.
    assert sum(place == row for place, row in enumerate(first)) < 15


def test_arrays_are_written_as_bytes_and_come_back_as_arrays(tmp_path: Path) -> None:
    images = np.random.default_rng(0).integers(0, 255, (50, 4, 5), dtype=np.uint8)
    np.savez(tmp_path / "a.npz", image=images, label=np.arange(50, dtype=np.float16), sign=images[:, 0, 0] > 99)
    source = open_rows(tmp_path / "a.npz", cache=tmp_path / "cache")
    prepare(source, str(tmp_path / "out"), Plan(checksums=True), cache=tmp_path / "cache")
    found = open_rows(tmp_path / "out", options={"verify": True}, cache=tmp_path / "cache").read(10, 20)
    assert np.array_equal(found["image"], images[10:20])
    assert found["image"].dtype == np.uint8
    assert found["label"].dtype == np.float16
    assert found["sign"].dtype == np.bool_
    (path,) = (tmp_path / "out").glob("*.parquet")
    assert pq.read_schema(path).field("image").type == pa.binary(20)


@pytest.mark.parametrize("as_bytes", [True, False])
def test_a_prepared_dataset_with_missing_arrays_can_be_prepared_again(tmp_path: Path, as_bytes: bool) -> None:
    table = pa.table({"pair": pa.array([[1, 2], None, [3, 4]], pa.list_(pa.uint8(), 2))})
    pq.write_table(table, tmp_path / "a.parquet")
    source = open_rows(tmp_path / "a.parquet", cache=tmp_path / "cache")
    prepare(source, str(tmp_path / "once"), Plan(), cache=tmp_path / "cache")
    once = open_rows(tmp_path / "once", cache=tmp_path / "cache")
    prepare(once, str(tmp_path / "twice"), Plan(arrays_as_bytes=as_bytes), cache=tmp_path / "cache")
    twice = open_rows(tmp_path / "twice", cache=tmp_path / "cache")
    assert as_rows(twice) == as_rows(once) == as_rows(source)
    kept = open_rows(tmp_path / "twice", nulls="arrow", cache=tmp_path / "cache")
    assert kept.read(0, 3)["pair"].to_pylist() == table["pair"].to_pylist()


def test_what_cannot_be_prepared_is_refused_and_leaves_nothing(tmp_path: Path) -> None:
    (tmp_path / "a.jsonl").write_text('{"x": 1}\n')
    (tmp_path / "b.csv").write_text("x,y\n")
    source = open_rows(tmp_path / "a.jsonl", cache=tmp_path / "cache")
    (tmp_path / "taken").mkdir()
    (tmp_path / "taken/file").write_text("mine")
    with pytest.raises(DatasetExistsError, match="there is something already"):
        prepare(source, str(tmp_path / "taken"), Plan(), cache=tmp_path / "cache")
    with pytest.raises(DataError, match="has no rows"):
        prepare(open_rows(tmp_path / "b.csv", cache=tmp_path / "c"), str(tmp_path / "out"), Plan())
    with pytest.raises(ValueError, match="processes is 0; use 1 or more"):
        prepare(source, str(tmp_path / "out"), Plan(), cache=tmp_path / "cache", processes=0)
    with pytest.raises(ValueError, match="rows_per_file=0 must be 1 or more"):
        Plan(rows_per_file=0)
    with pytest.raises(ValueError, match="compression='zip' is not known"):
        Plan(compression="zip")

    def fail(count: int) -> None:
        raise RuntimeError

    with pytest.raises(RuntimeError):
        prepare(source, str(tmp_path / "out"), Plan(), cache=tmp_path / "cache", on_rows=fail)
    assert sorted(path.name for path in tmp_path.iterdir() if "cache" not in path.name) == ["a.jsonl", "b.csv", "taken"]


def test_two_that_prepare_the_same_place_do_not_meet(tmp_path: Path) -> None:
    (tmp_path / "a.jsonl").write_text('{"x": 1}\n')
    source = open_rows(tmp_path / "a.jsonl", cache=tmp_path / "cache")
    refused = []

    def start_another(count: int) -> None:
        with pytest.raises(DatasetExistsError, match="another 'strata data prepare' is writing it") as caught:
            prepare(source, str(tmp_path / "out"), Plan(), cache=tmp_path / "cache")
        refused.append(caught)

    prepare(source, str(tmp_path / "out"), Plan(), cache=tmp_path / "cache", on_rows=start_another)
    assert refused
    assert open_rows(tmp_path / "out", cache=tmp_path / "cache").num_rows == 1


def test_one_that_begins_while_another_ends_leaves_what_that_wrote(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "a.jsonl").write_text('{"x": 1}\n')
    source = open_rows(tmp_path / "a.jsonl", cache=tmp_path / "cache")
    lock = fcntl.flock

    def lock_late(descriptor: int, how: int) -> None:
        (tmp_path / ".out.unfinished").rename(tmp_path / "out")
        (tmp_path / "out" / "file").write_text("of the other")
        lock(descriptor, how)

    monkeypatch.setattr(fcntl, "flock", lock_late)
    with pytest.raises(DatasetExistsError, match="another 'strata data prepare' has just written it"):
        prepare(source, str(tmp_path / "out"), Plan(), cache=tmp_path / "cache")
    assert [path.name for path in (tmp_path / "out").iterdir()] == ["file"]
    assert not (tmp_path / ".out.unfinished").exists()


@pytest.mark.parametrize("shuffle", [False, True])
def test_a_task_that_outlives_its_killed_run_cannot_change_the_next_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, shuffle: bool
) -> None:
    np.save(tmp_path / "a.npy", np.arange(100))
    source = open_rows(tmp_path / "a.npy", cache=tmp_path / "cache")
    left: list[Any] = []

    def run_old(count: int = 0) -> None:
        for task in left:
            with contextlib.suppress(FileNotFoundError):  # which ends the task, and nobody waits for it
                prepare_module.write_part(*task)

    def die(engine: str, function: Any, tasks: Any, **options: Any) -> Any:
        left.extend(tasks)
        run_old()
        raise KeyboardInterrupt
        yield

    with monkeypatch.context() as patched:
        patched.setattr(prepare_module, "run_tasks", die)
        # Killed, it cleans up nothing.
        patched.setattr(unfinished, "remove", lambda path: None)
        patched.setattr(shutil, "rmtree", lambda path, **options: None)
        with pytest.raises(KeyboardInterrupt):
            prepare(source, str(tmp_path / "out"), Plan(rows_per_file=25, shuffle=shuffle, seed=1))
    plan = Plan(rows_per_file=25, shuffle=shuffle, seed=2)
    prepare(source, str(tmp_path / "out"), plan, on_rows=run_old, cache=tmp_path / "cache")
    prepare(source, str(tmp_path / "straight"), plan, cache=tmp_path / "cache")
    found = {
        name: {path.name: path.read_bytes() for path in (tmp_path / name).glob("p*")} for name in ("out", "straight")
    }
    assert found["out"] == found["straight"]
    assert all(path.is_file() for path in (tmp_path / "out").iterdir())


async def test_parts_that_a_killed_prepare_left_in_a_store_are_cleared_away(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "a.jsonl").write_text('{"x": 1}\n{"x": 2}\n')
    source = open_rows(tmp_path / "a.jsonl", cache=tmp_path / "cache")
    storage = MemoryStorage()
    await storage.write(UNFINISHED, b"")
    for name in ("part-00000-of-00009.parquet", "part-00001-of-00009.parquet"):
        await storage.write(name, b"of the one that was killed")
    monkeypatch.setattr(prepare_module, "open_storage", lambda url: storage)
    prepare(source, "s3://bucket/out", Plan(rows_per_file=1), cache=tmp_path / "cache")
    names = [info.path async for info in storage.list()]
    assert [name for name in names if name.startswith("part-")] == [
        "part-00000-of-00002.parquet",
        "part-00001-of-00002.parquet",
    ]
    assert UNFINISHED not in names
    assert open_rows("*.parquet", storage=storage, cache=tmp_path / "cache").read(0, 2)["x"].tolist() == [1, 2]
