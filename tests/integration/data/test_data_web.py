"""Files on web servers and hubs that fail, move and hide things: the same rows, or an error that says what happened."""

from __future__ import annotations

import pickle
import sys
import urllib.request
from pathlib import Path
from typing import Any

import pytest

from strata.data.files.addresses import open_source
from strata.data.files.cache import Cache
from strata.data.files.web import ATTEMPTS, WebReader, _Redirects
from strata.data.rows.row_sequence import open_rows
from strata.data.rows.scan import choose_files, scan_files, store_index
from strata.errors import CorruptFileError, DataError, DatasetNotFoundError, MissingExtraError, ObjectNotFoundError
from tests.testbed.web import serve_files

# Connections of the test server and of the hub's library are closed when they are collected.
pytestmark = pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")

LINES = b'{"x": 1}\n{"x": 2}\n{"x": 3}\n'


@pytest.mark.parametrize("fault", [429, 503, "no reply", "half a reply"])
def test_a_request_that_fails_once_is_made_again(tmp_path: Path, fault: Any) -> None:
    with serve_files() as server:
        server.files["/a.jsonl"] = LINES
        server.faults = [fault]
        rows = open_rows(f"{server.url}/a.jsonl", cache=tmp_path / "cache")
        server.faults = [fault]
        assert rows.read(0, 3)["x"].tolist() == [1, 2, 3]
        assert server.faults == []


@pytest.mark.parametrize(
    ("fault", "problem", "requests"),
    [
        (403, "/a: the server answers 403 Forbidden", 1),
        (503, "/a: the server answers 503 Service Unavailable", ATTEMPTS),
        ("no reply", "/a: the server cannot be reached: Remote end closed connection without response", ATTEMPTS),
        ("half a reply", r"/a: the server breaks off in the middle of its reply: IncompleteRead\(2 bytes", ATTEMPTS),
    ],
)
async def test_a_server_that_goes_on_failing_is_named_with_its_failure(fault: Any, problem: str, requests: int) -> None:
    with serve_files() as server:
        server.files["/a"] = b"text"
        server.faults = [fault] * 100
        with pytest.raises(DataError, match=problem):
            await WebReader().read(f"{server.url}/a", length=4)
        assert len(server.asked) == requests


def test_a_server_that_hangs_up_when_it_is_first_asked_is_named(tmp_path: Path) -> None:
    with serve_files() as server:
        server.faults = ["no reply"] * 100
        with pytest.raises(DataError, match=r"a\.jsonl: the server cannot be reached: Remote end closed"):
            open_rows(f"{server.url}/a.jsonl", cache=tmp_path / "cache")


@pytest.mark.parametrize("has_ranges", [True, False])
async def test_a_range_is_those_bytes_whether_the_server_gives_ranges_or_not(has_ranges: bool) -> None:
    with serve_files(has_ranges=has_ranges) as server:
        server.files["/a"] = b"0123456789"
        reader, url = WebReader(), f"{server.url}/a"
        assert await reader.read(url, start=3, length=4) == b"3456"
        assert await reader.read(url, start=7) == b"789"
        assert await reader.read(url) == b"0123456789"
        server.asked.clear()
        assert await reader.read(url, start=3, length=0) == b""
        assert server.asked == []
        with pytest.raises(ObjectNotFoundError):
            await reader.read(f"{server.url}/b", length=1)


def test_a_file_that_became_shorter_without_a_new_version_is_not_read(tmp_path: Path) -> None:
    with serve_files(has_etag=False) as server:
        server.files["/a.uint16.bin"] = bytes(4096)
        rows = open_rows(f"{server.url}/a.uint16.bin", cache=tmp_path / "cache")
        server.files["/a.uint16.bin"] = bytes(4000)
        with pytest.raises(
            CorruptFileError, match=r"a\.uint16\.bin \(byte 0\).*: 4000 bytes came where 4096 were asked for"
        ):
            rows.read(0, 2)


def test_a_file_whose_size_the_server_does_not_say_is_read_to_its_end(tmp_path: Path) -> None:
    with serve_files(has_total=False) as server:
        server.files["/a.jsonl"] = LINES * 100
        rows = open_rows(f"{server.url}/a.jsonl", cache=tmp_path / "cache")
        assert rows.read(0, 300)["x"].tolist() == [1, 2, 3] * 100


