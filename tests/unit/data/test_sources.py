"""Places with files: each lists, opens and keeps an index as it promises, also when the files are bad or gone."""

from __future__ import annotations

import asyncio
import errno
import gc
import gzip
import io
import os
import pickle
import shutil
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa
import pytest

from strata.data import open_dataset
from strata.data.files import patterns, random_access
from strata.data.files.addresses import open_source
from strata.data.files.cache import BLOCK_BYTES, Cache
from strata.data.files.compressed import CompressedFile, StreamedFile
from strata.data.files.patterns import expand_braces
from strata.data.files.random_access import STREAM_BYTES, LocalFile
from strata.data.rows.index import Index
from strata.data.rows.row_sequence import open_rows
from strata.data.rows.scan import choose_files, scan_files, store_index
from strata.errors import CorruptFileError, DatasetNotFoundError, StaleIndexError, StorageError, StoragePermissionError
from strata.storage import LocalStorage, MemoryStorage

if TYPE_CHECKING:
    from strata.data.files.random_access import ByteFile

KEY = "ab" * 16
LINES = b'{"x": 1}\n{"x": 2}\n'
CONTENT = bytes(range(256)) * 20_000
assert len(CONTENT) > max(STREAM_BYTES, 4 * BLOCK_BYTES)


@pytest.fixture
def cache(tmp_path: Path) -> Cache:
    return Cache(tmp_path / "cache")


@pytest.fixture(params=["local", "stored", "stored and cached", "streamed", "compressed"])
def file(request: pytest.FixtureRequest, tmp_path: Path, cache: Cache) -> ByteFile:
    """One file of each kind, all with the same content."""
    path = tmp_path / "a.bin"
    path.write_bytes(CONTENT)
    if request.param == "local":
        return LocalFile(str(path))
    if request.param == "streamed":
        return StreamedFile(partial(io.BytesIO, CONTENT), str(path), size_bytes=len(CONTENT), key=KEY, cache=cache)
    if request.param == "compressed":
        packed = tmp_path / "a.bin.zst"
        with pa.CompressedOutputStream(str(packed), "zstd") as sink:
            sink.write(CONTENT)
        return CompressedFile(LocalFile(str(packed)), "zstd", size_bytes=len(CONTENT), key=KEY, cache=cache)
    source = open_source("a.bin", LocalStorage(tmp_path))
    return source.open(source.list()[0], cache if "cached" in request.param else None)


def test_a_file_gives_any_of_its_bytes_in_any_order(file: ByteFile) -> None:
    assert file.size_bytes == len(CONTENT)
    for start, length in ((len(CONTENT) - 5, 5), (0, 9), (BLOCK_BYTES - 3, BLOCK_BYTES + 7), (7, 1), (3, 0)):
        file.will_need(start, length)
        assert file.read(start, length).to_pybytes() == CONTENT[start : start + length]
    assert file.read(len(CONTENT), 0).to_pybytes() == b""
    assert b"".join(piece.to_pybytes() for piece in file.stream()) == CONTENT


def test_data_that_is_kept_keeps_its_mapping_but_no_open_file(tmp_path: Path) -> None:
    path = tmp_path / "a.bin"
    path.write_bytes(CONTENT)
    kept = [LocalFile(str(path)).read(number, 2) for number in range(9)]
    gc.collect()
    assert not [each for each in Path("/proc/self/fd").iterdir() if each.exists() and each.samefile(path)]
    path.unlink()
    assert [view.to_pybytes() for view in kept] == [CONTENT[number : number + 2] for number in range(9)]
    assert Path("/proc/self/maps").read_text().count(str(path)) == 9
    del kept
    gc.collect()
    assert str(path) not in Path("/proc/self/maps").read_text()


def test_what_cannot_be_mapped_is_an_error_of_the_system(tmp_path: Path) -> None:
    (tmp_path / "a.bin").write_bytes(CONTENT)
    with pytest.raises(OSError, match="No such device") as caught:
        LocalFile(str(tmp_path))
    assert caught.value.errno == errno.ENODEV


