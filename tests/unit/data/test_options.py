"""What users give a dataset: each wrong value is named at once, with what was expected."""

from __future__ import annotations

import sys
from typing import Any

import numpy as np
import pytest

from strata import open_dataset
from strata.data.loading.shares import Share
from strata.errors import CorruptFileError, DatasetNotFoundError, MissingExtraError, StaleIndexError
from tests.testbed.data.rows import MemoryRows


def test_bad_arguments_are_refused_at_once() -> None:
    rows = MemoryRows(10)
    for wrong, message in (
        ({"batch_size": 0}, "batch_size is 0"),
        ({"order": "random"}, "order is 'random'; use one of sticky, global, dynamic"),
        ({"to": "cupy"}, "to is 'cupy'"),
        ({"rank": 2, "world_size": 2}, "rank is 2 of world_size 2"),
        ({"columns": ["nope"]}, "no column 'nope'; the columns are id, vector"),
        ({"on_error": "ignore"}, "on_error is 'ignore'"),
        ({"threads": 0}, "threads is 0"),
        ({"processes": -1}, "processes is -1"),
        ({"epochs": 0}, "epochs is 0"),
        ({"global_batch_size": 4}, "is for order='global'"),
        ({"order": "global", "global_batch_size": 1, "world_size": 2}, "for 2 ranks"),
        ({"shard_size": 0}, "shard_size is 0"),
        ({"order": "global", "window_shards": 1}, "window_shards is 1; use 2 or more"),
        ({"window_shards": 8}, "window_shards is for order='global', not for 'sticky'.*use a larger shard_size"),
    ):
        with pytest.raises(ValueError, match=message):
            open_dataset(rows, **{"batch_size": 1, **wrong})
    with pytest.raises(ValueError, match="no rows"):
        open_dataset(MemoryRows(0), batch_size=1)
    with pytest.raises(ValueError, match="only a dataset with order='dynamic'"):
        open_dataset(rows, batch_size=1).split(2)
    with pytest.raises(TypeError, match="this dataset is open already; use it as it is"):
        open_dataset(open_dataset(rows, batch_size=1), batch_size=1)
    with pytest.raises(TypeError, match="'format' is for paths and URLs, not for rows that are open already"):
        open_dataset(rows, batch_size=1, format="csv")
    with pytest.raises(ValueError, match="worker is 2 of 2; use 0 to num_workers - 1"):
        Share(worker=2, num_workers=2)


def test_a_wrong_value_of_any_option_is_named_before_anything_is_read(tmp_path: Any) -> None:
    for wrong, message in (
        ({"batch_size": 2.5}, "batch_size is 2.5, which is a float; use a whole number"),
        ({"batch_size": "8"}, "batch_size is '8', which is a str"),
        ({"batch_size": True}, "batch_size is True, which is a bool"),
        ({"batch_size": None}, "batch_size is None"),
        ({"shard_size": 1.5}, "shard_size is 1.5"),
        ({"order": "global", "window_shards": "8"}, "window_shards is '8', which is a str"),
        ({"seed": "x"}, "seed is 'x', which is a str"),
        ({"seed": -1}, "seed is -1; use 0 or more"),
        ({"shuffle": "no"}, "shuffle is 'no', which is a str; use True or False"),
        ({"drop_last": 1}, "drop_last is 1, which is an int; use True or False"),
        ({"epochs": 1.5}, "epochs is 1.5, which is a float; use a whole number or None"),
        ({"rank": "0"}, "rank is '0'"),
        ({"world_size": 2.0}, "world_size is 2.0"),
        ({"global_batch_size": 2.5, "order": "global"}, "global_batch_size is 2.5"),
        ({"threads": 1.5}, "threads is 1.5"),
        ({"processes": None}, "processes is None"),
        ({"prefetch_bytes": 0}, "prefetch_bytes is 0; use 1 or more"),
        ({"filter": 3}, "filter is 3, which is an int; use a function"),
        ({"transform": "f"}, "transform is 'f'"),
        ({"columns": "id"}, r"columns is 'id', which is a str; use a list of names"),
        ({"columns": [1]}, "columns has 1"),
        ({"columns": []}, "columns is empty"),
        ({"order": 3}, "order is 3; use one of sticky, global, dynamic"),
        ({"on_error": None}, "on_error is None; use one of raise, skip"),
        ({"to": []}, r"to is \[\]; use one of"),
    ):
        with pytest.raises((ValueError, TypeError), match=message):
            open_dataset(tmp_path / "missing", **{"batch_size": 1, **wrong})
    # Whole numbers of other libraries are whole numbers.
    assert len(list(open_dataset(MemoryRows(10), batch_size=np.int64(5)))) == 2


def test_a_file_with_a_bad_footer_is_left_out_and_named_if_that_is_asked_for(tmp_path: Any) -> None:
    import pyarrow as pa
    import pyarrow.parquet as pq

    for name, first in (("a", 0), ("b", 10), ("c", 20)):
        pq.write_table(pa.table({"id": np.arange(first, first + 10)}), tmp_path / f"{name}.parquet")
    (tmp_path / "b.parquet").write_bytes((tmp_path / "b.parquet").read_bytes()[:-6])
    with pytest.raises(CorruptFileError, match=r"b\.parquet"):
        open_dataset(tmp_path, batch_size=4)
    dataset = open_dataset(tmp_path, batch_size=4, on_error="skip")
    assert dataset.num_rows == 20
    assert sorted(row for batch in dataset for row in batch["id"].tolist()) == [*range(10), *range(20, 30)]
    (skipped,) = dataset.skipped()
    assert skipped.file.endswith("b.parquet")
    assert (skipped.num_rows, "b.parquet" in skipped.reason) == (0, True)