async def test_a_token_is_not_sent_to_the_server_that_a_redirect_leads_to() -> None:
    with serve_files() as first, serve_files() as second:
        second.files["/a"] = b"text"
        first.redirects = {"/a": f"{first.url}/b", "/b": f"{second.url}/a"}
        assert await WebReader({"Authorization": "Bearer secret"}).read(f"{first.url}/a", length=4) == b"text"
        assert first.tokens == ["Bearer secret", "Bearer secret"]
        assert second.tokens == [None]


@pytest.mark.parametrize(
    ("old", "new", "is_kept"),
    [
        ("https://hub/a", "https://hub/b", True),
        ("http://hub/a", "https://hub/b", True),
        ("https://hub/a", "http://hub/b", False),
        ("https://hub/a", "https://hub:8443/b", False),
        ("https://hub/a", "https://other/a", False),
    ],
)
def test_a_token_stays_with_its_server_and_is_never_sent_in_the_clear(old: str, new: str, is_kept: bool) -> None:
    request = urllib.request.Request(old, headers={"Authorization": "Bearer secret", "Range": "bytes=0-1"})
    made = _Redirects().redirect_request(request, None, 302, "Found", {}, new)
    assert made.has_header("Authorization") == is_kept
    assert made.get_header("Range") == "bytes=0-1"


@pytest.mark.parametrize("has_ranges", [True, False])
def test_rows_of_a_web_server_go_to_another_process(tmp_path: Path, has_ranges: bool) -> None:
    with serve_files(has_ranges=has_ranges) as server:
        server.files["/a.jsonl"] = LINES
        data = pickle.dumps(open_rows(f"{server.url}/a.jsonl", cache=tmp_path / "cache"))
        assert pickle.loads(data).read(1, 3)["x"].tolist() == [2, 3]


def test_rows_of_the_hub_go_to_another_process(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with serve_files() as server:
        monkeypatch.setenv("HF_ENDPOINT", server.url)
        server.files["/hub/me/set/data/a.jsonl"] = LINES
        data = pickle.dumps(open_rows("hf://datasets/me/set@main/data", cache=tmp_path / "cache"))
        assert pickle.loads(data).read(1, 3)["x"].tolist() == [2, 3]


def test_a_pattern_below_a_file_of_the_hub_matches_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with serve_files() as server:
        monkeypatch.setenv("HF_ENDPOINT", server.url)
        server.files["/hub/me/set/a.jsonl"] = LINES
        with pytest.raises(DatasetNotFoundError, match=r"set/a\.jsonl: nothing here matches \*\.jsonl"):
            open_rows("hf://datasets/me/set/a.jsonl/*.jsonl", cache=tmp_path / "cache")


def test_a_hub_that_cannot_be_asked_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with serve_files() as server:
        monkeypatch.setenv("HF_ENDPOINT", server.url)
        server.faults = [403]
        with pytest.raises(
            DatasetNotFoundError, match=r"hf://datasets/me/set: the hub cannot be asked: .*403.*hf auth"
        ):
            open_rows("hf://datasets/me/set", cache=tmp_path / "cache")
    # Nobody listens there any more.
    with pytest.raises(DatasetNotFoundError, match=r"the hub cannot be asked: .*[Cc]onnection refused"):
        open_rows("hf://datasets/me/set", cache=tmp_path / "cache")


def test_an_address_of_the_hub_without_its_library_names_what_to_install(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "huggingface_hub", None)
    with pytest.raises(MissingExtraError, match=r"reading hf:// addresses.*strata.*\[hub\]"):
        open_rows("hf://datasets/me/set", cache=tmp_path / "cache")


@pytest.mark.parametrize("place", ["web", "hub", "list"])
def test_the_index_of_what_can_only_be_read_is_kept_in_the_cache(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, place: str
) -> None:
    cache = Cache(tmp_path / "cache")
    with serve_files() as server:
        monkeypatch.setenv("HF_ENDPOINT", server.url)
        server.files |= {"/hub/me/set/a.jsonl": LINES, "/a.jsonl": LINES, "/b.jsonl": LINES}
        web = [f"{server.url}/a.jsonl", f"{server.url}/b.jsonl"]
        address: Any = {"web": web[0], "hub": "hf://datasets/me/set", "list": web}[place]
        source = open_source(address)
        where = store_index(source, scan_files(source, "jsonl", {}, choose_files(source, None)[1], cache), cache)
        assert Path(where).is_relative_to(cache.directory)
        monkeypatch.setattr("strata.data.rows.scan.scan_files", None)
        assert open_rows(address, cache=cache).read(0, 3)["x"].tolist() == [1, 2, 3]
