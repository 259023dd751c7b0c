"""Every kind of address, and objects of other libraries, as datasets."""

from __future__ import annotations

import io
import pickle
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.dataset
import pyarrow.fs
import pyarrow.parquet as pq
import pytest

from strata import MemoryStorage
from strata.data import open_dataset
from strata.data.files.patterns import expand_braces, is_selected
from strata.data.rows.row_sequence import open_rows
from strata.errors import DataError, DatasetNotFoundError, StaleIndexError
from tests.testbed.web import serve_files

# Connections of the test server and of the hub's library are closed when they are collected.
pytestmark = pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")


def parquet(start: int, stop: int) -> bytes:
    sink = io.BytesIO()
    pq.write_table(pa.table({"x": list(range(start, stop))}), sink, row_group_size=10)
    return sink.getvalue()


def ids(source: Any, cache: Path, **options: Any) -> list[int]:
    rows = open_rows(source, cache=cache, **options)
    return rows.read(0, rows.num_rows)["x"].tolist()


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    for number in range(12):
        path = tmp_path / "data" / ("even" if number % 2 == 0 else "odd") / f"part-{number:03}.parquet"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(parquet(10 * number, 10 * number + 10))
    return tmp_path / "data"


def test_a_list_keeps_its_order_and_each_address_must_be_there(folder: Path, tmp_path: Path) -> None:
    given = [
        folder / "odd" / "part-003.parquet",
        str(folder / "even" / "part-00[02]*"),
        folder / "odd" / "part-001.parquet",
    ]
    expected = [*range(30, 40), *range(10), *range(20, 30), *range(10, 20)]
    assert ids(given, tmp_path / "cache") == expected
    rows = pickle.loads(pickle.dumps(open_rows(given, cache=tmp_path / "cache")))
    assert rows.read(0, 1)["x"].tolist() == [30]
    with pytest.raises(DatasetNotFoundError, match=r"part-099\.parquet"):
        ids([folder / "odd", folder / "part-099.parquet"], tmp_path / "cache")
    with pytest.raises(ValueError, match="list of addresses is empty"):
        ids([], tmp_path / "cache")
    with pytest.raises(ValueError, match="7 is no address"):
        ids([folder, 7], tmp_path / "cache")


