"""The cache: never more than its limit, never anything stale or torn, and the oldest use goes first."""

from __future__ import annotations

import fcntl
import os
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from strata.data.files.cache import DIGEST_BYTES, Cache, write_atomically

KEY = "ab" * 16


def test_a_block_comes_back_as_it_was_put(tmp_path: Path) -> None:
    cache = Cache(tmp_path / "cache")
    assert cache.get(KEY, 0) is None
    cache.put(KEY, 0, b"hello")
    cache.put(KEY, 1, bytearray(b""))
    cache.put(KEY, 0, memoryview(b"hello again"))
    assert cache.get(KEY, 0) == b"hello again"
    assert cache.get(KEY, 1) == b""
    assert Cache(tmp_path / "cache").get(KEY, 0) == b"hello again"


def test_the_block_used_longest_ago_goes_first(tmp_path: Path) -> None:
    cache = Cache(tmp_path, limit_bytes=10 * (100 + DIGEST_BYTES))
    for number in range(10):
        cache.put(KEY, number, bytes(100))
        age(cache, number, seconds=100 - number)
    assert cache.get(KEY, 0) is not None
    cache.put(KEY, 10, bytes(100))
    held = [number for number in range(11) if cache._path(KEY, number).exists()]
    assert held == [0, 2, 3, 4, 5, 6, 7, 8, 9, 10]


def age(cache: Cache, number: int, *, seconds: int) -> None:
    path = cache._path(KEY, number)
    now_ns = path.stat().st_mtime_ns
    os.utime(path, ns=(now_ns, now_ns - seconds * 10**9))


@given(
    sizes=st.lists(st.integers(0, 3000), max_size=40),
    limit_bytes=st.integers(1, 8000),
)
@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], max_examples=30)
def test_the_limit_holds_after_every_put(
    tmp_path_factory: pytest.TempPathFactory, sizes: list[int], limit_bytes: int
) -> None:
    cache = Cache(tmp_path_factory.mktemp("cache"), limit_bytes=limit_bytes)
    for number, size in enumerate(sizes):
        data = bytes([number]) * size
        cache.put(KEY, number, data)
        assert cache.count_bytes() <= limit_bytes
        fits = size + DIGEST_BYTES <= limit_bytes
        assert cache.get(KEY, number) == (data if fits else None)


@pytest.mark.parametrize("damage", [b"", b"short", b"x" * 200])
def test_a_damaged_block_is_not_given_and_not_kept(tmp_path: Path, damage: bytes) -> None:
    cache = Cache(tmp_path)
    cache.put(KEY, 0, bytes(184))
    path = cache._path(KEY, 0)
    path.write_bytes(damage)
    assert cache.get(KEY, 0) is None
    assert not path.exists()


def test_what_a_dead_process_left_is_counted_out_and_what_a_living_one_makes_is_kept(tmp_path: Path) -> None:
    cache = Cache(tmp_path, limit_bytes=1000)
    cache.put(KEY, 0, bytes(300))
    dead, living = tmp_path / "tmp" / "dead", tmp_path / "tmp" / "living"
    dead.write_bytes(bytes(300))
    with living.open("wb") as file:
        file.truncate(300)
        fcntl.flock(file, fcntl.LOCK_EX)
        (tmp_path / "usage").write_bytes(b"1000")
        cache.put(KEY, 1, bytes(300))
        assert not dead.exists()
        assert living.exists()
        assert cache.count_bytes() <= 1000
        assert cache.get(KEY, 1) == bytes(300)


def test_a_usage_that_is_no_number_is_counted_anew(tmp_path: Path) -> None:
    cache = Cache(tmp_path, limit_bytes=1000)
    for number in range(9):
        (tmp_path / "usage").write_bytes(b"torn?" if number % 2 else b"")
        cache.put(KEY, number, bytes(200))
        assert cache.count_bytes() <= 1000


def test_a_cache_that_cannot_be_written_is_done_without(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    (tmp_path / "cache").write_text("not a directory")
    cache = Cache(tmp_path / "cache")
    for number in range(3):
        cache.put(KEY, number, b"data")
        assert cache.get(KEY, number) is None
    assert len([record for record in caplog.records if "cannot be written" in record.message]) == 1


def test_a_block_that_cannot_be_put_in_place_leaves_nothing_behind(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    cache = Cache(tmp_path)
    cache.put("cd" * 16, 0, b"other")
    # A file stands where the folder of the block should be.
    (tmp_path / "blocks" / KEY[:2]).write_text("in the way")
    cache.put(KEY, 0, b"data")
    assert cache.get(KEY, 0) is None
    assert list((tmp_path / "tmp").iterdir()) == []
    assert f"the cache {tmp_path} cannot be written, so data is read without it" in caplog.text
    assert cache.get("cd" * 16, 0) == b"other"


def test_a_file_that_cannot_be_replaced_stays_and_leaves_nothing_beside_it(tmp_path: Path) -> None:
    (tmp_path / "index").mkdir()
    with pytest.raises(IsADirectoryError):
        write_atomically(tmp_path / "index", b"data")
    assert [path.name for path in tmp_path.iterdir()] == ["index"]


def test_a_cache_says_where_it_is_and_how_much_it_may_hold(tmp_path: Path) -> None:
    assert repr(Cache(tmp_path, limit_bytes=5)) == f"Cache('{tmp_path}', limit_bytes=5)"
    with pytest.raises(ValueError, match="limit_bytes=0 must be 1 or more"):
        Cache(tmp_path, limit_bytes=0)
