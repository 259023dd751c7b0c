"""The contract of Storage, held against every backend on its real server or file system."""

from __future__ import annotations

import array
import asyncio
import contextlib
import hashlib
import mmap
import pickle
import shutil
import tempfile
import uuid
from typing import TYPE_CHECKING

import numpy as np
import pytest

from strata.errors import (
    CorruptObjectError,
    InvalidKeyError,
    ObjectChangedError,
    ObjectExistsError,
    ObjectNotFoundError,
    StorageError,
)
from strata.storage import (
    AzureStorage,
    GCSStorage,
    LocalStorage,
    MemoryStorage,
    RetryPolicy,
    S3Storage,
    Storage,
)
from tests.testbed.network.gcs_xml import xml_front

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

MIB = 1 << 20
PART_BYTES = 5 * MIB
RETRY = RetryPolicy(max_attempts=4, max_elapsed_s=20, request_timeout_s=20)
# Small, just around the sizes at which a backend changes its way of writing, and several parts with a rest.
SIZES = [0, 1, 4095, 4096, MIB - 1, MIB, 8 * MIB + 1, 17 * MIB + 12_345]


def random_bytes(size: int) -> bytes:
    return np.random.default_rng(size).bytes(size)


SERVERS = [pytest.param(name, marks=pytest.mark.part(name)) for name in ("s3", "azure", "gcs")]


@pytest.fixture(params=["local-ext4", "local-tmpfs", "memory", *SERVERS])
def open_storage(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Callable[[], Storage]]:
    """Opens the same store again and again, as another process would; each test has its own prefix."""
    prefix = f"contract/{uuid.uuid4().hex}"
    options = {"prefix": prefix, "retry": RETRY, "part_bytes": PART_BYTES, "concurrency": 3}
    match request.param:
        case "local-ext4":
            yield lambda: LocalStorage(tmp_path / "root")
        case "local-tmpfs":
            folder = tempfile.mkdtemp(dir="/dev/shm")
            yield lambda: LocalStorage(folder)
            shutil.rmtree(folder)
        case "memory":
            storage = MemoryStorage()
            yield lambda: storage
        case "s3":
            s3 = request.getfixturevalue("s3_server")
            yield lambda: S3Storage(
                s3.bucket,
                "us-east-1",
                s3.endpoint,
                access_key_id=s3.access_key,
                secret_access_key=s3.secret_key,
                **options,
            )
        case "azure":
            azure = request.getfixturevalue("azure_server")
            yield lambda: AzureStorage(
                azure.container,
                account=azure.account,
                account_key=azure.key,
                endpoint=azure.endpoint,
                **options,
            )
        case "gcs":
            gcs = request.getfixturevalue("gcs_server")
            with xml_front(gcs.endpoint) as endpoint:
                yield lambda: GCSStorage(gcs.bucket, endpoint=endpoint, access_token="any", **options)


@pytest.fixture
def storage(open_storage: Callable[[], Storage]) -> Storage:
    return open_storage()


async def names(storage: Storage, prefix: str = "") -> set[str]:
    return {info.path async for info in storage.list(prefix)}


