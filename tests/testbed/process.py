"""Server processes that cannot outlive the test run, however it ends."""

from __future__ import annotations

import contextlib
import os
import signal
import socket
import subprocess
import sys
import time
from typing import TYPE_CHECKING

from scripts.parts import find_program
from strata.run.process import DIE_WITH_PARENT

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping
    from pathlib import Path

READY_TIMEOUT_S = 30


def free_ports(count: int) -> list[int]:
    """Return distinct ports that were free a moment ago; all are held until all are found."""
    with contextlib.ExitStack() as held:
        sockets = [held.enter_context(socket.socket()) for _ in range(count)]
        for each in sockets:
            each.bind(("127.0.0.1", 0))
        return [each.getsockname()[1] for each in sockets]


def accepts_connections(port: int) -> bool:
    """Whether something listens on the port of this machine."""
    with socket.socket() as probe:
        probe.settimeout(1)
        return probe.connect_ex(("127.0.0.1", port)) == 0


@contextlib.contextmanager
def running(
    command: list[str],
    *,
    log: Path,
    is_ready: Callable[[], bool],
    environment: Mapping[str, str] | None = None,
) -> Iterator[subprocess.Popen[bytes]]:
    """Run a program until the block ends; enter the block when it is ready.

    It gets its own process group, which is killed as a whole, and a death signal, so that a killed test run
    takes its servers with it. A program that does not get ready shows the end of its log.
    """
    program = find_program(command[0])
    assert program is not None, f"{command[0]} is not installed"
    with log.open("wb") as output:
        process = subprocess.Popen(
            [sys.executable, "-S", "-E", "-c", DIE_WITH_PARENT, str(os.getpid()), program, *command[1:]],
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=subprocess.STDOUT,
            start_new_session=True,
            env={**os.environ, **(environment or {})},
        )
    try:
        _wait_until_ready(command[0], process, is_ready, log)
        yield process
    finally:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        process.wait()


def _wait_until_ready(name: str, process: subprocess.Popen[bytes], is_ready: Callable[[], bool], log: Path) -> None:
    deadline = time.monotonic() + READY_TIMEOUT_S
    while not is_ready():
        if process.poll() is not None or time.monotonic() > deadline:
            state = "is not ready" if process.returncode is None else f"ended with {process.returncode}"
            tail = log.read_text(errors="replace")[-2000:]
            raise RuntimeError(f"{name} {state}; the end of its log:\n{tail}")
        time.sleep(0.05)
