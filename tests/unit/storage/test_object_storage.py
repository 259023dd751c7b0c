"""Object storage on a store in this process that breaks off, refuses, or changes under its reader."""

from __future__ import annotations

import asyncio
import itertools
import logging
import re
import threading
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import TYPE_CHECKING, Any
from urllib.parse import unquote, urlsplit

import obstore
import pytest
from obstore.store import MemoryStore

from strata.errors import (
    CorruptObjectError,
    ObjectChangedError,
    StorageError,
    StoragePermissionError,
    StorageUnavailableError,
)
from strata.storage import RetryPolicy, S3Storage
from strata.storage.object.download import VERSION_ATTEMPTS, read_bytes, read_into
from strata.storage.object.object_ref import ObjectRef
from strata.storage.object.upload import UploadWriter
from tests.testbed.pace import stretch
from tests.testbed.waiting import wait_until

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

QUICK = RetryPolicy(max_attempts=2, first_backoff_s=0.001, max_backoff_s=0.002)
CONTENT = bytes(range(256)) * 1024


@dataclass
class Bucket:
    """A bucket in memory that speaks as much of S3 as these tests need, and misbehaves as they say."""

    endpoint: str = ""
    objects: dict[str, bytes] = field(default_factory=dict)
    seen: list[str] = field(default_factory=list)
    refuse: Callable[[str], int | None] = lambda method: None
    """The status to refuse a request with, by its method."""
    cut: Callable[[bytes], tuple[bytes, int]] = lambda body: (body, len(body))
    """What is sent of the content of an object, and how long the answer is said to be."""
    undeleted: str = ""
    """The code with which no object is deleted, in an answer that says 200."""


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    bucket: Bucket

    def _handle(self) -> None:
        body = self.rfile.read(int(self.headers.get("Content-Length", 0)))
        key = unquote(urlsplit(self.path).path).removeprefix("/bucket").strip("/")
        self.bucket.seen.append(self.command)
        if (status := self.bucket.refuse(self.command)) is not None:
            self._answer(status)
        elif self.command == "POST":
            self._delete(re.findall(r"<Key>(.*?)</Key>", body.decode())[0])
        elif self.command == "PUT":
            is_refused = "If-None-Match" in self.headers and key in self.bucket.objects
            self.bucket.objects.setdefault(key, body)
            self._answer(412 if is_refused else 200, b"", ETag='"1"')
        elif self.command == "HEAD":
            when = {"Last-Modified": "Wed, 01 Jan 2025 00:00:00 GMT"}
            self._answer(200, length=len(self.bucket.objects[key]), ETag='"1"', **when)
        elif key:
            self._send(self.bucket.objects[key])
        else:
            self._answer(200, "".join(self._list()).encode())

    def _delete(self, key: str) -> None:
        done = f"<Deleted><Key>{key}</Key></Deleted>"
        if code := self.bucket.undeleted:
            done = f"<Error><Key>{key}</Key><Code>{code}</Code><Message>not done</Message></Error>"
        else:
            del self.bucket.objects[key]
        self._answer(200, f"<DeleteResult>{done}</DeleteResult>".encode())

    def _list(self) -> Iterator[str]:
        yield "<ListBucketResult><IsTruncated>false</IsTruncated>"
        for key, content in self.bucket.objects.items():
            yield f"<Contents><Key>{key}</Key><LastModified>2025-01-01T00:00:00.000Z</LastModified>"
            yield f"<ETag>1</ETag><Size>{len(content)}</Size></Contents>"
        yield "</ListBucketResult>"

    def _send(self, content: bytes) -> None:
        first, last = map(int, self.headers["Range"].removeprefix("bytes=").split("-"))
        wanted = content[first : last + 1]
        sent, length = self.bucket.cut(wanted)
        where = {"Content-Range": f"bytes {first}-{first + len(wanted) - 1}/{len(content)}"}
        when = {"Last-Modified": "Wed, 01 Jan 2025 00:00:00 GMT"}
        self._answer(206, sent, length, ETag='"1"', **where, **when)
        self.close_connection = True

    def _answer(self, status: int, body: bytes = b"", length: int | None = None, **headers: str) -> None:
        self.send_response(status)
        for name, value in headers.items():
            self.send_header(name, value)
        self.send_header("Content-Length", str(len(body) if length is None else length))
        self.end_headers()
        self.wfile.write(body)

    def __getattr__(self, name: str) -> Any:
        # The server looks for do_GET, do_PUT, do_POST: all are handled alike.
        if name.startswith("do_"):
            return self._handle
        raise AttributeError(name)

    def log_message(self, *_: Any) -> None:
        """Say nothing: ``seen`` has it all."""