def test_a_dataset_of_which_no_file_can_be_read_is_refused_although_bad_files_are_skipped(tmp_path: Any) -> None:
    for name in ("a", "b"):
        (tmp_path / f"{name}.parquet").write_bytes(b"PAR1 is how it begins, and not how it ends")
    with pytest.raises(DatasetNotFoundError, match="none of its files can be read; bring good copies of the files"):
        open_dataset(tmp_path, batch_size=4, on_error="skip")


def test_rows_of_a_file_that_went_bad_after_it_was_indexed_are_known_and_skipped(tmp_path: Any) -> None:
    import pickle

    import pyarrow as pa
    import pyarrow.parquet as pq

    from strata.data.files.addresses import open_source
    from strata.data.files.cache import open_cache
    from strata.data.rows.scan import choose_files, scan_files, store_index

    for name, first in (("a", 0), ("b", 10), ("c", 20)):
        pq.write_table(pa.table({"id": np.arange(first, first + 10)}), tmp_path / f"{name}.parquet")
    source, cache = open_source(tmp_path), open_cache(None)
    store_index(source, scan_files(source, *choose_files(source, None)[:1], {}, source.list(), cache), cache)
    bad = tmp_path / "b.parquet"
    bad.write_bytes(bad.read_bytes()[:-6])
    with pytest.raises(StaleIndexError, match=r"b\.parquet went from"):
        open_dataset(tmp_path, batch_size=4)
    opened = open_dataset(tmp_path, batch_size=4, on_error="skip")
    for dataset in (opened, pickle.loads(pickle.dumps(opened))):
        assert dataset.num_rows == 30
        assert sorted(row for batch in dataset for row in batch["id"].tolist()) == [*range(10), *range(20, 30)]
        assert [(rows.start, rows.num_rows) for rows in dataset.skipped()] == [(10, 10)]
    # A file that changed and is good has other rows than those of the index.
    pq.write_table(pa.table({"id": np.arange(99)}), bad)
    with pytest.raises(StaleIndexError, match=r"b\.parquet"):
        open_dataset(tmp_path, batch_size=4, on_error="skip")
    # With a file more, the numbers of rows are others whatever is bad.
    bad.write_bytes(b"nothing")
    pq.write_table(pa.table({"id": np.arange(9)}), tmp_path / "0.parquet")
    with pytest.raises(StaleIndexError, match=r"0\.parquet was added"):
        open_dataset(tmp_path, batch_size=4, on_error="skip")


def test_an_endless_dataset_that_has_no_batch_says_so_and_does_not_search_for_ever() -> None:
    counts = [open_dataset(MemoryRows(10), batch_size=2, rank=rank, world_size=2).num_batches for rank in range(2)]
    without_shard = counts.index(0)
    for options in (
        {"batch_size": 20, "drop_last": True},
        {"batch_size": 20, "drop_last": True, "order": "global"},
        {"batch_size": 2, "shard_size": 10, "rank": without_shard, "world_size": 2},
        {"batch_size": 2, "filter": lambda batch: batch["id"] < 0},
    ):
        with pytest.raises(ValueError, match="has no batch for this loader"):
            list(open_dataset(MemoryRows(10), epochs=None, **options))


def test_a_library_that_is_not_installed_is_named_before_anything_is_read(
    tmp_path: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("torch", "jax"):
        monkeypatch.setitem(sys.modules, name, None)
        with pytest.raises(MissingExtraError, match=rf"loading batches as {name} needs .*\[{name}\]"):
            open_dataset(tmp_path / "missing", batch_size=1, to=name)


def test_a_wrong_option_of_reading_is_named(tmp_path: Any) -> None:
    np.arange(5_000, dtype=np.uint16).tofile(tmp_path / "a.uint16.bin")
    for wrong, message in (
        ({"options": {"sequence_length": "abc"}}, "sequence_length is 'abc', which is a str; use a whole number"),
        ({"options": {"sequence_length": 2.5}}, "sequence_length is 2.5"),
        ({"options": {"sequence_length": True}}, "sequence_length is True"),
        ({"options": {"extra_tokens": None}}, "extra_tokens is None"),
        ({"options": {"nope": 1}}, "format tokens has no option 'nope'"),
        ({"options": 5}, "options is 5; use a dict"),
        ({"format": 5}, "format is 5; use the name of a format"),
        ({"memory_bytes": "x"}, "memory_bytes is 'x'"),
        ({"memory_bytes": -3}, "memory_bytes is -3; use 0 or more"),
        ({"cache": 5}, "cache is 5; use a directory"),
        ({"index": 5}, "index is 5"),
        ({"storage": 5}, "storage is 5"),
        ({"bogus": 1}, "there is no option 'bogus'; for reading files there are format, options"),
    ):
        with pytest.raises((ValueError, TypeError), match=message):
            open_dataset(tmp_path, batch_size=2, **wrong)