def test_what_was_streamed_to_its_end_is_closed(cache: Cache) -> None:
    opened: list[io.BytesIO] = []

    def open_stream() -> io.BytesIO:
        opened.append(io.BytesIO(CONTENT))
        return opened[-1]

    file = StreamedFile(open_stream, "a.bin", size_bytes=len(CONTENT), key=KEY, cache=cache)
    assert sum(piece.size for piece in file.stream()) == len(CONTENT)
    assert [stream.closed for stream in opened] == [True]


class FailingOnce(io.BytesIO):
    """Gives a little at a time, and fails once inside of a block."""

    def __init__(self, data: bytes, *, fail_at: int) -> None:
        super().__init__(data)
        self.fail_at = fail_at

    def read(self, size: int | None = -1) -> bytes:
        if self.fail_at and self.tell() >= self.fail_at:
            self.fail_at = 0
            raise ConnectionResetError("the connection was reset")
        return super().read(min(100_000, size if size is not None and size >= 0 else 100_000))


def test_a_stream_that_failed_inside_of_a_block_is_not_read_on_from_there(cache: Cache) -> None:
    opened: list[FailingOnce] = []

    def open_stream() -> FailingOnce:
        opened.append(FailingOnce(CONTENT, fail_at=0 if opened else BLOCK_BYTES + 300_000))
        return opened[-1]

    file = StreamedFile(open_stream, "a.bin", size_bytes=len(CONTENT), key=KEY, cache=cache)
    problem = (
        rf"a\.bin \(byte {BLOCK_BYTES} of the content or after\).*cannot be read to its end: the connection was reset"
    )
    with pytest.raises(CorruptFileError, match=problem):
        file.read(2 * BLOCK_BYTES, 10)
    assert opened[0].closed
    assert file.read(2 * BLOCK_BYTES, 10).to_pybytes() == CONTENT[2 * BLOCK_BYTES :][:10]
    assert file.read(0, len(CONTENT)).to_pybytes() == CONTENT
    assert len(opened) == 2


def test_bytes_behind_the_end_of_a_file_are_never_made_up(file: ByteFile) -> None:
    with pytest.raises(CorruptFileError, match=rf"byte {len(CONTENT)}\).*it ends there, but {len(CONTENT) + 1} bytes"):
        file.read(len(CONTENT) - 3, 4)


@pytest.mark.parametrize(("start", "length"), [(2 * len(CONTENT), 5), (BLOCK_BYTES, -5), (-5, 10), (5, 2**62)])
def test_bytes_that_are_announced_and_not_there_do_no_harm(file: ByteFile, start: int, length: int) -> None:
    file.will_need(start, length)
    assert file.read(7, 3).to_pybytes() == CONTENT[7:10]


def test_arrow_and_zipfile_get_a_file_that_they_can_move_in(file: ByteFile) -> None:
    native = file.native()
    assert native.readable()
    assert native.seekable()
    native.seek(-4, 2)
    assert native.read() == CONTENT[-4:]
    native.seek(10)
    native.seek(5, 1)
    assert native.read(3) == CONTENT[15:18]
    assert native.tell() == 18
    assert native.size() == len(CONTENT)


def test_links_that_lead_to_each_other_are_named(tmp_path: Path, cache: Cache) -> None:
    (tmp_path / "data").mkdir()
    (tmp_path / "data/a.jsonl").symlink_to("b.jsonl")
    (tmp_path / "data/b.jsonl").symlink_to("a.jsonl")
    with pytest.raises(StorageError, match=r"data/[ab]\.jsonl.*[Tt]oo many levels of symbolic links"):
        open_rows(tmp_path / "data", cache=cache)


def test_a_file_that_cannot_be_opened_any_more_says_what_became_of_it(tmp_path: Path, cache: Cache) -> None:
    path = tmp_path / "data" / "a.jsonl"
    path.parent.mkdir()
    path.write_bytes(LINES)
    source = open_source(path)
    (info,) = source.list()
    path.unlink()
    with pytest.raises(StaleIndexError, match=r"a\.jsonl is gone since"):
        source.open(info, cache)
    path.symlink_to(path)
    with pytest.raises(StorageError, match=r"a\.jsonl.*[Tt]oo many levels of symbolic links"):
        source.open(info, cache)
    path.unlink()
    path.write_bytes(LINES + b"\n")
    with pytest.raises(StaleIndexError, match=f"went from {len(LINES)} to {len(LINES) + 1} bytes"):
        source.open(info, cache)
    path.write_bytes(LINES)
    os.utime(path, ns=(1, 1))
    with pytest.raises(StaleIndexError, match=r"a\.jsonl was written again"):
        source.open(info, cache)