@pytest.fixture
def bucket() -> Iterator[Bucket]:
    bucket = Bucket()
    handler = type("Handler", (_Handler,), {"bucket": bucket})
    with ThreadingHTTPServer(("127.0.0.1", 0), handler) as server:
        server.daemon_threads = True
        bucket.endpoint = f"http://127.0.0.1:{server.server_address[1]}"
        thread = threading.Thread(target=server.serve_forever, args=(0.01,), daemon=True)
        thread.start()
        try:
            yield bucket
        finally:
            server.shutdown()
            thread.join(stretch(10))


def s3(bucket: Bucket, **options: Any) -> S3Storage:
    given = {"access_key_id": "key", "secret_access_key": "secret", "retry": QUICK}
    return S3Storage("bucket", "us-east-1", bucket.endpoint, **(given | options))


async def test_an_answer_that_breaks_off_is_asked_for_again_until_all_of_it_is_there(bucket: Bucket) -> None:
    bucket.objects["x"] = CONTENT
    # obstore asks once more by itself; after the second cut it gives up.
    cuts = iter([1_000, 100_000])
    bucket.cut = lambda body: (body[: next(cuts, len(body))], len(body))
    assert await s3(bucket).read("x") == CONTENT
    assert next(cuts, None) is None


async def test_a_buffer_is_filled_from_where_it_is_asked_for(bucket: Bucket) -> None:
    bucket.objects["x"] = CONTENT
    buffer = bytearray(100)
    await s3(bucket).read_into("x", buffer, start=7)
    assert buffer == CONTENT[7:107]


async def test_answers_that_always_break_off_are_given_up_with_the_reason(bucket: Bucket) -> None:
    bucket.objects["x"] = CONTENT
    bucket.cut = lambda body: (body[:1_000], len(body))
    with pytest.raises(StorageUnavailableError, match="x: the store cannot be used: the connection broke"):
        await s3(bucket).read("x")


async def test_a_store_that_sends_less_than_it_was_asked_for_is_not_believed(bucket: Bucket) -> None:
    bucket.objects["x"] = CONTENT
    cuts = iter([1_000])
    bucket.cut = lambda body: (sent := body[: next(cuts, len(body))], len(sent))
    assert await s3(bucket).read("x") == CONTENT
    bucket.cut = lambda body: (body[:1_000], 1_000)
    with pytest.raises(CorruptObjectError, match="x: the store sent 1000 bytes of 262144"):
        await s3(bucket).read("x")


async def test_a_listing_that_fails_is_asked_for_again(bucket: Bucket) -> None:
    bucket.objects = {"a": b"1", "b": b"22"}
    refusals = iter([503] * 5)
    bucket.refuse = lambda method: next(refusals, None)
    storage = s3(bucket, retry=RetryPolicy(first_backoff_s=0.001, max_backoff_s=0.002))
    assert [(info.path, info.size_bytes) async for info in storage.list()] == [("a", 1), ("b", 2)]


async def test_requests_that_a_store_does_not_answer_are_logged_in_one_line_until_it_goes_on(
    bucket: Bucket, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.WARNING)
    storage = s3(bucket, retry=RetryPolicy())
    bucket.objects = {"old": b"old", "other": b""}
    answering = threading.Event()
    bucket.refuse = lambda method: None if answering.wait(stretch(60)) else 500

    async def write_in_pieces() -> None:
        async with storage.writer("pieces") as writer:
            await writer.write(b"piece")

    async def list_all() -> None:
        assert [info async for info in storage.list()]

    asked = [
        storage.read("old"),
        storage.read_into("old", bytearray(3)),
        storage.write("new", b"new"),
        storage.write_new("manifest", b"{}"),
        storage.exists("old"),
        storage.delete("other"),
        write_in_pieces(),
        list_all(),
    ]
    where = f"s3://bucket at {bucket.endpoint.removeprefix('http://')}"
    try:
        async with asyncio.TaskGroup() as group:
            for each in asked:
                group.create_task(each)
            await asyncio.to_thread(wait_until, lambda: "and 7 more" in caplog.text)
            answering.set()
    finally:
        answering.set()
    await asyncio.to_thread(wait_until, lambda: f"{where}: goes on after " in caplog.text)
    assert f"{where}: waiting for 3 s to " in caplog.text


