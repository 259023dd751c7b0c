"""Storage through real faults: killed processes, full and broken disks, servers that die, lie or storm."""

from __future__ import annotations

import asyncio
import os
import signal
import socket
import subprocess
import sys
import threading
import uuid
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from scripts.parts import find_program
from strata.errors import (
    ObjectExistsError,
    StorageError,
    StorageFullError,
    StoragePermissionError,
    StorageUnavailableError,
    UnsafeStoreError,
)
from strata.storage import AzureStorage, LocalStorage, RetryPolicy, S3Storage
from strata.storage.local.temporary import DIRECTORY
from tests.testbed import mounts, servers
from tests.testbed.gateway import Fate, Gateway, gateway_to
from tests.testbed.parts import require_root
from tests.testbed.process import start

if TYPE_CHECKING:
    from collections.abc import Iterator

    from tests.testbed.servers import AzureServer, S3Server

MIB = 1 << 20
ROOT = Path(__file__).parents[3]
QUICK = RetryPolicy(max_attempts=4, max_elapsed_s=10, first_backoff_s=0.01, max_backoff_s=0.05, request_timeout_s=10)

# Runs in another process: write one object over and over, or stop in the middle of it until told to go on.
OVERWRITE = """
import asyncio, sys
from strata.storage import LocalStorage
async def main():
    storage = LocalStorage(sys.argv[1])
    for turn in range(1, 1000):
        await storage.write("job/model.bin", bytes([turn % 256]) * (48 << 20))
asyncio.run(main())
"""
STALL = """
import asyncio, sys
from strata.storage import LocalStorage
async def main():
    async with LocalStorage(sys.argv[1]).writer("job/late.bin") as writer:
        await writer.write(bytes(20 << 20))
        print("half way", flush=True)
        sys.stdin.readline()
        await writer.write(b"end")
    print("done", flush=True)
asyncio.run(main())
"""


def start_script(script: str, *arguments: str) -> subprocess.Popen[bytes]:
    return start([sys.executable, "-c", script, *arguments], stdin=subprocess.PIPE, stdout=subprocess.PIPE, cwd=ROOT)


def temporary_files(root: Path) -> list[Path]:
    folder = root / DIRECTORY
    return list(folder.iterdir()) if folder.exists() else []


def s3(server: S3Server, *, endpoint: str | None = None, **options: object) -> S3Storage:
    given: dict[str, object] = {
        "access_key_id": server.access_key,
        "secret_access_key": server.secret_key,
        "retry": QUICK,
        "part_bytes": 5 * MIB,
        "concurrency": 2,
        "prefix": f"faults/{uuid.uuid4().hex}",
    }
    return S3Storage(server.bucket, "us-east-1", endpoint or server.endpoint, **(given | options))


@pytest.fixture
def gateway(s3_server: S3Server) -> Iterator[Gateway]:
    with gateway_to(s3_server.endpoint) as gateway:
        yield gateway


class TestKilledWriters:
    async def test_kill_9_in_the_middle_of_a_write_leaves_the_old_object(self, tmp_path: Path) -> None:
        storage = LocalStorage(tmp_path)
        for _ in range(4):
            await storage.write("job/model.bin", b"old")
            with start_script(OVERWRITE, str(tmp_path)) as writer:
                # A file under way with bytes in it: the middle of a write, whichever that is.
                while not any(_size(path) > 0 for path in temporary_files(tmp_path)):
                    assert writer.poll() is None
                writer.kill()
            content = await storage.read("job/model.bin")
            assert content == b"old" or (len(content) == 48 * MIB and len(set(content)) == 1)
            assert [info.path async for info in storage.list()] == ["job/model.bin"]

    async def test_the_files_of_the_dead_are_swept_and_those_of_the_living_are_not(self, tmp_path: Path) -> None:
        with start_script(STALL, str(tmp_path)) as dead, start_script(STALL, str(tmp_path)) as living:
            assert dead.stdout is not None
            assert living.stdout is not None
            assert dead.stdout.readline() == living.stdout.readline() == b"half way\n"
            await LocalStorage(tmp_path).write("first", b"sweeps nothing")
            assert len(temporary_files(tmp_path)) == 2
            dead.kill()
            dead.wait()
            await LocalStorage(tmp_path).write("second", b"sweeps one")
            assert len(temporary_files(tmp_path)) == 1
            living.communicate(b"\n")
        assert temporary_files(tmp_path) == []
        assert await LocalStorage(tmp_path).read("job/late.bin", start=20 * MIB) == b"end"


