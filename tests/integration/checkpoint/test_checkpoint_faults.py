"""Whatever dies, fills up or breaks during a save: what was announced loads and verifies, and training goes on."""

from __future__ import annotations

import os
import re
import resource
import signal
import sys
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import pytest

from strata.background import STARTS_THREADS_AT_EXIT
from strata.checkpoint import CheckpointManager, SavePolicy
from strata.errors import StorageError, StorageFullError
from strata.storage import open_storage
from tests.testbed import mounts
from tests.testbed.pace import stretch
from tests.testbed.parts import require_root
from tests.testbed.process import run_program
from tests.testbed.programs.saver import state_of

if TYPE_CHECKING:
    from collections.abc import Iterator

    from tests.testbed.servers import S3Server

ROOT = Path(__file__).parents[3]
# From 3.12 on, Python warns of every fork beside threads.
FORK_QUIETLY = ("-W", "ignore:This process:DeprecationWarning")
PHASES = ["staged", "writing", "inside-part", "written", "committing", "inside-manifest", "committed", "retaining"]


def run_saver(url: str, phase: str, step: int, mode: str, **environment: str) -> list[int]:
    """Let a real process save until it is killed; return the steps that it announced."""
    done = run_program(
        [sys.executable, "-m", "tests.testbed.programs.saver", url, phase, str(step), mode],
        cwd=ROOT,
        capture_output=True,
        text=True,
        env={**os.environ, **environment},
        timeout=stretch(50),
    )
    assert done.returncode == -signal.SIGKILL, done.stderr
    return [int(line) for line in done.stdout.split()]


def check_survivors(url: str, announced: list[int]) -> None:
    with CheckpointManager(storage=open_storage(url), keep_count=2) as manager:
        listed = manager.list_checkpoints()
        for step in listed:
            restored = manager.load(step)
            assert restored.data["step"] == step
            assert np.array_equal(restored.data["w"], state_of(step)["w"])
        # The last one that was announced is there, or a later one that was committed but not announced any more.
        assert manager.load().step >= max(announced, default=0)
        assert max(announced, default=0) in {*listed, 0}
        step = listed[-1] + 1 if listed else 1
        manager.save(state_of(step), step)
        assert manager.load().step == step


@pytest.mark.parametrize("mode", ["full", "delta"])
@pytest.mark.parametrize("phase", PHASES)
def test_kill_9_at_every_phase_leaves_only_whole_checkpoints(tmp_path: Path, phase: str, mode: str) -> None:
    """pytorch-lightning#19970: a save was not atomic."""
    if phase == "inside-part" and mode == "delta":
        mode = "full"
    announced = run_saver(str(tmp_path), phase, 3, mode)
    assert announced in ([1, 2], [1, 2, 3] if phase == "retaining" else [])
    check_survivors(str(tmp_path), announced)


