"""Processes that cannot outlive the test run, however it ends."""

from __future__ import annotations

import contextlib
import fcntl
import os
import random
import select
import signal
import socket
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

from scripts.parts import find_program
from tests.testbed.pace import stretch
from tests.testbed.processes import fork_server

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence

READY_TIMEOUT_S = 60.0
# A killed process is gone at once, unless the kernel holds it.
END_TIMEOUT_S = 20.0

# The command as pip installed it; "python -m strata" is the same.
STRATA = str(Path(sys.executable).with_name("strata"))

# Ports for servers of tests: below those that the kernel gives to clients.
PORTS = range(10_000, 32_000)
# How many ports were given out on this machine; each process of each test run counts on from here.
PORT_COUNTER = Path(tempfile.gettempdir()) / f"strata-test-ports-{os.getuid()}"


def free_ports(count: int) -> list[int]:
    """Return distinct ports that were free a moment ago, and that no test process gets in the next 22,000 ports.

    A server binds its port some time after this call, so a port that another process also got would be lost by one.
    """
    ports: list[int] = []
    with PORT_COUNTER.open("a+") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        file.seek(0)
        text = file.read()
        given = int(text) if text.isdigit() else random.SystemRandom().randrange(len(PORTS))
        while len(ports) < count:
            port = PORTS[given % len(PORTS)]
            given += 1
            with socket.socket() as probe, contextlib.suppress(OSError):
                probe.bind(("127.0.0.1", port))
                ports.append(port)
        file.truncate(0)
        file.write(str(given))
    return ports


def accepts_connections(port: int) -> bool:
    """Whether something listens on the port of this machine."""
    with socket.socket() as probe:
        probe.settimeout(1)
        return probe.connect_ex(("127.0.0.1", port)) == 0


def start(command: Sequence[str | Path], *, by_exec: bool = False, **options: Any) -> subprocess.Popen[Any]:
    """Start a program that a killed test run takes with it: every process of the test bed begins here.

    Its signals are the default ones (``tests.testbed.plugins.default_process``), and it may open 1,024 files.
    ``options`` are those of Popen. A Python program is forked from a server that has imported Strata; with ``by_exec``
    it gets an interpreter of its own.
    """
    words = [str(word) for word in command]
    if words[0] == STRATA:
        words[:1] = [sys.executable, "-m", "strata"]
    if not by_exec and fork_server.can_fork(words, options):
        return fork_server.ForkedProcess(words, **options)
    program = find_program(str(command[0]))
    assert program is not None, f"{command[0]} is not installed"
    become = [sys.executable, "-S", "-E", "-c", fork_server.PLAIN_CHILD, str(os.getpid()), program]
    return subprocess.Popen([*become, *map(str, command[1:])], **options)


def run_program(
    command: Sequence[str | Path],
    *,
    capture_output: bool = False,
    check: bool = False,
    timeout: float | None = None,
    **options: Any,
) -> subprocess.CompletedProcess[Any]:
    """Run a program to its end, like ``subprocess.run``; a Python program is forked where it can be."""
    if capture_output:
        options |= {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE}
    with start(command, **options) as process:
        try:
            output, errors = process.communicate(timeout=timeout)
        except subprocess.TimeoutExpired:
            process.kill()
            raise
    if check and process.returncode:
        raise subprocess.CalledProcessError(process.returncode, process.args, output, errors)
    return subprocess.CompletedProcess(process.args, process.returncode, output, errors)


def end(process: subprocess.Popen[Any]) -> None:
    """Kill a process, close its pipes, and wait until it is gone."""
    with contextlib.suppress(ProcessLookupError):
        process.kill()
    for pipe in (process.stdin, process.stdout, process.stderr):
        if pipe is not None:
            with contextlib.suppress(BrokenPipeError):
                pipe.close()
    process.wait(stretch(END_TIMEOUT_S))


def read_line(process: subprocess.Popen[str]) -> str:
    """Return the first line that a process prints, or what it printed before it ended."""
    assert process.stdout is not None
    ready, _, _ = select.select([process.stdout], [], [], stretch(READY_TIMEOUT_S))
    assert ready, f"process {process.pid} printed nothing"
    line: str = process.stdout.readline()
    return line


@contextlib.contextmanager
def running(
    command: list[str],
    *,
    log: Path,
    is_ready: Callable[[], bool],
    environment: Mapping[str, str] | None = None,
) -> Iterator[subprocess.Popen[bytes]]:
    """Run a program until the block ends; enter the block when it is ready.

    It gets its own process group, which is killed as a whole. A program that does not get ready shows the end of
    its log.
    """
    with log.open("wb") as output:
        process = start(
            command,
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
        process.wait(stretch(END_TIMEOUT_S))


def _wait_until_ready(name: str, process: subprocess.Popen[bytes], is_ready: Callable[[], bool], log: Path) -> None:
    deadline = time.monotonic() + stretch(READY_TIMEOUT_S)
    while not is_ready():
        if process.poll() is not None or time.monotonic() > deadline:
            state = "is not ready" if process.returncode is None else f"ended with {process.returncode}"
            tail = log.read_text(errors="replace")[-2000:]
            raise RuntimeError(f"{name} {state}; the end of its log:\n{tail}")
        time.sleep(0.05)