@pytest.mark.part("faults")
class TestBrokenDisks:
    @pytest.fixture(autouse=True)
    def _root(self) -> None:
        require_root()

    @pytest.mark.parametrize("kind", ["ext4", "tmpfs"])
    async def test_a_full_disk_is_said_and_leaves_nothing(self, tmp_path: Path, kind: str) -> None:
        make = mounts.ext4 if kind == "ext4" else mounts.tmpfs
        with make(tmp_path / "small", size_bytes=64 * MIB) as folder:
            storage = LocalStorage(folder / "root")
            await storage.write("kept", b"old")
            before = os.statvfs(folder).f_bfree
            for path in ("kept", "other"):
                with pytest.raises(StorageFullError, match="No space left") as caught:
                    await storage.write(path, bytes(100 * MIB))
                assert caught.value.path == path
            with pytest.raises(StorageFullError):
                async with storage.writer("streamed") as writer:
                    for _ in range(100):
                        await writer.write(bytes(MIB))
            assert storage.write_mode == ("direct" if kind == "ext4" else "buffered")
            assert await storage.read("kept") == b"old"
            assert [info.path async for info in storage.list()] == ["kept"]
            assert temporary_files(folder / "root") == []
            assert os.statvfs(folder).f_bfree >= before - 16
            await storage.write("fits", bytes(20 * MIB))

    @pytest.mark.parametrize("kind", ["ext4", "tmpfs"])
    async def test_a_disk_that_is_full_before_the_first_write_is_said(self, tmp_path: Path, kind: str) -> None:
        make = mounts.ext4 if kind == "ext4" else mounts.tmpfs
        with make(tmp_path / "small", size_bytes=16 * MIB) as folder:
            (folder / "root").mkdir()
            with suppress(OSError), (folder / "filler").open("wb", buffering=0) as filler:
                while filler.write(bytes(4096)):
                    pass
            storage = LocalStorage(folder / "root")
            with pytest.raises(StorageFullError, match="No space left"):
                await storage.write("small", bytes(8192))
            assert temporary_files(folder / "root") == []
            (folder / "filler").unlink()
            await storage.write("small", bytes(8192))

    async def test_a_read_only_disk_can_be_read_and_refuses_writes(self, tmp_path: Path) -> None:
        with mounts.tmpfs(tmp_path / "frozen", size_bytes=8 * MIB) as folder:
            await LocalStorage(folder).write("kept", b"old")
            mounts.remount_read_only(folder)
            storage = LocalStorage(folder)
            assert await storage.read("kept") == b"old"
            with pytest.raises(StoragePermissionError, match="Read-only"):
                await storage.write("new", b"x")
            with pytest.raises(StoragePermissionError, match="Read-only"):
                await storage.delete("kept")
            assert await storage.exists("kept")

    @pytest.mark.parametrize("operation", ["fsync", "write"])
    @pytest.mark.parametrize("size", [10, 3 * MIB])
    async def test_an_io_error_is_said_and_the_old_object_stays(
        self, tmp_path: Path, operation: str, size: int
    ) -> None:
        backing = tmp_path / "backing"
        backing.mkdir()
        with mounts.faulty(tmp_path / "faulty", backing) as folder:
            storage = LocalStorage(folder / "root")
            await storage.write("kept", b"old")
            fault = backing / f"FAULT-{operation}"
            fault.touch()
            with pytest.raises(StorageUnavailableError, match="Input/output error") as caught:
                await storage.write("kept", bytes(size))
            assert caught.value.attempts == 1
            refusals = fault.stat().st_size
            fault.unlink()
            # A second fsync could succeed although the first one lost data, so there must be none.
            assert refusals == 1 or operation == "write"
            assert storage.write_mode == "buffered"
            assert await storage.read("kept") == b"old"
            assert temporary_files(folder / "root") == []
            await storage.write("kept", b"new")
            assert await storage.read("kept") == b"new"

    async def test_a_mount_below_the_root_is_named(self, tmp_path: Path) -> None:
        storage = LocalStorage(tmp_path / "root")
        await storage.write("here", b"x")
        with (
            mounts.tmpfs(tmp_path / "root" / "elsewhere", size_bytes=MIB),
            pytest.raises(StorageError, match="another file system is mounted below the root"),
        ):
            await storage.write("elsewhere/x", b"x")