@pytest.mark.part("s3")
@pytest.mark.parametrize("phase", ["written", "committing", "committed"])
def test_kill_9_around_the_commit_on_s3(
    s3_server: S3Server, tmp_path: Path, phase: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    environment = {
        "AWS_ENDPOINT_URL": s3_server.endpoint,
        "AWS_ACCESS_KEY_ID": s3_server.access_key,
        "AWS_SECRET_ACCESS_KEY": s3_server.secret_key,
        "AWS_REGION": "us-east-1",
    }
    for name, value in environment.items():
        monkeypatch.setenv(name, value)
    url = f"s3://{s3_server.bucket}/{tmp_path.name}"
    check_survivors(url, run_saver(url, phase, 2, "full"))


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    require_root()
    with mounts.tmpfs(tmp_path / "small", size_bytes=20 << 20) as folder:
        yield folder


def test_a_full_disk_fails_the_save_keeps_the_last_one_and_leaves_no_debris(small_disk: Path) -> None:
    with CheckpointManager(small_disk, keep_count=1) as manager:
        manager.save({"w": np.zeros(1_000_000)}, 1)
        handle = manager.save_background({"w": np.ones(2_000_000)}, 2)
        with pytest.raises(StorageFullError):
            handle.result(stretch(30))
        assert manager.load().step == 1
        files = [path.name for path in small_disk.rglob("*") if path.is_file()]
        assert sorted(files) == ["metadata.json", "model-00001-of-00001.safetensors"]
        manager.save({"w": np.ones(1_000_000)}, 3)
        assert manager.load().step == 3


def test_a_disk_that_fills_up_with_the_manifest_gives_the_room_back(small_disk: Path) -> None:
    with CheckpointManager(small_disk, keep_count=1) as manager:
        manager.save({"w": np.zeros(10)}, 1)
        filler = small_disk / "filler"

        def fill(name: str) -> None:
            if name == "committing":
                with filler.open("wb") as file, pytest.raises(OSError, match="No space"):
                    while True:
                        os.write(file.fileno(), bytes(4096))

        with CheckpointManager(small_disk, keep_count=1, observer=fill) as second:
            handle = second.save_background({"w": np.zeros(1_000_000)}, 2)
            with pytest.raises(StorageFullError):
                handle.result(stretch(30))
        assert not list(small_disk.rglob("step_2/*"))
        assert manager.load().step == 1


@pytest.mark.part("faults")
@pytest.mark.parametrize("operation", ["fsync", "write"])
def test_a_device_that_fails_is_an_error_on_the_handle(tmp_path: Path, operation: str) -> None:
    require_root()
    backing = tmp_path / "backing"
    backing.mkdir()
    with mounts.faulty(tmp_path / "faulty", backing) as folder, CheckpointManager(folder / "root") as manager:
        manager.save({"w": np.zeros(1_000_000)}, 1)
        fault = backing / f"FAULT-{operation}"
        fault.touch()
        handle = manager.save_background({"w": np.ones(1_000_000)}, 2)
        with pytest.raises(StorageError, match="Input/output error"):
            handle.result(stretch(30))
        fault.unlink()
        assert manager.counters.failed == 1
        assert manager.load().step == 1
        manager.save({"w": np.ones(1_000_000)}, 3)
        assert manager.load().step == 3


def test_memory_does_not_grow_over_200_saves(tmp_path: Path) -> None:
    """pytorch#170163, Megatron-Bridge#359: async saves leaked until the host ran out of memory."""
    size = 4_000_000
    with CheckpointManager(tmp_path, keep_count=1, saving=SavePolicy(max_pending=2)) as manager:
        for step in range(200):
            manager.save_background({"w": np.full(size // 8, step, np.float64), "s": np.arange(100) + step}, step)
            if step == 20:
                manager.wait_pending(30)
                before = resident_bytes()
        manager.wait_pending(30)
        grown = resident_bytes() - before
        assert manager.counters.saved == 200
    assert grown < 2 * size


def resident_bytes() -> int:
    pages = int(Path("/proc/self/statm").read_text().split()[1])
    return pages * resource.getpagesize()


def test_a_save_that_is_pending_when_the_program_ends_is_finished(tmp_path: Path) -> None:
    script = (
        "import sys, numpy as np; from strata.checkpoint import CheckpointManager;"
        "CheckpointManager(sys.argv[1]).save_background({'w': np.ones(8_000_000)}, 1)"
    )
    # The manager is garbage at once; the save is not.
    done = run_program(
        [sys.executable, "-c", script, str(tmp_path)], capture_output=True, text=True, timeout=stretch(50)
    )
    assert done.returncode == 0
    if STARTS_THREADS_AT_EXIT:
        assert done.stderr == ""
        with CheckpointManager(tmp_path) as manager:
            assert manager.load().step == 1
    else:
        assert re.fullmatch(
            r"the save of step 1 failed: Python 3\.12\.[012] starts no thread .*or use Python 3\.12\.3 or newer\n",
            done.stderr,
        )


def test_a_forked_process_is_told_to_make_its_own_manager(tmp_path: Path) -> None:
    script = """
import os, sys
from strata.checkpoint import CheckpointManager
manager = CheckpointManager(sys.argv[1])
manager.save(b"x", 1)
child = os.fork()
if child == 0:
    try:
        manager.save(b"y", 2)
    except RuntimeError as error:
        os._exit(0 if "fork" in str(error) else 1)
    os._exit(2)
_, status = os.waitpid(child, 0)
manager.save(b"z", 3)
sys.exit(os.waitstatus_to_exitcode(status))
"""
    command = [sys.executable, *FORK_QUIETLY, "-c", script, str(tmp_path)]
    done = run_program(command, capture_output=True, text=True, timeout=stretch(50))
    assert (done.returncode, done.stderr) == (0, "")


@pytest.mark.parametrize("child", ["sys.exit(7)", "os._exit(leave(manager))"], ids=["at exit", "of a block"])
def test_a_forked_process_does_not_wait_for_the_saves_of_its_parent(tmp_path: Path, child: str) -> None:
    script = """
import asyncio, os, sys
from strata.checkpoint import CheckpointManager
from strata.storage import MemoryStorage
def leave(manager):
    with manager:
        return 7
class HeldStorage(MemoryStorage):
    is_held = True
    async def write_new(self, path, data):
        while self.is_held:
            await asyncio.sleep(0.01)
        await super().write_new(path, data)
storage = HeldStorage()
with CheckpointManager(storage=storage) as manager:
    save = manager.save_background(b"x", 1)
    child = os.fork()
    if child == 0:
        CHILD
    _, status = os.waitpid(child, 0)
    assert not save.done()
    storage.is_held = False
    save.result()
sys.exit(os.waitstatus_to_exitcode(status))
"""
    script = script.replace("CHILD", child)
    command = [sys.executable, *FORK_QUIETLY, "-c", script]
    done = run_program(command, capture_output=True, text=True, timeout=stretch(20))
    assert (done.returncode, done.stderr) == (7, "")


def test_a_large_blocking_save_is_written_while_it_is_staged_and_comes_back(tmp_path: Path) -> None:
    state = {f"w{number}": np.arange(3_000_001) + number for number in range(5)}
    state["strided"] = np.arange(2_000_000).reshape(1000, 2000).T
    with CheckpointManager(tmp_path, keep_count=1) as manager:
        for step in (1, 2):
            state["w4"][-1] = -step
            manager.save(state, step)
        restored = manager.load(2).data
        assert all(np.array_equal(restored[name], array) for name, array in state.items())


def test_what_breaks_while_it_is_staged_fails_the_save_and_frees_its_memory(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    state = {f"w{number}": np.ones(5_000_000) for number in range(4)}
    with CheckpointManager(tmp_path) as manager:
        manager.save({"w": np.zeros(5)}, 1)

        def fail(*arguments: object) -> None:
            raise MemoryError("no more")

        with monkeypatch.context() as patched:
            patched.setattr("strata.checkpoint.save.staging._copy_pieces", fail)
            with pytest.raises(MemoryError):
                manager.save(state, 2)
            with pytest.raises(MemoryError):
                manager.save_background(state, 3).result(stretch(30))
        assert manager.counters.failed == 2
        manager.wait_pending(30)
        manager.save(state, 4)
        assert manager.list_checkpoints() == [1, 4]
