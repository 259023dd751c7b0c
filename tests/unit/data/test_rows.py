"""A dataset as one sequence of rows: over many files, by an index that knows when it is out of date."""

from __future__ import annotations

import gzip
import json
import os
import pickle
import struct
import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from strata.data.files.addresses import open_source
from strata.data.files.cache import Cache
from strata.data.files.source import LocalSource
from strata.data.formats.parquet import ParquetReader
from strata.data.rows import scan
from strata.data.rows.columns import Columns
from strata.data.rows.decoded_blocks import BlockMemory
from strata.data.rows.index import Index
from strata.data.rows.row_sequence import DatasetRows, open_rows
from strata.data.rows.scan import choose_files, scan_files, store_index
from strata.errors import (
    CorruptFileError,
    DatasetNotFoundError,
    MixedFormatsError,
    StaleIndexError,
    UnknownDataFormatError,
)
from tests.testbed.plugins.default_process import few_open_files

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence


@pytest.fixture
def cache(tmp_path: Path) -> Cache:
    return Cache(tmp_path / "cache")


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    made = tmp_path / "data"
    made.mkdir()
    return made


def write_parquet(path: Path, start: int, stop: int, **options: Any) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    pq.write_table(pa.table({"x": np.arange(start, stop)}), path, **options)


def make_index(folder: Path, cache: Cache, **options: Any) -> str:
    source = open_source(folder)
    kind, files = choose_files(source, None)
    return store_index(source, scan_files(source, kind, options, files, cache), cache)


def test_rows_follow_the_paths_and_hidden_files_do_not_count(folder: Path, cache: Cache) -> None:
    write_parquet(folder / "b/1.parquet", 30, 40)
    write_parquet(folder / "a.parquet", 0, 30)
    write_parquet(folder / "c.parquet", 40, 40)
    write_parquet(folder / "d.parquet", 40, 50)
    for name in ("_metadata.csv", ".part.parquet.crc", "_old/x.csv", "README.md", "LICENSE", "info.json"):
        (folder / name).parent.mkdir(exist_ok=True)
        (folder / name).write_text("?")
    rows = open_rows(folder, cache=cache)
    assert rows.read(0, 50)["x"].tolist() == list(range(50))
    assert rows.read(29, 41)["x"].tolist() == list(range(29, 41))
    places = [(each.start, each.stop, each.path, each.first) for each in rows.places(29, 41)]
    assert places == [
        (29, 30, f"{folder}/a.parquet", 29),
        (30, 40, f"{folder}/b/1.parquet", 0),
        (40, 41, f"{folder}/d.parquet", 0),
    ]


def test_a_range_outside_and_an_unknown_column_are_refused(folder: Path, cache: Cache) -> None:
    write_parquet(folder / "a.parquet", 0, 5)
    rows = open_rows(folder, cache=cache)
    with pytest.raises(ValueError, match="rows 3 to 6 are not within the 5 rows"):
        rows.read(3, 6)
    with pytest.raises(ValueError, match="there is no column 'y'; the columns are x"):
        rows.read(0, 1, ["y"])
    with pytest.raises(ValueError, match="there is no column 'y'"):
        open_rows(folder, columns=["y"], cache=cache)
    assert rows.read(2, 2)["x"].dtype == np.int64


def test_a_place_is_a_directory_a_file_or_a_pattern(
    folder: Path, cache: Cache, monkeypatch: pytest.MonkeyPatch
) -> None:
    for number in range(3):
        write_parquet(folder / f"train-{number}.parquet", number, number + 1)
    write_parquet(folder / "test[1].parquet", 9, 10)
    for url, expected in (
        (folder / "train-1.parquet", [1]),
        (f"{folder}/train-*.parquet", [0, 1, 2]),
        (f"file://{folder}/train-[02].parquet", [0, 2]),
        (folder / "test[1].parquet", [9]),
    ):
        rows = open_rows(url, cache=cache)
        assert rows.read(0, rows.num_rows)["x"].tolist() == expected
    monkeypatch.chdir(folder.parent)
    assert open_rows("data", split="all", cache=cache).num_rows == 4
    (folder.parent / "link").symlink_to(folder)
    (folder / "loop").symlink_to(folder)
    assert open_rows("link", split="all", cache=cache).num_rows == 4