class TestServersThatFail:
    @pytest.mark.part("s3")
    async def test_a_server_killed_in_the_middle_of_an_upload_is_unavailable(self, tmp_path: Path) -> None:
        with servers.seaweedfs(tmp_path) as server:
            storage = s3(server)
            with pytest.raises(StorageUnavailableError, match=r"no connection|connection broke") as caught:
                async with storage.writer("model.bin") as writer:
                    for turn in range(100):
                        await writer.write(bytes(5 * MIB))
                        if turn == 5:
                            os.killpg(server.process.pid, signal.SIGKILL)
            assert caught.value.attempts == QUICK.max_attempts
            assert caught.value.path == "model.bin"
            with pytest.raises(StorageUnavailableError):
                await storage.write_new("manifest", b"{}")

    async def test_a_server_that_never_answers_does_not_hold_anyone_for_ever(self, s3_server: S3Server) -> None:
        with socket.socket() as deaf:
            deaf.bind(("127.0.0.1", 0))
            deaf.listen()
            hasty = RetryPolicy(max_attempts=2, request_timeout_s=0.2, first_backoff_s=0.01)
            storage = s3(s3_server, endpoint=f"http://127.0.0.1:{deaf.getsockname()[1]}", retry=hasty)
            with pytest.raises(StorageUnavailableError, match="no answer in time"):
                await storage.read("x")
            with pytest.raises(StorageUnavailableError, match="no answer in time"):
                await storage.write("x", b"1")

    async def test_a_503_storm_is_outlasted_if_it_ends(self, s3_server: S3Server, gateway: Gateway) -> None:
        refusals = iter(["503"] * 3)
        gateway.decide = lambda method, path: next(refusals, "pass")
        storage = s3(s3_server, endpoint=gateway.endpoint)
        await storage.write("x", b"1")
        assert len(gateway.seen) == 4
        assert await storage.read("x") == b"1"

    async def test_a_503_storm_without_end_is_given_up_after_the_attempts_allowed(
        self, s3_server: S3Server, gateway: Gateway
    ) -> None:
        gateway.decide = lambda method, path: "503"
        storage = s3(s3_server, endpoint=gateway.endpoint)
        for ask in (storage.write("x", b"1"), storage.read("x"), storage.exists("x"), storage.delete("x")):
            gateway.seen.clear()
            with pytest.raises(StorageUnavailableError, match="503") as caught:
                await ask
            assert len(gateway.seen) == caught.value.attempts == QUICK.max_attempts

    async def test_write_new_is_given_up_after_the_attempts_allowed(
        self, s3_server: S3Server, gateway: Gateway
    ) -> None:
        storage = s3(s3_server, endpoint=gateway.endpoint)
        await storage.write_new("probed", b"1")
        gateway.seen.clear()
        gateway.decide = lambda method, path: "503"
        with pytest.raises(StorageUnavailableError, match="may be there or not") as caught:
            await storage.write_new("x", b"1")
        assert len(gateway.seen) == caught.value.attempts == QUICK.max_attempts

    async def test_write_new_knows_its_own_object_after_a_lost_answer(
        self, s3_server: S3Server, gateway: Gateway
    ) -> None:
        storage = s3(s3_server, endpoint=gateway.endpoint)
        await storage.write_new("probed", b"1")
        fates: Iterator[Fate] = iter(["lose answer"])
        gateway.decide = lambda method, path: next(fates, "pass")
        await storage.write_new("mine", b"same")
        assert await storage.read("mine") == b"same"

        fates = iter(["503"])
        with pytest.raises(ObjectExistsError):
            await storage.write_new("mine", b"same")

    async def test_an_upload_that_is_left_is_forgotten_by_the_store(
        self, s3_server: S3Server, gateway: Gateway
    ) -> None:
        storage = s3(s3_server, endpoint=gateway.endpoint)
        with pytest.raises(RuntimeError):
            async with storage.writer("left") as writer:
                await writer.write(bytes(11 * MIB))
                raise RuntimeError
        assert [method for method, path in gateway.seen if "uploadId" in path].count("DELETE") == 1

        gateway.seen.clear()
        under_way = threading.Event()

        def decide(method: str, path: str) -> Fate:
            if method == "PUT":
                under_way.set()
            return "pass"

        gateway.decide = decide
        task = asyncio.create_task(storage.write("cancelled", bytes(40 * MIB)))
        await asyncio.to_thread(under_way.wait)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        assert [method for method, path in gateway.seen if "uploadId" in path].count("DELETE") == 1
        assert not await storage.exists("cancelled")

    async def test_an_object_replaced_while_it_is_read_is_never_mixed(
        self, s3_server: S3Server, gateway: Gateway
    ) -> None:
        prefix = f"faults/{uuid.uuid4().hex}"
        writing = s3(s3_server, prefix=prefix)
        reading = s3(s3_server, endpoint=gateway.endpoint, prefix=prefix)
        size = 20 * MIB
        await writing.write("x", b"1" * size)
        replaced = threading.Event()

        def decide(method: str, path: str) -> Fate:
            if len(gateway.seen) >= 2 and not replaced.is_set():
                replaced.set()
                asyncio.run(writing.write("x", b"2" * size))
            return "pass"

        gateway.decide = decide
        buffer = bytearray(size)
        await reading.read_into("x", buffer)
        assert replaced.is_set()
        assert len(set(buffer)) == 1

    async def test_wrong_credentials_are_refused_without_being_told(
        self, s3_server: S3Server, azure_server: AzureServer, caplog: pytest.LogCaptureFixture
    ) -> None:
        caplog.set_level("DEBUG")
        secret = "cGxhbnRlZC1zZWNyZXQ="
        for storage in (
            s3(s3_server, secret_access_key=secret),
            s3(s3_server, access_key_id=secret),
            AzureStorage("strata", account=azure_server.account, account_key=secret, endpoint=azure_server.endpoint),
            AzureStorage(
                "strata",
                account=azure_server.account,
                sas_token=f"sig={secret}",
                endpoint=azure_server.endpoint,
            ),
        ):
            with pytest.raises(StoragePermissionError, match="403") as caught:
                await storage.write("x", b"1")
            shown = [
                repr(storage),
                str(caught.value),
                repr(caught.value),
                repr(vars(caught.value)),
                caplog.text,
            ]
            assert secret not in "".join(shown)
            assert caught.value.__suppress_context__

    @pytest.mark.part("faults")
    async def test_a_clock_that_is_hours_wrong_is_named_as_the_cause(self, s3_server: S3Server) -> None:
        script = (
            "import asyncio, sys; from strata.storage import S3Storage\n"
            "bucket, endpoint, key, secret = sys.argv[1:]\n"
            "keys = {'access_key_id': key, 'secret_access_key': secret}\n"
            "storage = S3Storage(bucket, 'us-east-1', endpoint, **keys)\n"
            "asyncio.run(storage.write('faults/skewed', b'x'))\n"
        )
        faketime = find_program("faketime")
        assert faketime is not None
        result = await asyncio.to_thread(
            subprocess.run,
            [
                faketime, "-f", "+5h", sys.executable, "-c", script,
                s3_server.bucket, s3_server.endpoint, s3_server.access_key, s3_server.secret_key,
            ],
            capture_output=True,
            text=True,
            env={**os.environ, "DONT_FAKE_MONOTONIC": "1"},
        )  # fmt: skip
        assert "StoragePermissionError" in result.stderr
        assert "clock" in result.stderr
        assert s3_server.secret_key not in result.stderr

    async def test_a_bucket_that_is_not_there_is_named(self, s3_server: S3Server) -> None:
        storage = S3Storage(
            "no-such-bucket",
            "us-east-1",
            s3_server.endpoint,
            access_key_id=s3_server.access_key,
            secret_access_key=s3_server.secret_key,
            retry=QUICK,
        )
        with pytest.raises(StorageError, match="bucket does not exist"):
            await storage.read("x")


