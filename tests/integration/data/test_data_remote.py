"""Datasets in storages: the same rows as on disk, through the cache, and never a mix of two versions."""

from __future__ import annotations

import asyncio
import json
import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from strata.data.files.addresses import open_source
from strata.data.files.cache import BLOCK_BYTES, Cache
from strata.data.files.source import UNFINISHED
from strata.data.prepare.rewrite import Plan, prepare
from strata.data.rows.row_sequence import DatasetRows, open_rows
from strata.data.rows.scan import choose_files, scan_files, store_index
from strata.errors import DatasetExistsError, DatasetNotFoundError, StaleIndexError
from strata.storage import LocalStorage, MemoryStorage, open_storage

if TYPE_CHECKING:
    from strata.storage import Storage
    from tests.testbed.servers import S3Server

ROWS = 40_000


class CountingStorage(MemoryStorage):
    """Remembers what was read."""

    def __init__(self) -> None:
        super().__init__()
        self.reads: list[tuple[str, int, int]] = []
        self.lock = threading.Lock()

    async def read(self, path: str, *, start: int = 0, length: int | None = None, **options: Any) -> bytes:
        data = await super().read(path, start=start, length=length, **options)
        with self.lock:
            self.reads.append((path, start, len(data)))
        return data

    @property
    def read_bytes(self) -> int:
        return sum(size for _, _, size in self.reads)


def write_all(folder: Path) -> None:
    """Some of every format, larger than a block of the cache."""
    numbers = np.arange(ROWS)
    noise = np.random.default_rng(0).integers(0, 2**62, (ROWS, 8))
    table = pa.table({"n": numbers, "noise": pa.FixedSizeListArray.from_arrays(noise.reshape(-1), 8)})
    for kind in ("parquet", "arrow", "jsonl", "numpy", "gz"):
        (folder / kind).mkdir(parents=True)
    pq.write_table(table, folder / "parquet/a.parquet", row_group_size=3000)
    with (folder / "arrow/a.arrow").open("wb") as sink, pa.ipc.new_file(sink, table.schema) as writer:
        writer.write_table(table, max_chunksize=3000)
    lines = "".join(json.dumps({"n": n, "text": "x" * (n % 90)}) + "\n" for n in range(ROWS))
    (folder / "jsonl/a.jsonl").write_text(lines)
    np.savez(folder / "numpy/a.npz", n=numbers, noise=noise)
    with pa.CompressedOutputStream(str(folder / "gz/a.jsonl.gz"), "gzip") as sink:
        sink.write(lines.encode())


def upload(folder: Path, storage: Storage, prefix: str = "") -> None:
    found = {f"{prefix}{path.relative_to(folder)}": path.read_bytes() for path in folder.rglob("*") if path.is_file()}

    async def write_all() -> None:
        for path, data in found.items():
            await storage.write(path, data)

    asyncio.run(write_all())


def check_same(rows: DatasetRows, local: DatasetRows) -> None:
    assert rows.num_rows == local.num_rows == ROWS
    for start, stop in ((39_990, ROWS), (0, 10), (2990, 6010), (20_000, 20_001)):
        found, expected = rows.read(start, stop), local.read(start, stop)
        for name in local.names:
            assert found[name].tolist() == expected[name].tolist()


def test_rows_in_a_storage_are_those_on_disk(tmp_path: Path) -> None:
    write_all(tmp_path / "data")
    storage = MemoryStorage()
    upload(tmp_path / "data", storage, "some/where/")
    cache = Cache(tmp_path / "cache")
    for kind in ("parquet", "arrow", "jsonl", "numpy", "gz"):
        local = open_rows(tmp_path / "data" / kind, cache=cache)
        check_same(open_rows(f"some/where/{kind}", storage=storage, cache=cache), local)
    single = open_rows("some/where/parquet/a.parquet", storage=storage, cache=cache)
    assert single.num_rows == ROWS
    assert open_rows("some/where/*/a.parquet", storage=storage, cache=cache).num_rows == ROWS
    # A storage that is given also serves a local directory.
    check_same(open_rows("parquet", storage=LocalStorage(tmp_path / "data"), cache=cache), single)


def test_only_what_is_needed_is_fetched_and_only_once(tmp_path: Path) -> None:
    write_all(tmp_path / "data")
    storage = CountingStorage()
    upload(tmp_path / "data", storage)
    size_bytes = (tmp_path / "data/parquet/a.parquet").stat().st_size
    cache = Cache(tmp_path / "cache")
    rows = open_rows("parquet", storage=storage, cache=cache)
    # The index of a Parquet file needs its footer alone.
    assert storage.read_bytes < 200_000
    storage.reads.clear()
    rows.read(3000, 6000)
    assert 0 < storage.read_bytes <= 3 * BLOCK_BYTES < size_bytes
    storage.reads.clear()
    with ThreadPoolExecutor(8) as pool:
        list(pool.map(lambda start: rows.read(start, min(ROWS, start + 777)), range(0, ROWS, 777)))
    assert storage.read_bytes <= size_bytes
    storage.reads.clear()
    again = open_rows("parquet", index=rows.index, storage=storage, cache=Cache(tmp_path / "cache"))
    again.read(0, ROWS)
    assert storage.reads == []