def test_what_cannot_be_one_dataset_says_why(folder: Path, cache: Cache) -> None:
    with pytest.raises(DatasetNotFoundError, match="no such file or directory"):
        open_rows(folder / "nowhere", cache=cache)
    with pytest.raises(DatasetNotFoundError, match="there are no files in it"):
        open_rows(folder, cache=cache)
    with pytest.raises(DatasetNotFoundError, match=r"nothing here matches \*.csv"):
        open_rows(f"{folder}/*.csv", cache=cache)
    (folder / "a.xyz").write_text("x\n1\n")
    with pytest.raises(UnknownDataFormatError, match=r"a\.xyz.*name one of these formats: arrow, csv"):
        open_rows(folder, cache=cache)
    assert open_rows(folder, format="csv", cache=cache).read(0, 1)["x"].tolist() == [1]
    write_parquet(folder / "b.parquet", 0, 1)
    with pytest.raises(MixedFormatsError, match=r"parquet \(.*b\.parquet\), unknown \(.*a\.xyz\)"):
        open_rows(folder, cache=cache)
    assert open_rows(folder, format="parquet", cache=cache).num_rows == 1
    with pytest.raises(UnknownDataFormatError, match="there is no format 'parkett'"):
        open_rows(folder, format="parkett", cache=cache)
    (folder / "c.parquet.gz").write_text("?")
    with pytest.raises(UnknownDataFormatError, match="compressed parquet file has no random access"):
        open_rows(folder, format="parquet", cache=cache)


def test_a_stored_index_is_used_and_a_changed_file_is_named(
    folder: Path, cache: Cache, monkeypatch: pytest.MonkeyPatch
) -> None:
    for number in range(3):
        write_parquet(folder / f"{number}.parquet", 10 * number, 10 * number + 10)
    where = make_index(folder, cache)
    assert Path(where).parent == folder
    with monkeypatch.context() as patched:
        patched.setattr("strata.data.rows.scan.scan_files", None)
        rows = open_rows(folder, cache=cache)
        assert rows.read(9, 21)["x"].tolist() == list(range(9, 21))
        assert open_rows(folder, options={"verify": True}, cache=cache).num_rows == 30

    target = folder / "1.parquet"
    content, status = target.read_bytes(), target.stat()
    target.write_bytes(content)
    os.utime(target, ns=(status.st_atime_ns, status.st_mtime_ns + 1))
    with pytest.raises(StaleIndexError, match=r"1\.parquet was written again .*run 'strata data index' again"):
        open_rows(folder, cache=cache)
    os.utime(target, ns=(status.st_atime_ns, status.st_mtime_ns))
    assert open_rows(folder, cache=cache).num_rows == 30
    target.write_bytes(content + b"x")
    with pytest.raises(StaleIndexError, match=f"went from {len(content)} to {len(content) + 1} bytes"):
        open_rows(folder, cache=cache)
    # Readers that are open already find it, too, when they come to the file.
    with pytest.raises(StaleIndexError, match="went from"):
        open_rows(folder, index=rows.index, cache=cache)
    target.unlink()
    with pytest.raises(StaleIndexError, match=r"1\.parquet is gone"):
        open_rows(folder, cache=cache)
    target.write_bytes(content)
    os.utime(target, ns=(status.st_atime_ns, status.st_mtime_ns))
    write_parquet(folder / "9.parquet", 0, 1)
    with pytest.raises(StaleIndexError, match=r"9\.parquet was added"):
        open_rows(folder, cache=cache)