class TestStoresThatIgnorePutIfAbsent:
    async def test_such_a_store_is_refused_at_the_first_write_new(self, weak_s3_server: S3Server) -> None:
        storage = s3(weak_s3_server)
        await storage.write("plain", b"writes are fine")
        for _ in range(2):
            with pytest.raises(UnsafeStoreError, match="allow_unsafe"):
                await storage.write_new("manifest", b"{}")
        assert not await storage.exists("manifest")
        assert [info.path async for info in storage.list()] == ["plain"]

    async def test_who_accepts_the_risk_is_warned_once(
        self, weak_s3_server: S3Server, caplog: pytest.LogCaptureFixture
    ) -> None:
        storage = s3(weak_s3_server, allow_unsafe=True)
        await storage.write_new("a", b"1")
        with pytest.raises(ObjectExistsError):
            await storage.write_new("a", b"22")
        assert [info.size_bytes async for info in storage.list()] == [1]
        with pytest.raises(StorageError, match="range"):
            await storage.read("a")
        assert caplog.text.count("ignores put-if-absent") == 1


class TestExit:
    async def test_a_process_that_ends_right_after_a_write_ends_well(self, s3_server: S3Server) -> None:
        script = (
            "import asyncio, sys; from strata.storage import S3Storage\n"
            "bucket, endpoint, key, secret = sys.argv[1:]\n"
            "keys = {'access_key_id': key, 'secret_access_key': secret}\n"
            "storage = S3Storage(bucket, 'us-east-1', endpoint, prefix='faults/exit', **keys)\n"
            "async def main():\n"
            "    await storage.write('x', bytes(1000))\n"
            "    await storage.write('x', bytes(1000000))\n"
            "asyncio.run(main())\n"
        )
        command = [sys.executable, "-c", script, s3_server.bucket, s3_server.endpoint]
        command += [s3_server.access_key, s3_server.secret_key]
        for _ in range(12):
            result = await asyncio.to_thread(subprocess.run, command, capture_output=True)
            assert (result.returncode, result.stderr) == (0, b"")