def test_without_room_in_the_cache_everything_is_still_read(tmp_path: Path) -> None:
    write_all(tmp_path / "data")
    storage = MemoryStorage()
    upload(tmp_path / "data", storage)
    cache = Cache(tmp_path / "cache", limit_bytes=1)
    for kind in ("parquet", "jsonl", "gz"):
        check_same(open_rows(kind, storage=storage, cache=cache), open_rows(tmp_path / "data" / kind, cache=cache))
    assert cache.count_bytes() == 0


def test_a_replaced_object_is_never_read_from_the_cache_of_the_old_one(tmp_path: Path) -> None:
    storage, cache = MemoryStorage(), Cache(tmp_path / "cache")
    for version in (1, 2):
        np.save(tmp_path / "a.npy", np.full(300_000, version))
        asyncio.run(storage.write("d/a.npy", (tmp_path / "a.npy").read_bytes()))
        rows = open_rows("d", storage=storage, cache=cache)
        assert set(rows.read(0, 300_000)["data"].tolist()) == {version}


def test_an_index_is_written_beside_the_objects_and_is_stale_when_they_change(tmp_path: Path) -> None:
    storage, cache = CountingStorage(), Cache(tmp_path / "cache")
    asyncio.run(storage.write("d/a.jsonl", b'{"x": 1}\n'))
    source = open_source("d", storage)
    store_index(source, scan_files(source, "jsonl", {}, choose_files(source, None)[1], cache), cache)
    storage.reads.clear()
    assert open_rows("d", storage=storage, cache=cache).num_rows == 1
    assert [path.startswith("d/_strata_index_v3_jsonl_") for path, _, _ in storage.reads] == [True]
    asyncio.run(storage.write("d/a.jsonl", b'{"x": 2}\n'))
    with pytest.raises(StaleIndexError, match=r"a\.jsonl was written again"):
        open_rows("d", storage=storage, cache=cache)


def test_an_object_that_was_replaced_or_removed_since_names_itself(tmp_path: Path) -> None:
    storage, cache = MemoryStorage(), Cache(tmp_path / "cache")
    asyncio.run(storage.write("d/a.uint16.bin", bytes(1 << 22)))
    rows = open_rows("d", storage=storage, cache=cache)
    asyncio.run(storage.write("d/a.uint16.bin", bytes(1 << 20)))
    with pytest.raises(StaleIndexError, match=r"a\.uint16\.bin was written again"):
        rows.read(2000, 2048)
    asyncio.run(storage.delete("d/a.uint16.bin"))
    with pytest.raises(StaleIndexError, match=r"a\.uint16\.bin is gone"):
        rows.read(0, 1)
    with pytest.raises(DatasetNotFoundError):
        open_rows("nowhere", storage=storage, cache=cache)


@pytest.fixture
def bucket(s3_server: S3Server, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> str:
    monkeypatch.setenv("AWS_ENDPOINT_URL", s3_server.endpoint)
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", s3_server.access_key)
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", s3_server.secret_key)
    monkeypatch.setenv("AWS_REGION", "us-east-1")
    return f"s3://{s3_server.bucket}/{tmp_path.name}"


@pytest.mark.part("s3")
def test_s3_gives_the_same_rows_through_the_cache_and_takes_the_index(bucket: str, tmp_path: Path) -> None:
    write_all(tmp_path / "data")
    upload(tmp_path / "data", open_storage(bucket))
    cache = Cache(tmp_path / "cache", limit_bytes=4 << 20)
    for kind in ("parquet", "jsonl", "gz", "numpy"):
        source = open_source(f"{bucket}/{kind}")
        chosen, files = choose_files(source, None)
        where = store_index(source, scan_files(source, chosen, {}, files, cache), cache)
        assert where.startswith(f"{bucket}/{kind}/_strata_index_v3_")
        check_same(open_rows(f"{bucket}/{kind}", cache=cache), open_rows(tmp_path / "data" / kind, cache=cache))
        assert cache.count_bytes() <= 4 << 20


@pytest.mark.part("s3")
def test_a_prepared_dataset_on_s3_is_seen_when_it_is_whole(bucket: str, tmp_path: Path) -> None:
    write_all(tmp_path / "data")
    rows = open_rows(tmp_path / "data/parquet", cache=tmp_path / "cache")
    storage = open_storage(f"{bucket}/out")
    seen: list[str] = []

    def look(count: int) -> None:
        try:
            open_rows(f"{bucket}/out", cache=tmp_path / "cache")
        except DatasetNotFoundError as error:
            seen.append(str(error))

    # As a run that was killed left it, with other files.
    asyncio.run(storage.write(UNFINISHED, b""))
    asyncio.run(storage.write("part-00009-of-00010.parquet", b"half"))
    done = prepare(rows, f"{bucket}/out", Plan(rows_per_file=15_000), cache=tmp_path / "cache", on_rows=look)
    assert (done.files, done.rows) == (3, ROWS)
    assert len(seen) >= 3
    assert all("has not finished here" in text for text in seen)
    found = open_rows(f"{bucket}/out", cache=tmp_path / "cache")
    assert found.read(0, ROWS)["n"].tolist() == list(range(ROWS))
    assert found.read(5, 7)["noise"].tolist() == rows.read(5, 7)["noise"].tolist()
    with pytest.raises(DatasetExistsError):
        prepare(rows, f"{bucket}/out", Plan(), cache=tmp_path / "cache")