def test_braces_stars_and_a_tilde(folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert ids(f"{folder}/odd/part-{{001..003..005}}.parquet".replace("001..003..005", "003,001"), tmp_path / "c") == [
        *range(30, 40),
        *range(10, 20),
    ]
    with pytest.raises(DatasetNotFoundError, match=r"part-002\.parquet"):
        ids(f"{folder}/odd/part-{{001..003}}.parquet", tmp_path / "c")
    assert sorted(ids(f"{tmp_path}/**/*.parquet", tmp_path / "c")) == list(range(120))
    assert sorted(ids(f"{tmp_path}/data/**", tmp_path / "c")) == list(range(120))
    monkeypatch.setenv("HOME", str(tmp_path))
    assert len(ids("~/data/even", tmp_path / "c")) == 60
    (folder / "{a,b}").mkdir()
    (folder / "{a,b}" / "x.parquet").write_bytes(parquet(0, 3))
    assert ids(folder / "{a,b}", tmp_path / "c") == [0, 1, 2]


def test_braces_are_those_of_a_shell() -> None:
    assert expand_braces("a{08..11}b") == ["a08b", "a09b", "a10b", "a11b"]
    assert expand_braces("{1..3}") == ["1", "2", "3"]
    assert expand_braces("{2..1}-{x,y}") == ["2-x", "2-y", "1-x", "1-y"]
    assert expand_braces("{one}") == ["{one}"]
    assert len(expand_braces("{000..999}")) == 1000
    with pytest.raises(ValueError, match="stands for"):
        expand_braces("{0..99999999}")


def test_a_star_stays_within_a_directory_and_two_cross_them() -> None:
    assert is_selected("a/b.parquet", "*/*.parquet")
    assert not is_selected("a/b/c.parquet", "*/*.parquet")
    assert not is_selected("a/b.parquet", "*.parquet")
    for path in ("c.parquet", "a/c.parquet", "a/b/c.parquet"):
        assert is_selected(path, "**/*.parquet")
    assert is_selected("a/b/c.parquet", "a/**")
    assert not is_selected("ab/c.parquet", "a/**/c.parquet")


async def test_a_list_of_objects_needs_one_listing_of_each_directory(tmp_path: Path) -> None:
    storage = MemoryStorage()
    for number in range(5):
        await storage.write(f"d/{number}.parquet", parquet(number, number + 1))
    assert ids(["d/3.parquet", "d/{0..1}.parquet"], tmp_path, storage=storage) == [3, 0, 1]
    assert ids("d/{4..2}.parquet", tmp_path, storage=storage) == [4, 3, 2]
    with pytest.raises(DatasetNotFoundError, match=r"d/7\.parquet"):
        ids(["d/3.parquet", "d/7.parquet"], tmp_path, storage=storage)


@pytest.mark.parametrize("has_ranges", [True, False])
@pytest.mark.parametrize("has_length", [True, False])
def test_files_of_a_web_server(tmp_path: Path, has_ranges: bool, has_length: bool) -> None:
    with serve_files(has_ranges=has_ranges, has_length=has_length) as server:
        for number in range(3):
            server.files[f"/d/part {number}.parquet"] = parquet(10 * number, 10 * number + 10)
        server.files["/d/a.jsonl"] = b'{"x": 1}\n{"x": 2}\n'
        assert ids(f"{server.url}/d/part%20{{0..2}}.parquet", tmp_path / "c") == list(range(30))
        assert ids(f"{server.url}/d/a.jsonl?download=true", tmp_path / "c") == [1, 2]
        with open_dataset(f"{server.url}/d/part%201.parquet", batch_size=4, cache=tmp_path / "c") as dataset:
            assert sorted(x for batch in dataset for x in batch["x"].tolist()) == list(range(10, 20))
        whole = [path for path, asked in server.asked if asked is None]
        assert bool(whole) != has_ranges
        with pytest.raises(DatasetNotFoundError, match="no such file on the server"):
            ids(f"{server.url}/d/none.parquet", tmp_path / "c")
        with pytest.raises(ValueError, match="a web server does not list its files"):
            ids(f"{server.url}/d/*.parquet", tmp_path / "c")


def test_a_file_that_changes_on_its_web_server_is_noticed(tmp_path: Path) -> None:
    with serve_files() as server:
        server.files["/a.parquet"] = parquet(0, 20)
        rows = open_rows(f"{server.url}/a.parquet", cache=tmp_path / "c")
        server.files["/a.parquet"] = parquet(5, 25)
        with pytest.raises(StaleIndexError, match=r"a\.parquet"):
            rows.read(0, 20)


def test_a_server_that_is_gone_is_named(tmp_path: Path) -> None:
    with serve_files() as server:
        url = server.url
    with pytest.raises(DataError, match="cannot be reached"):
        ids(f"{url}/a.parquet", tmp_path / "c")


def test_datasets_of_the_hub(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with serve_files() as server:
        monkeypatch.setenv("HF_ENDPOINT", server.url)
        for number in range(3):
            server.files[f"/hub/me/set/data/train-{number}.parquet"] = parquet(10 * number, 10 * number + 10)
        server.files["/hub/me/set/README.md"] = b"# a set"
        assert ids("hf://datasets/me/set", tmp_path / "c") == list(range(30))
        assert ids("hf://datasets/me/set@main/data/train-[12].parquet", tmp_path / "c") == list(range(10, 30))
        assert ids("hf://datasets/me/set/data/train-1.parquet", tmp_path / "c") == list(range(10, 20))
        assert ids("hf://datasets/me/set/**/*.parquet", tmp_path / "c") == list(range(30))
        with pytest.raises(DatasetNotFoundError, match="the hub has no such dataset"):
            ids("hf://datasets/me/nothing", tmp_path / "c")
        with pytest.raises(ValueError, match="hf://datasets/OWNER/NAME"):
            ids("hf://me/set", tmp_path / "c")


def collect(source: Any, **options: Any) -> dict[str, list[Any]]:
    with open_dataset(source, batch_size=7, seed=3, **options) as dataset:
        batches = list(dataset)
    return {name: [row for batch in batches for row in batch[name].tolist()] for name in dataset.names}


def test_objects_of_other_libraries_are_datasets(folder: Path, tmp_path: Path) -> None:
    table = pa.table({"x": list(range(100)), "y": [None, 1] * 50, "s": [str(n) for n in range(100)]})
    found = collect(table)
    assert sorted(found["x"]) == list(range(100))
    assert found["y.is_null"] == [x % 2 == 0 for x in found["x"]]
    assert found["s"] == [str(x) for x in found["x"]]
    assert list(collect(table, columns=["y"])) == ["y", "y.is_null"]
    assert sorted(collect(np.arange(60))["data"]) == list(range(60))
    both = collect({"a": np.arange(60), "b": np.arange(120).reshape(60, 2)})
    assert both["b"] == [[2 * a, 2 * a + 1] for a in both["a"]]
    assert sorted(collect(pa.dataset.dataset(folder, format="parquet"), cache=tmp_path / "c")["x"]) == list(range(120))
    assert sorted(collect(pa.dataset.dataset(table))["x"]) == list(range(100))
    (batch,) = table.to_batches()
    assert collect(batch) == found
    with pytest.raises(ValueError, match="all as many"):
        collect({"a": np.arange(3), "b": np.arange(4)})
    with pytest.raises(ValueError, match="there is no column 'c'; the columns are a, b"):
        collect({"a": np.arange(3), "b": np.arange(3)}, columns=["c"])
    with pytest.raises(TypeError, match="a int is no dataset"):
        collect(7)


def test_arrays_of_a_table_have_a_mask_if_one_of_their_numbers_is_missing() -> None:
    whole = pa.array([[1, 2], [3, 4]], pa.list_(pa.int32(), 2))
    holed = pa.array([[1, 2], [3, None]], pa.list_(pa.int32(), 2))
    kind = pa.fixed_shape_tensor(pa.int32(), (2,))
    columns = {
        "lists": holed,
        "tensors": pa.FixedShapeTensorArray.from_storage(kind, holed),
        "whole": pa.FixedShapeTensorArray.from_storage(kind, whole),
    }
    with open_dataset(pa.table(columns), batch_size=2, shuffle=False) as dataset:
        (batch,) = dataset
    assert dataset.names == ("lists", "lists.is_null", "tensors", "tensors.is_null", "whole")
    for name in ("lists", "tensors"):
        assert batch[name].tolist() == [[1, 2], [3, 0]]
        assert batch[f"{name}.is_null"].tolist() == [[False, False], [False, True]]
    assert batch["whole"].tolist() == [[1, 2], [3, 4]]


def test_a_rank_without_a_sample_of_the_last_batch_of_a_table_gets_an_empty_one_of_the_same_types() -> None:
    table = pa.table({"x": pa.array([1, 2, 3], pa.int16()), "y": [[1, 2]] * 3, "z": [None, 1, 2]})
    # With shards of one row, nothing else is read together with the empty batch.
    share = {"order": "global", "shard_size": 1, "rank": 1, "world_size": 2}
    with open_dataset(table, batch_size=1, shuffle=False, **share) as dataset:
        full, empty = dataset
    assert full["x"].tolist() == [2]
    assert {name: (len(array), array.dtype) for name, array in empty.items()} == {
        name: (0, array.dtype) for name, array in full.items()
    }


def test_a_dataset_of_hugging_face_is_read_in_its_own_order(tmp_path: Path) -> None:
    import datasets

    made = datasets.Dataset.from_dict({"x": list(range(50)), "y": [None, 1.5] * 25}).shuffle(seed=1)
    with open_dataset(made, batch_size=50, shuffle=False) as dataset:
        (batch,) = dataset
    assert batch["x"].tolist() == made["x"][:]
    assert sorted(collect(made)["x"]) == list(range(50))
    with pytest.raises(TypeError, match="has no rows to go to"):
        collect(made.to_iterable_dataset())


def test_objects_whose_meaning_would_be_lost_are_refused_by_name(tmp_path: Path) -> None:
    import datasets

    made = datasets.Dataset.from_dict({"a": [1, 2]})
    cases = [
        (
            datasets.DatasetDict({"train": made}),
            r"DatasetDict has several datasets; choose one, as in source\['train'\]",
        ),
        (made.with_transform(lambda batch: batch), "a transform of its own, which would not be run"),
        ({"a": np.ma.masked_array([1, 2], [True, False])}, "'a' is a masked array, whose mask would be lost"),
    ]
    (tmp_path / "a.parquet").write_bytes(parquet(0, 3))
    elsewhere = pa.fs.SubTreeFileSystem(str(tmp_path), pa.fs.LocalFileSystem())
    cases.append((pa.dataset.dataset("a.parquet", filesystem=elsewhere), "lies in a store; give its URL instead"))
    for source, problem in cases:
        with pytest.raises(TypeError, match=problem):
            open_dataset(source, batch_size=1)
    with pytest.raises(ValueError, match="the dataset has no rows"):
        open_dataset(pa.table({"a": []}), batch_size=1)