def index(address: Any, cache: Cache, **options: Any) -> str:
    source = open_source(address, **options)
    return store_index(source, scan_files(source, "jsonl", {}, choose_files(source, None)[1], cache), cache)


def test_an_index_that_cannot_be_put_beside_local_data_is_kept_in_the_cache(tmp_path: Path, cache: Cache) -> None:
    (tmp_path / "data").mkdir()
    (tmp_path / "data/a.jsonl").write_bytes(LINES)
    beside = Path(index(tmp_path / "data", cache))
    assert beside.parent == tmp_path / "data"
    # What is in its place cannot be replaced.
    beside.unlink()
    beside.mkdir()
    assert Path(index(tmp_path / "data", cache)).is_relative_to(cache.directory)
    assert sorted(path.name for path in beside.parent.iterdir()) == sorted(["a.jsonl", beside.name])
    assert open_rows(tmp_path / "data", cache=cache).num_rows == 2


class ReadOnlyStorage(MemoryStorage):
    """Refuses every write once it is closed to them."""

    is_closed = False

    async def write(self, path: str, data: Any, **options: Any) -> Any:
        if self.is_closed:
            raise StoragePermissionError(path, backend="memory", problem="it is read-only", hint="ask for access")
        return await super().write(path, data, **options)


def test_an_index_that_a_storage_refuses_is_kept_in_the_cache(cache: Cache, monkeypatch: pytest.MonkeyPatch) -> None:
    storage = ReadOnlyStorage()
    asyncio.run(storage.write("d/a.jsonl", LINES))
    storage.is_closed = True
    assert Path(index("d", cache, storage=storage)).is_relative_to(cache.directory)
    monkeypatch.setattr("strata.data.rows.scan.scan_files", None)
    assert open_rows("d", storage=storage, cache=cache).read(0, 2)["x"].tolist() == [1, 2]


class PortableStorage(LocalStorage):
    """A storage that another process can open."""

    def __init__(self, root: str) -> None:
        super().__init__(root)
        self.arguments = (root,)

    def __reduce__(self) -> tuple[Any, ...]:
        return PortableStorage, self.arguments


def test_rows_of_a_storage_go_to_another_process_with_it(tmp_path: Path, cache: Cache) -> None:
    (tmp_path / "data").mkdir()
    (tmp_path / "data/a.jsonl").write_bytes(LINES)
    rows = open_rows("data", storage=PortableStorage(str(tmp_path)), cache=cache)
    assert pickle.loads(pickle.dumps(rows)).read(0, 2)["x"].tolist() == [1, 2]


def test_a_place_that_was_opened_by_its_url_is_opened_by_it_in_another_process() -> None:
    source = open_source("s3://bucket/train/*.jsonl")
    copy = pickle.loads(pickle.dumps(source))
    assert (copy.url, copy.selection) == ("s3://bucket/train", "*.jsonl")
    assert copy.name_of("a.jsonl") == "s3://bucket/train/a.jsonl"
    # Credentials and settings are those of the process that reads.
    assert copy._storage is not source._storage
    assert b"secret" not in pickle.dumps(source).lower()


def test_braces_that_stand_for_too_many_paths_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(patterns, "MAX_EXPANDED", 10)
    assert len(expand_braces("{0..4}{a,b}")) == 10
    with pytest.raises(ValueError, match=r"'\{0..4\}\{a,b,c\}' stands for more than 10 paths; name fewer"):
        expand_braces("{0..4}{a,b,c}")