class TestStorage:
    async def test_it_is_a_storage(self, storage: Storage) -> None:
        assert isinstance(storage, Storage)

    @pytest.mark.parametrize("size", SIZES)
    async def test_what_was_written_is_read_by_another(self, open_storage: Callable[[], Storage], size: int) -> None:
        data = random_bytes(size)
        await open_storage().write("a/b.bin", data)
        assert await open_storage().read("a/b.bin") == data

    @pytest.mark.parametrize("size", SIZES)
    async def test_a_writer_publishes_its_pieces_as_one(self, storage: Storage, size: int) -> None:
        data = memoryview(random_bytes(size))
        async with storage.writer("a/streamed") as writer:
            start = 0
            for step in [3, 1000, 4096, 3 * MIB, 100, 9 * MIB, size]:
                await writer.write(data[start : start + step])
                start = min(size, start + step)
            assert await names(storage) == set()
        assert await storage.read("a/streamed") == data

    async def test_a_writer_lets_its_caller_use_the_buffer_again(self, storage: Storage) -> None:
        buffer = bytearray(2 * MIB)
        digest = hashlib.sha256()
        async with storage.writer("reused") as writer:
            for round_number in range(9):
                buffer[:] = bytes([round_number]) * len(buffer)
                digest.update(buffer)
                await writer.write(buffer)
        assert hashlib.sha256(await storage.read("reused")).digest() == digest.digest()

    @pytest.mark.parametrize("written", [100, 12 * MIB])
    async def test_a_writer_left_by_an_exception_leaves_nothing(self, storage: Storage, written: int) -> None:
        with pytest.raises(RuntimeError, match="half way"):
            async with storage.writer("a/never") as writer:
                await writer.write(bytes(written))
                raise RuntimeError("half way")
        assert not await storage.exists("a/never")
        assert await names(storage) == set()

    async def test_a_piece_that_failed_keeps_the_object_from_being_published(self, storage: Storage) -> None:
        with pytest.raises(StorageError, match="an earlier piece of it was not written"):
            async with storage.writer("holes") as writer:
                await writer.write(bytes(6 * MIB))
                with pytest.raises(ValueError, match="contiguous"):
                    await writer.write(np.zeros((10, 10))[:, ::2])
        assert await names(storage) == set()

    async def test_a_cancelled_writer_leaves_the_old_object(self, storage: Storage) -> None:
        await storage.write("kept", b"old")
        reached = asyncio.Event()

        async def stall() -> None:
            async with storage.writer("kept") as writer:
                await writer.write(bytes(12 * MIB))
                reached.set()
                await asyncio.Event().wait()

        task = asyncio.create_task(stall())
        await reached.wait()
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        assert await storage.read("kept") == b"old"

    async def test_a_cancelled_write_leaves_the_old_object_or_the_whole_new_one(self, storage: Storage) -> None:
        old, new = b"old", random_bytes(12 * MIB)
        for turns in (0, 1, 2, 5, 20):
            await storage.write("contested", old)
            task = asyncio.create_task(storage.write("contested", new))
            for _ in range(turns):
                await asyncio.sleep(0)
            task.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await task
            assert await storage.read("contested") in (old, new)
            assert await names(storage) == {"contested"}

    async def test_write_replaces(self, storage: Storage) -> None:
        await storage.write("a", random_bytes(2 * MIB))
        await storage.write("a", b"short")
        assert await storage.read("a") == b"short"

    async def test_write_new_refuses_what_exists_and_leaves_it(self, storage: Storage) -> None:
        await storage.write_new("once", b"first")
        with pytest.raises(ObjectExistsError) as caught:
            await storage.write_new("once", b"second")
        assert caught.value.path == "once"
        assert await storage.read("once") == b"first"

    @pytest.mark.parametrize("size", [0, 1, 2 * MIB])
    async def test_write_new_writes_what_is_not_there(self, storage: Storage, size: int) -> None:
        data = random_bytes(size)
        await storage.write_new("deep/er/new", data)
        assert await storage.read("deep/er/new") == data

    async def test_of_24_writers_of_one_new_object_exactly_one_wins(self, open_storage: Callable[[], Storage]) -> None:
        storages = [open_storage() for _ in range(24)]
        bodies = [f"writer {number}".encode() for number in range(24)]
        outcomes = await asyncio.gather(
            *(storage.write_new("race", body) for storage, body in zip(storages, bodies, strict=True)),
            return_exceptions=True,
        )
        winners = [body for body, outcome in zip(bodies, outcomes, strict=True) if outcome is None]
        assert len(winners) == 1
        assert sum(isinstance(outcome, ObjectExistsError) for outcome in outcomes) == 23
        assert await open_storage().read("race") == winners[0]

    async def test_any_contiguous_buffer_is_taken_as_its_bytes(self, storage: Storage) -> None:
        numbers = np.arange(300_000, dtype=np.float64).reshape(3, 100, 1000)
        mapped = mmap.mmap(-1, 2 * MIB)
        mapped.write(random_bytes(2 * MIB))
        buffers = [
            numbers,
            mapped,
            array.array("i", range(10)),
            bytearray(b"xyz"),
            memoryview(b"abc")[1:],
            np.empty((0, 3)),
        ]
        for number, buffer in enumerate(buffers):
            await storage.write(f"buffer/{number}", buffer)
            assert await storage.read(f"buffer/{number}") == memoryview(buffer).tobytes()
        with pytest.raises(ValueError, match="contiguous"):
            await storage.write("buffer/strided", numbers[:, ::2])
        assert not await storage.exists("buffer/strided")

    async def test_ranges_are_exact(self, storage: Storage) -> None:
        size = 17 * MIB
        data = random_bytes(size)
        await storage.write("ranges", data)
        for start in (0, 1, 4096, 5 * MIB - 3, 8 * MIB, size - 1, size):
            assert await storage.read("ranges", start=start) == data[start:]
            for length in {min(length, size - start) for length in (0, 1, 4097, 9 * MIB)}:
                expected = data[start : start + length]
                assert await storage.read("ranges", start=start, length=length) == expected
                for buffer in (bytearray(length), mmap.mmap(-1, max(1, length))):
                    view = memoryview(buffer)[:length]
                    await storage.read_into("ranges", view, start=start)
                    assert view == expected

    async def test_read_into_fills_arrays_of_any_type(self, storage: Storage) -> None:
        tensor = np.arange(1_500_000, dtype=np.float32).reshape(1500, 1000)
        await storage.write("tensor", tensor)
        filled = np.zeros_like(tensor)
        await storage.read_into("tensor", filled[500:700], start=500 * 4000)
        assert np.array_equal(filled[500:700], tensor[500:700])
        assert not filled[:500].any()
        assert not filled[700:].any()

    async def test_reading_past_the_end_is_an_error_that_says_how_long_it_is(self, storage: Storage) -> None:
        await storage.write("short", bytes(100))
        for ask in (
            storage.read("short", start=50, length=51),
            storage.read("short", start=101),
            storage.read("short", start=200, length=1),
            storage.read("short", start=101, length=0),
            storage.read_into("short", bytearray(101)),
            storage.read_into("short", bytearray(1), start=100),
        ):
            with pytest.raises(CorruptObjectError, match="100 bytes"):
                await ask
        assert await storage.read("short", start=100) == b""

    async def test_a_range_or_buffer_that_cannot_be_meant_is_refused(self, storage: Storage) -> None:
        await storage.write("x", b"abc")
        with pytest.raises(ValueError, match="negative"):
            await storage.read("x", start=-1)
        with pytest.raises(ValueError, match="negative"):
            await storage.read("x", length=-1)
        with pytest.raises(ValueError, match="read-only"):
            await storage.read_into("x", b"abc")

    async def test_what_is_not_there_is_said_to_be_not_found(self, storage: Storage) -> None:
        await storage.write("there/x", b"1")
        for ask in (
            storage.read("nowhere"),
            storage.read("there", length=1),
            storage.read("there/y"),
            storage.read("there/x/y"),
            storage.read("nowhere", length=0),
            storage.read_into("nowhere/at/all", bytearray(1)),
        ):
            with pytest.raises(ObjectNotFoundError) as caught:
                await ask
            revived = pickle.loads(pickle.dumps(caught.value))
            assert (str(revived), revived.path) == (str(caught.value), caught.value.path)
        assert not await storage.exists("nowhere")
        assert not await storage.exists("there")
        assert await storage.exists("there/x")

    async def test_a_version_that_was_replaced_is_not_read(self, storage: Storage) -> None:
        await storage.write("a/b", b"first version")
        (info,) = [info async for info in storage.list("a")]
        assert info.etag is not None
        assert await storage.read("a/b", start=6, etag=info.etag) == b"version"
        assert await storage.read("a/b", start=13, etag=info.etag) == b""
        await storage.write("a/b", b"second version")
        for start in (0, 6, 14):
            with pytest.raises(ObjectChangedError):
                await storage.read("a/b", start=start, etag=info.etag)
        await storage.delete("a/b")
        # Azure looks at the condition first.
        with pytest.raises((ObjectNotFoundError, ObjectChangedError)):
            await storage.read("a/b", etag=info.etag)

    async def test_delete_removes_and_does_not_mind_what_is_gone(self, storage: Storage) -> None:
        await storage.write("d/e/f", b"1")
        await storage.write("d/g", b"2")
        await storage.delete("d/e/f")
        await storage.delete("d/e/f")
        await storage.delete("never/was")
        await storage.delete("d")
        assert await names(storage) == {"d/g"}

    async def test_list_yields_what_is_below_whole_segments(self, storage: Storage) -> None:
        paths = {"a/1", "a/2", "a/b/3", "a-b/4", "ab/5", "c"}
        for path in paths:
            await storage.write(path, path.encode())
        assert await names(storage) == paths
        assert await names(storage, "a") == {"a/1", "a/2", "a/b/3"}
        assert await names(storage, "a/") == {"a/1", "a/2", "a/b/3"}
        assert await names(storage, "a/b") == {"a/b/3"}
        assert await names(storage, "c") == set()
        assert await names(storage, "nothing/here") == set()

    async def test_list_tells_size_and_version(self, storage: Storage) -> None:
        await storage.write("info", b"12345")
        (first,) = [info async for info in storage.list()]
        assert (first.path, first.size_bytes) == ("info", 5)
        assert first.modified_s > 1_600_000_000
        await storage.write("info", b"54321")
        (second,) = [info async for info in storage.list()]
        assert first.etag != second.etag

    async def test_keys_with_odd_characters_mean_what_they_say(self, storage: Storage) -> None:
        odd = {
            "a b/ü%25?#&",
            "emoji😀/x",
            "plus+",
            "per%cent",
            "q?x=1",
            "~t/*",
            "dots.../x",
            ".hidden",
            "日本",
        }
        for path in odd:
            await storage.write(path, path.encode())
        assert await names(storage) == odd
        for path in odd:
            assert await storage.read(path) == path.encode()
            await storage.delete(path)
        assert await names(storage) == set()

    @pytest.mark.parametrize("path", ["../x", "/etc/passwd", "a//b", "", "a/./b", "a\0b", "a\\b", ".strata-tmp/x"])
    async def test_a_key_that_could_leave_the_root_is_refused_by_every_call(self, storage: Storage, path: str) -> None:
        for ask in (
            storage.write(path, b""),
            storage.write_new(path, b""),
            storage.read(path),
            storage.read_into(path, bytearray(1)),
            storage.exists(path),
            storage.delete(path),
        ):
            with pytest.raises(InvalidKeyError):
                await ask
        with pytest.raises(InvalidKeyError):
            async with storage.writer(path):
                pass
        if path:
            with pytest.raises(InvalidKeyError):
                await names(storage, path)

    async def test_a_reader_beside_a_writer_sees_whole_objects_only(self, open_storage: Callable[[], Storage]) -> None:
        size = 6 * MIB
        done = asyncio.Event()

        async def publish() -> None:
            storage = open_storage()
            for step in range(5):
                async with storage.writer(f"step_{step}/model.bin") as writer:
                    for _ in range(3):
                        await writer.write(bytes([step]) * (size // 3))
                await storage.write("latest", bytes([step]) * size)
            done.set()

        async def look() -> int:
            storage, seen = open_storage(), 0
            while not done.is_set():
                await asyncio.sleep(0)
                async for info in storage.list():
                    seen += 1
                    assert info.size_bytes == size
                    assert len(set(await storage.read(info.path))) == 1
            return seen

        async with asyncio.TaskGroup() as group:
            looking = group.create_task(look())
            group.create_task(publish())
        assert looking.result() > 0

    async def test_writers_and_deleters_of_one_directory_do_not_disturb_each_other(self, storage: Storage) -> None:
        async def churn(worker: int) -> None:
            for turn in range(8):
                path = f"shared/deep/{worker}-{turn}"
                await storage.write(path, b"x")
                await storage.delete(path)

        await asyncio.gather(*(churn(worker) for worker in range(6)))
        assert await names(storage) == set()

    async def test_its_repr_is_short_and_names_it(self, storage: Storage) -> None:
        assert type(storage).__name__ in repr(storage)
        assert len(repr(storage)) < 300