async def test_attempts_that_are_refused_for_long_are_logged_with_the_reason(
    bucket: Bucket, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.WARNING)
    bucket.objects["x"] = CONTENT
    bucket.refuse = lambda method: None if "to look up x" in caplog.text else 503
    storage = s3(bucket, retry=RetryPolicy(first_backoff_s=0.01, max_backoff_s=0.1))
    assert await storage.exists("x")
    problem = "the store cannot be used: it answered 503; trying again for 300 s in all"
    assert re.search(rf"waiting for \d s to look up x; {problem}", caplog.text)


@pytest.mark.parametrize("refusal", [403, "AccessDenied"])
async def test_credentials_that_may_not_delete_leave_the_probe_and_commit_all_the_same(
    bucket: Bucket, caplog: pytest.LogCaptureFixture, refusal: int | str
) -> None:
    if isinstance(refusal, int):
        bucket.refuse = lambda method: refusal if method == "POST" else None
    else:
        bucket.undeleted = refusal
    storage = s3(bucket)
    await storage.write_new("manifest", b"{}")
    (found,) = [key for key in bucket.objects if key != "manifest"]
    assert f"s3://bucket: not allowed to delete the probe {found}; it stays" in caplog.text
    assert [info.path async for info in storage.list()] == ["manifest"]
    with pytest.raises(StoragePermissionError, match="manifest: refused: it answered"):
        await storage.delete("manifest")


async def test_a_store_that_has_lost_what_is_to_be_deleted_is_as_good_as_one_that_deletes_it(
    bucket: Bucket, caplog: pytest.LogCaptureFixture
) -> None:
    bucket.undeleted = "NoSuchKey"
    storage = s3(bucket)
    await storage.write_new("manifest", b"{}")
    await storage.delete("manifest")
    assert caplog.text == ""


@pytest.mark.parametrize(
    ("options", "problem"),
    [
        ({"part_bytes": (5 << 20) - 1}, "part_bytes=5242879 is less than 5242880, which S3 asks for"),
        ({"concurrency": 0}, "concurrency=0 must be 1 or more"),
    ],
)
def test_transfers_that_no_store_takes_are_refused(options: dict[str, int], problem: str) -> None:
    with pytest.raises(ValueError, match=problem):
        S3Storage("bucket", access_key_id="key", secret_access_key="secret", **options)


async def test_write_new_refuses_what_one_request_cannot_carry(bucket: Bucket) -> None:
    storage = s3(bucket, max_single_put_bytes=9)
    with pytest.raises(StorageError, match=r"10 bytes are more than one conditional PUT takes \(9\); use write\(\)"):
        await storage.write_new("large", bytes(10))
    assert bucket.seen == []
    await storage.write_new("small", bytes(9))
    assert bucket.objects["small"] == bytes(9)


def small_parts(store: MemoryStore) -> ObjectRef:
    return ObjectRef(store, "job/x", "x", "memory", part_bytes=4, concurrency=2)


async def test_a_writer_that_needs_more_parts_than_the_store_takes_says_what_to_do() -> None:
    store = MemoryStore()
    writer = UploadWriter(small_parts(store), max_parts=2, where="memory")
    await writer.write(bytes(8))
    with pytest.raises(StorageError, match="it has more than 2 parts of 4 bytes; open the storage with a larger part"):
        await writer.write(bytes(4))
    await writer.abandon()
    assert obstore.list(store).collect() == []


@pytest.fixture
def restless(monkeypatch: pytest.MonkeyPatch) -> ObjectRef:
    """An object of several ranges that another writer replaces whenever a range of it was asked for."""
    store, turns, really_get = MemoryStore(), itertools.count(1), obstore.get_async

    async def get_and_replace(store: MemoryStore, key: str, **options: Any) -> Any:
        result = await really_get(store, key, **options)
        obstore.put(store, key, bytes([next(turns)]) * 64)
        return result

    obstore.put(store, "job/x", bytes(64))
    monkeypatch.setattr(obstore, "get_async", get_and_replace)
    return small_parts(store)


async def test_an_object_that_changes_with_every_look_is_given_up_and_never_mixed(restless: ObjectRef) -> None:
    problem = f"x: it was replaced {VERSION_ATTEMPTS} times while it was read; let its writers pause"
    with pytest.raises(StorageError, match=problem):
        await read_bytes(restless, 0, None)
    with pytest.raises(StorageError, match=problem):
        await read_into(restless, memoryview(bytearray(64)), 0)


async def test_who_asks_for_one_version_is_told_that_it_changed(restless: ObjectRef) -> None:
    etag = obstore.head(restless.store, restless.key)["e_tag"]
    with pytest.raises(ObjectChangedError, match="x"):
        await read_bytes(restless, 0, None, etag)