def test_a_file_that_changes_after_the_dataset_was_opened_is_found_when_it_is_read(folder: Path, cache: Cache) -> None:
    np.save(folder / "a.npy", np.arange(10_000))
    np.save(folder / "b.npy", np.arange(10_000))
    rows = open_rows(folder, cache=cache)
    assert rows.read(0, 1)["data"].tolist() == [0]
    os.truncate(folder / "a.npy", 500)
    with pytest.raises(CorruptFileError, match=r"a\.npy \(byte 500\)"):
        rows.read(5000, 6000)
    np.save(folder / "b.npy", np.arange(20_000))
    with pytest.raises(StaleIndexError, match=r"b\.npy went from"):
        rows.read(10_000, 10_001)


def test_the_index_of_read_only_data_is_kept_in_the_cache(
    folder: Path, cache: Cache, monkeypatch: pytest.MonkeyPatch
) -> None:
    write_parquet(folder / "a.parquet", 0, 10)
    monkeypatch.setattr(LocalSource, "write_beside", lambda *_: False)
    where = make_index(folder, cache)
    assert Path(where).is_relative_to(cache.directory)
    monkeypatch.setattr("strata.data.rows.scan.scan_files", None)
    assert open_rows(folder, cache=cache).num_rows == 10


def test_a_long_scan_says_how_to_do_it_once_for_all(
    folder: Path, cache: Cache, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    write_parquet(folder / "a.parquet", 0, 5)
    monkeypatch.setattr(scan, "LONG_SCAN_S", 1e9)
    open_rows(folder, cache=cache)
    assert caplog.messages == []
    monkeypatch.setattr(scan, "LONG_SCAN_S", -1.0)
    open_rows(folder, cache=cache)
    (message,) = caplog.messages
    assert message.startswith(f"{folder} has no index, so 1 files were scanned for ")
    assert message.endswith(f"'strata data index {folder}' does that once for all")
    caplog.clear()
    make_index(folder, cache)
    open_rows(folder, cache=cache)
    assert caplog.messages == []


def test_a_damaged_index_is_refused(folder: Path, cache: Cache) -> None:
    write_parquet(folder / "a.parquet", 0, 10)
    where = Path(make_index(folder, cache))
    content = where.read_bytes()
    for damaged in (content[:20], content[:-1], content[:99] + b"?" + content[100:], b"x" * 100, b""):
        where.write_bytes(damaged)
        with pytest.raises(CorruptFileError, match="run 'strata data index' to write it anew"):
            open_rows(folder, cache=cache)


def test_the_index_survives_its_bytes_and_stays_small(folder: Path, cache: Cache) -> None:
    (folder / "a.jsonl").write_text("".join(json.dumps({"n": n, "text": "x" * 100}) + "\n" for n in range(30_000)))
    index = open_rows(folder, cache=cache).index
    data = index.to_bytes()
    copy = Index.from_bytes(data, name="copy")
    assert len(index.block_rows) > 5
    for name in ("row_starts", "data_bytes", "block_starts", "block_rows", "block_offsets"):
        assert np.array_equal(getattr(copy, name), getattr(index, name)), name
    assert (copy.kind, copy.schema, copy.files, copy.fingerprint) == (
        index.kind,
        index.schema,
        index.files,
        index.fingerprint,
    )
    assert len(data) < 4000


def test_ten_thousand_small_files(folder: Path, cache: Cache) -> None:
    for number in range(10_000):
        (folder / f"{number:05}.uint32.bin").write_bytes(struct.pack("<II", 2 * number, 2 * number + 1))
    make_index(folder, cache, sequence_length=1)
    rows = open_rows(folder, options={"sequence_length": 1}, cache=cache)
    assert rows.num_rows == 20_000
    # As most systems allow a process; a reader keeps no file open for the data that it gave.
    with few_open_files():
        assert rows.read(0, 20_000)["tokens"].reshape(-1).tolist() == list(range(20_000))
    assert len(rows.index.to_bytes()) < 400_000


def test_five_gigabytes_of_tokens_are_read_only_where_they_are_wanted(folder: Path, cache: Cache) -> None:
    path = folder / "big.uint16.bin"
    with path.open("wb") as file:
        file.truncate(5 << 30)
        file.seek(-4096, os.SEEK_END)
        file.write(np.arange(2048, dtype=np.uint16).tobytes())
    rows = open_rows(folder, options={"sequence_length": 2048}, cache=cache)
    assert rows.num_rows == (5 << 30) // 4096
    before = resident_bytes()
    assert rows.read(rows.num_rows - 1, rows.num_rows)["tokens"].tolist() == [list(range(2048))]
    assert not rows.read(1_000_000, 1_000_010)["tokens"].any()
    assert resident_bytes() - before < 50 << 20
    assert path.stat().st_blocks * 512 < 1 << 20


def resident_bytes() -> int:
    return int(Path("/proc/self/statm").read_text().split()[1]) * 4096


@pytest.mark.parametrize("name", ["jsonl.gz", "jsonl.zst", "jsonl.bz2", "jsonl.xz", "jsonl.lz4", "csv.gz", "tar.zst"])
def test_compressed_files_are_read_at_random(folder: Path, cache: Cache, name: str) -> None:
    kind, codec = name.split(".")
    content = compressible(kind)
    (folder / f"a.{kind}").write_bytes(content)
    plain = open_rows(folder, cache=cache)
    expected = plain.read(0, plain.num_rows).to_numpy()
    (folder / f"a.{kind}").unlink()
    (folder / f"a.{kind}.{codec}").write_bytes(compress(content, codec))
    rows = open_rows(folder, cache=cache)
    assert rows.num_rows == plain.num_rows == 3000
    for start, stop in ((2990, 3000), (0, 7), (1500, 1600), (0, 3000)):
        found = rows.read(start, stop).to_numpy()
        for column, values in expected.items():
            assert np.array_equal(found[column], values[start:stop]), column


@pytest.mark.parametrize("codec", ["gz", "zst", "xz", "lz4", "bz2"])
def test_a_damaged_compressed_file_names_itself(folder: Path, cache: Cache, codec: str) -> None:
    content = compress(compressible("jsonl"), codec)
    for damaged in (content[: len(content) // 2], b"no compression at all\n" * 50):
        (folder / f"a.jsonl.{codec}").write_bytes(damaged)
        with pytest.raises(CorruptFileError, match=f"a.jsonl.{codec}"):
            open_rows(folder, cache=cache)


def test_a_compressed_file_is_decompressed_once_even_without_room_in_the_cache(folder: Path, tmp_path: Path) -> None:
    content = compressible("jsonl") * 10
    (folder / "a.jsonl.gz").write_bytes(gzip.compress(content, 1))
    for limit_bytes in (1 << 30, 1):
        cache = Cache(tmp_path / str(limit_bytes), limit_bytes=limit_bytes)
        rows = open_rows(folder, cache=cache)
        numbers = [rows.read(start, start + 100)["n"].tolist() for start in range(0, 30_000, 100)]
        assert [each for part in numbers for each in part] == list(range(3000)) * 10
        assert (cache.count_bytes() > len(content)) == (limit_bytes > 1)


def compressible(kind: str) -> bytes:
    numbers = range(3000)
    if kind == "csv":
        return b"n,text\n" + b"".join(b'%d,"%s"\n' % (n, b"word " * 90) for n in numbers)
    if kind == "jsonl":
        return b"".join(b'{"n": %d, "text": "%s"}\n' % (n, b"word " * 90) for n in numbers)
    if kind == "tfrecord":
        from tests.testbed.data.tfrecords import tfrecords

        return tfrecords({"n": [n], "text": [b"word " * 90]} for n in numbers)
    import io
    import tarfile

    stream = io.BytesIO()
    with tarfile.open(fileobj=stream, mode="w") as tar:
        for n in numbers:
            member = tarfile.TarInfo(f"{n:05}.txt")
            member.size = 450
            tar.addfile(member, io.BytesIO(b"word " * 90))
    return stream.getvalue()


def compress(content: bytes, codec: str) -> bytes:
    if codec == "xz":
        import lzma

        return lzma.compress(content, preset=0)
    name = {"gz": "gzip", "zst": "zstd"}.get(codec, codec)
    sink = pa.BufferOutputStream()
    with pa.CompressedOutputStream(sink, name) as stream:
        stream.write(content)
    return bytes(sink.getvalue())


def test_a_block_that_is_read_in_pieces_by_many_threads_is_decoded_once(
    folder: Path, cache: Cache, monkeypatch: pytest.MonkeyPatch
) -> None:
    write_parquet(folder / "a.parquet", 0, 8000, row_group_size=1000)
    decoded: list[tuple[int, int]] = []
    lock, original = threading.Lock(), ParquetReader.read

    def counting(self: ParquetReader, start: int, stop: int, columns: Sequence[str]) -> Columns:
        with lock:
            decoded.append((start, stop))
        return original(self, start, stop, columns)

    monkeypatch.setattr(ParquetReader, "read", counting)
    rows = open_rows(folder, cache=cache)
    with ThreadPoolExecutor(8) as pool:
        parts = list(pool.map(lambda start: rows.read(start, start + 100)["x"], range(0, 8000, 100)))
    assert np.concatenate(parts).tolist() == list(range(8000))
    assert sorted(decoded) == [(start, start + 1000) for start in range(0, 8000, 1000)]
    decoded.clear()
    fresh = open_rows(folder, cache=cache)
    assert fresh.read(500, 7500)["x"].tolist() == list(range(500, 7500))
    assert sorted(decoded) == [(0, 1000), (1000, 7000), (7000, 8000)]
    assert fresh.block_rows == 1000


def test_long_ranges_are_read_in_stretches(folder: Path, cache: Cache, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("strata.data.rows.row_sequence.STRETCH_BYTES", 20_000)
    write_parquet(folder / "a.parquet", 0, 20_000, row_group_size=700)
    rows = open_rows(folder, cache=cache)
    for start, stop in ((0, 20_000), (1, 19_999), (700, 2100), (699, 2101), (650, 660)):
        assert rows.read(start, stop)["x"].tolist() == list(range(start, stop))


def test_decoded_blocks_are_bounded_by_bytes(folder: Path, cache: Cache) -> None:
    write_parquet(folder / "a.parquet", 0, 64_000, row_group_size=1000)
    rows = open_rows(folder, cache=cache, memory_bytes=20_000)
    for start in range(0, 64_000, 500):
        rows.read(start, start + 500)
    assert rows._memory._size_bytes <= 20_000
    assert len(rows._memory._blocks) == 2


def test_a_block_that_was_decoded_while_its_turn_was_awaited_is_not_decoded_again(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    memory = BlockMemory(1000)
    first, second = (Columns({"x": np.full(3, value)}) for value in (1, 2))
    loading = memory._loading

    class Turn:
        """Another thread is done with the same block between the look into memory and the turn to decode."""

        def get(self, key: str, make: Callable[[], Columns]) -> Columns:
            loading.get(key, lambda: memory._load(key, lambda: first))
            return loading.get(key, make)

    monkeypatch.setattr(memory, "_loading", Turn())
    assert memory.get("a", lambda: second) is first
    assert memory.peek("a") is first


def test_rows_go_to_another_process_with_their_index(
    folder: Path, cache: Cache, monkeypatch: pytest.MonkeyPatch
) -> None:
    write_parquet(folder / "a.parquet", 0, 100)
    data = pickle.dumps(open_rows(folder, columns=["x"], options={"verify": True}, cache=cache))
    monkeypatch.setattr("strata.data.rows.scan.scan_files", None)
    copy: DatasetRows = pickle.loads(data)
    assert copy.read(98, 100)["x"].tolist() == [98, 99]
    assert copy.names == ("x",)


def test_a_scan_tells_of_every_byte_once(folder: Path, cache: Cache) -> None:
    (folder / "a.jsonl").write_bytes(compressible("jsonl") * 10)
    (folder / "b.jsonl.gz").write_bytes(gzip.compress(compressible("jsonl")))
    (folder / "c.jsonl").write_text("")
    source, told = open_source(folder), []
    files = source.list()
    scan_files(source, "jsonl", {}, files, cache, on_bytes=told.append)
    assert sum(told) == sum(info.size_bytes for info in files)
    assert len(told) > len(files)