def test_a_list_in_braces_may_be_longer_than_any_name(tmp_path: Path, cache: Cache) -> None:
    names = [f"part-{number:04}" for number in range(60)]
    for name in names:
        (tmp_path / f"{name}.jsonl").write_bytes(LINES)
    address = f"{tmp_path}/{{{','.join(names)}}}.jsonl"
    assert open_rows(address, cache=cache).num_rows == 120


@pytest.mark.parametrize("address", ["x" * 300, "x" * 300 + "/*.jsonl"])
def test_a_name_that_no_file_can_have_is_named(tmp_path: Path, cache: Cache, address: str) -> None:
    with pytest.raises(StorageError, match=r"xxx.*File name too long"):
        open_rows(f"{tmp_path}/{address}", cache=cache)


@pytest.mark.parametrize("address", ["a\0b", "a\0b/*.jsonl"])
def test_a_name_with_a_null_character_is_not_there(tmp_path: Path, cache: Cache, address: str) -> None:
    with pytest.raises(DatasetNotFoundError, match="there is no such file or directory"):
        open_rows(f"{tmp_path}/{address}", cache=cache)


def replace(path: Path, content: bytes, how: str) -> None:
    """Give the file other content, and the size and time of modification that it had."""
    before = path.stat()
    assert len(content) == before.st_size
    # The clock of file systems has ticks, and within one nothing tells a file from what it was.
    probe = path.with_name(".probe")
    probe.touch()
    while probe.stat().st_ctime_ns <= before.st_ctime_ns:
        probe.touch()
    if how == "renamed":
        path.with_name(".other").write_bytes(content)
        path.with_name(".other").rename(path)
    else:
        path.write_bytes(content)
    os.utime(path, ns=(before.st_atime_ns, before.st_mtime_ns))
    assert path.stat().st_mtime_ns == before.st_mtime_ns


OTHER_LINES = b'{"x": 8}\n{"x": 9}\n'
HOWS = ["renamed", "written over"]


def write_lines(path: Path, lines: bytes) -> bytes:
    """Return the content of a file of these lines, compressed if its ending says so, as long for all lines."""
    if path.suffix != ".gz":
        return lines
    return gzip.compress(lines, compresslevel=0, mtime=0)


@pytest.mark.parametrize("how", HOWS)
@pytest.mark.parametrize("name", ["a.jsonl", "a.jsonl.gz"])
@pytest.mark.parametrize("place", ["folder", "file", "list", "storage"])
def test_a_file_that_was_replaced_in_secret_is_not_read_as_the_old_one(
    tmp_path: Path, cache: Cache, name: str, how: str, place: str
) -> None:
    (tmp_path / "data").mkdir()
    path = tmp_path / "data" / name
    path.write_bytes(write_lines(path, LINES))
    address: Any = {"folder": path.parent, "file": path, "list": [path, path], "storage": "data"}[place]
    storage = LocalStorage(tmp_path) if place == "storage" else None
    rows = open_rows(address, cache=cache, storage=storage)
    assert rows.read(0, 2)["x"].tolist() == [1, 2]
    not_begun = open_rows(address, cache=Cache(tmp_path / "empty"), storage=storage)
    replace(path, write_lines(path, OTHER_LINES), how)
    # Opened before: its row numbers are those of the old file.
    with pytest.raises(StaleIndexError, match=rf"{name} was (written again|replaced)"):
        not_begun.read(0, 2)
    # Opened now: the new file, whatever the cache has of the old one.
    fresh = open_rows(address, cache=cache, storage=storage)
    assert fresh.read(0, 2)["x"].tolist() == [8, 9]


def test_a_file_that_is_written_over_while_it_is_open_is_noticed_at_the_next_read(tmp_path: Path, cache: Cache) -> None:
    path = tmp_path / "a.npy"
    np.save(path, np.array([1, 2]))
    content = path.read_bytes()
    rows = open_rows(path, cache=cache)
    assert rows.read(0, 1)["data"].tolist() == [1]
    replace(path, content.replace(b"\2", b"\7"), "written over")
    with pytest.raises(StaleIndexError, match=r"a\.npy was written again"):
        rows.read(1, 2)


