"""Many processes on one cache, some of them killed: the limit holds at every moment, and no block is ever wrong."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

from strata.data.files.cache import Cache
from tests.testbed.process import start
from tests.testbed.programs.cache_filler import BLOCK_BYTES, KEYS, block

if TYPE_CHECKING:
    from collections.abc import Iterator

ROOT = Path(__file__).parents[3]
LIMIT_BYTES = 60 * BLOCK_BYTES


@contextmanager
def filler(directory: Path, seed: int) -> Iterator[subprocess.Popen[bytes]]:
    command = [sys.executable, "-m", "tests.testbed.programs.cache_filler", str(directory), str(LIMIT_BYTES), str(seed)]
    process = start(command, cwd=ROOT, stdout=subprocess.PIPE)
    try:
        assert process.stdout is not None
        assert process.stdout.readline() == b"ready\n"
        yield process
    finally:
        process.kill()
        process.wait()
        if process.stdout is not None:
            process.stdout.close()


def check(cache: Cache) -> int:
    """Every block that is there is right; return how many."""
    held = 0
    for key in KEYS:
        for number in range(30):
            found = cache.get(key, number)
            assert found in (None, block(key, number))
            held += found is not None
    return held


def test_a_process_killed_while_it_fills_the_cache_leaves_nothing_torn(tmp_path: Path) -> None:
    cache = Cache(tmp_path, limit_bytes=LIMIT_BYTES)
    for seed in range(5):
        with filler(tmp_path, seed) as process:
            for _ in range(20):
                assert cache.count_bytes() <= LIMIT_BYTES
            os.kill(process.pid, signal.SIGKILL)
            process.wait()
        check(cache)
        assert cache.count_bytes() <= LIMIT_BYTES
    # The next process counts, and what the dead left makes room.
    (tmp_path / "usage").write_bytes(b"0" * 20 + b"%d" % LIMIT_BYTES)
    cache.put("f" * 32, 0, bytes(100))
    assert list((tmp_path / "tmp").iterdir()) == []


def test_processes_that_share_a_full_cache_keep_its_limit_and_read_right_blocks(tmp_path: Path) -> None:
    cache = Cache(tmp_path, limit_bytes=LIMIT_BYTES)
    with ExitStack() as running:
        processes = [running.enter_context(filler(tmp_path, seed)) for seed in range(3)]
        full = 0
        for _ in range(150):
            size_bytes = cache.count_bytes()
            assert size_bytes <= LIMIT_BYTES
            full += size_bytes > LIMIT_BYTES // 2
            assert [process.poll() for process in processes] == [None, None, None]
        assert full
    assert check(cache) > 10
