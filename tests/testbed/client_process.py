"""A process with a client of the coordinator: it joins, says so, and stays until its input is closed."""

from __future__ import annotations

import subprocess
import sys
from contextlib import contextmanager
from typing import TYPE_CHECKING

from tests.testbed.process import end, read_line, start

if TYPE_CHECKING:
    from collections.abc import Iterator

# Tests that need a worker of their own kind replace its last line. It waits in short pieces: Python does not notice a
# signal that comes in the moment before a blocking read begins, and a read of an open pipe never returns.
WORKER = """
import select, sys, time
from strata.client.client import Client
def stay():
    while not select.select([sys.stdin], [], [], 0.1)[0]:
        pass
with Client(sys.argv[1], sys.argv[2]) as client:
    client.wait_registered()
    print("in", flush=True)
    stay()
"""


@contextmanager
def worker_process(url: str, worker_id: str, *arguments: str, script: str = WORKER) -> Iterator[subprocess.Popen[str]]:
    """Run a worker until the block ends; enter the block when it is a member of its job."""
    command = [sys.executable, "-c", script, url, worker_id, *arguments]
    process = start(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    try:
        assert read_line(process) == "in\n"
        yield process
    finally:
        end(process)