def test_a_file_that_is_renamed_over_or_removed_while_it_is_open_is_read_as_it_was(
    tmp_path: Path, cache: Cache
) -> None:
    path = tmp_path / "a.npy"
    np.save(path, np.array([1, 2]))
    rows = open_rows(path, cache=cache)
    assert rows.read(0, 1)["data"].tolist() == [1]
    replace(path, path.read_bytes().replace(b"\2", b"\7"), "renamed")
    assert rows.read(1, 2)["data"].tolist() == [2]
    path.unlink()
    assert rows.read(1, 2)["data"].tolist() == [2]


@pytest.mark.parametrize("how", HOWS)
def test_a_stored_index_does_not_fit_a_file_that_was_replaced_in_secret(tmp_path: Path, cache: Cache, how: str) -> None:
    path = tmp_path / "a.jsonl"
    path.write_bytes(LINES)
    index(tmp_path, cache)
    replace(path, OTHER_LINES, how)
    assert open_rows(tmp_path, cache=cache).read(0, 2)["x"].tolist() == [8, 9]
    replace(path, b'{"x": 8.123456789}', how)
    with pytest.raises(StaleIndexError, match=r"a\.jsonl was replaced by a file of the same size and time"):
        open_rows(tmp_path, cache=cache)
    stored = Path(index(tmp_path, cache))
    before = stored.read_bytes()
    assert open_rows(tmp_path, cache=cache).num_rows == 1
    assert stored.read_bytes() == before


def test_a_copy_of_a_dataset_resumes_what_the_original_began(tmp_path: Path, cache: Cache) -> None:
    original, copied = tmp_path / "original", tmp_path / "copied"
    original.mkdir()
    for name in ("a", "b"):
        (original / f"{name}.jsonl").write_bytes(LINES)
    index(original, cache)
    dataset = open_dataset(original, batch_size=1, seed=3, cache=cache)
    batches = iter(dataset)
    seen = [next(batches)["x"].tolist() for _ in range(2)]
    state = dataset.state_dict()
    shutil.copytree(original, copied)  # keeps times of modification, and nothing else
    resumed = open_dataset(copied, batch_size=1, seed=3, cache=cache)
    resumed.load_state_dict(state)
    rest = [batch["x"].tolist() for batch in resumed]
    assert sorted(x for batch in [*seen, *rest] for x in batch) == [1, 1, 2, 2]
    # The index that came along was of the original's files; now it is of the copies, and is used as it is.
    stored = Index.from_bytes(next(copied.glob("_strata_index*")).read_bytes(), name="")
    assert list(stored.files) == list(open_source(copied).list())


def test_a_copy_with_a_bad_file_is_read_without_it_where_that_is_wanted(tmp_path: Path, cache: Cache) -> None:
    original, copied = tmp_path / "original", tmp_path / "copied"
    original.mkdir()
    for name in ("a", "b"):
        (original / f"{name}.jsonl").write_bytes(LINES)
    index(original, cache)
    fingerprint = open_rows(original, cache=cache).fingerprint
    shutil.copytree(original, copied)
    replace(copied / "b.jsonl", b"x" * len(LINES), "renamed")
    with pytest.raises(CorruptFileError):
        open_rows(copied, cache=cache)
    rows = open_rows(copied, cache=cache, skip_bad=True)
    assert rows.fingerprint == fingerprint
    assert rows.read(0, 2)["x"].tolist() == [1, 2]
    with pytest.raises(CorruptFileError):
        rows.read(2, 4)


def test_a_file_system_in_user_space_may_number_its_files_anew(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    path = tmp_path / "a"
    path.write_bytes(b"x")
    status = path.stat()
    number = f"{os.major(status.st_dev)}:{os.minor(status.st_dev)}"
    for kind, is_part in (("ext4", True), ("fuse.sshfs", False), ("fuseblk", False)):
        random_access.has_lasting_numbers.cache_clear()
        mounts = f"1 2 9:9 / /x rw - tmpfs x rw\n3 4 {number} / /y rw shared:7 - {kind} x rw\n"
        monkeypatch.setattr(random_access, "_read_mounts", lambda mounts=mounts: mounts)
        assert (str(status.st_ino) in random_access.version_of(status)) is is_part
    random_access.has_lasting_numbers.cache_clear()
