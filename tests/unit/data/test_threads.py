"""Threads end when they are let go, wherever that happens, and never keep a program from ending."""

from __future__ import annotations

import gc
import os
import subprocess
import sys
import threading
from concurrent.futures import CancelledError
from pathlib import Path

import pytest

from strata.data.loading.threads import Threads
from tests.testbed.pace import stretch


class _Garbage:
    """Part of a cycle, so that only the garbage collector ends it, whenever it happens to run."""

    def __init__(self) -> None:
        self.itself = self
        self.threads = Threads(1, name="strata-test")

    def __del__(self) -> None:
        self.threads.close()


def test_threads_may_be_closed_by_the_garbage_collector_in_the_middle_of_anything() -> None:
    threads = Threads(2, name="strata-test")
    before = gc.get_threshold()
    gc.set_threshold(1, 1, 1)
    try:
        for number in range(30):
            _Garbage()
            assert threads.submit(lambda number=number: [number]).result(timeout=stretch(30)) == [number]
    finally:
        gc.set_threshold(*before)
        threads.close()
    threads.join(stretch(20))


def test_what_was_not_begun_is_cancelled() -> None:
    threads = Threads(1, name="strata-test")
    begun, go_on = threading.Event(), threading.Event()

    def wait() -> bool:
        begun.set()
        return go_on.wait(stretch(20))

    running, waiting = threads.submit(wait), threads.submit(wait)
    assert begun.wait(stretch(20))
    threads.close()
    go_on.set()
    assert running.result(timeout=stretch(20))
    with pytest.raises(CancelledError):
        waiting.result(timeout=stretch(20))


def test_an_error_comes_out_where_the_result_is_asked_for() -> None:
    threads = Threads(1, name="strata-test")
    failed, after = threads.submit(lambda: 1 // 0), threads.submit(lambda: 7)
    with pytest.raises(ZeroDivisionError):
        failed.result(timeout=stretch(20))
    assert after.result(timeout=stretch(20)) == 7
    threads.close()


SCRIPT = """
from strata.data import open_dataset
from tests.testbed.data.rows import MemoryRows

batches = iter(open_dataset(MemoryRows(1_000), batch_size=10, shard_size=10, transform=lambda batch: batch))
print(len(next(batches)["id"]))
"""


def test_a_program_that_leaves_an_iteration_open_ends(tmp_path: Path) -> None:
    root = Path(__file__).parents[3]
    run = subprocess.run(
        [sys.executable, "-c", SCRIPT],
        capture_output=True,
        text=True,
        cwd=tmp_path,
        env={**os.environ, "PYTHONPATH": str(root)},
        timeout=stretch(50),
    )
    assert (run.returncode, run.stdout, run.stderr) == (0, "10\n", "")