class TestMemory:
    async def test_a_large_upload_needs_memory_for_its_parts_only(self, s3_server: S3Server) -> None:
        script = (
            "import asyncio, resource, sys; from strata.storage import S3Storage\n"
            "bucket, endpoint, key, secret = sys.argv[1:]\n"
            "keys = {'access_key_id': key, 'secret_access_key': secret}\n"
            "parts = {'part_bytes': 5 << 20, 'concurrency': 2, 'prefix': 'faults/memory'}\n"
            "storage = S3Storage(bucket, 'us-east-1', endpoint, **keys, **parts)\n"
            "peak_kb = lambda: resource.getrusage(resource.RUSAGE_SELF).ru_maxrss\n"
            "async def main():\n"
            "    await storage.write('warm', bytes(12 << 20))\n"
            "    before = peak_kb()\n"
            "    async with storage.writer('large') as writer:\n"
            "        for _ in range(192): await writer.write(bytes(1 << 20))\n"
            "    print((peak_kb() - before) // 1024)\n"
            "asyncio.run(main())\n"
        )
        result = await asyncio.to_thread(
            subprocess.run,
            [
                sys.executable, "-c", script,
                s3_server.bucket, s3_server.endpoint, s3_server.access_key, s3_server.secret_key,
            ],
            capture_output=True,
            text=True,
            check=True,
        )  # fmt: skip
        # Two parts on their way, one waiting, one being filled, and room for the allocator.
        assert int(result.stdout) < 60


def _size(path: Path) -> int:
    try:
        return path.stat().st_size
    except FileNotFoundError:
        return 0
