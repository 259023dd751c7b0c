"""A worker's process: its lines are passed on whole, and it cannot outlive the one that started it."""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import subprocess
import sys
import threading
import time
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import IO

from strata.run.exits import PREEMPTED
from strata.run.job_folder import FINISHED, STOPPED
from strata.run.launch import group_keeper
from strata.run.launch.crash import find_crash
from strata.run.launch.restart_policy import Exit

# Becomes the program, with a death signal set; a parent that died before it was set is noticed by its pid.
DIE_WITH_PARENT = """
import ctypes, os, signal, sys
ctypes.CDLL(None).prctl(1, signal.SIGKILL)  # PR_SET_PDEATHSIG
if os.getppid() == int(sys.argv[1]):
    os.execvp(sys.argv[2], sys.argv[2:])
"""
KEPT_LINES = 400
SHOWN_LINES = 20
MAX_LINE_BYTES = 64 << 10
# A child of the worker may hold its output open after it; nobody waits for that longer than this.
DRAIN_S = 1.0

PrintLine = Callable[[str, bytes], None]


class WorkerProcess:
    """One life of one worker. It leads a process group of its own, so that nothing that it started outlives it."""

    def __init__(
        self,
        worker_id: str,
        rank: int,
        process: subprocess.Popen[bytes],
        print_line: PrintLine,
        life: Path | None = None,
        finished: Path | None = None,
        *,
        is_python: bool = False,
    ) -> None:
        self.worker_id = worker_id
        self.rank = rank
        self._process = process
        self._is_python = is_python
        self._print_line = print_line
        self._life = life
        self._finished = finished
        self._was_over = False
        self._last_lines: deque[str] = deque(maxlen=KEPT_LINES)
        self._begun_s = time.monotonic()
        self.ended = asyncio.Event()

    @classmethod
    def start(
        cls,
        worker_id: str,
        rank: int,
        command: Sequence[str],
        environment: Mapping[str, str],
        print_line: PrintLine,
        *,
        life: Path | None = None,
        finished: Path | None = None,
    ) -> WorkerProcess:
        """Start it; ``print_line`` gets every line that it writes, with "stdout" or "stderr".

        ``life`` is the file that it makes when it has finished its first step, and ``finished`` when its training is
        over.
        """
        for path in (life, finished):
            if path is not None:
                path.unlink(missing_ok=True)
        process = subprocess.Popen(  # noqa: S603 - to run what the user names is its purpose
            with_its_group(command),
            env={**os.environ, **environment},
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            start_new_session=True,
        )
        return cls(worker_id, rank, process, print_line, life, finished, is_python=command[0] == sys.executable)

    @property
    def pid(self) -> int:
        """The process."""
        return self._process.pid

    @property
    def is_over(self) -> bool:
        """Whether its training is over, and it does what follows, such as an export."""
        return self._was_over or (self._finished is not None and _read(self._finished) == FINISHED)

    def send_signal(self, number: int) -> None:
        """Signal the process; one that has ended already is left alone.

        Only a kill reaches what a Python program has started: it would lose its data loaders before it could save. Of
        any other program, such as a shell script, all processes are signalled: the training may be any of them.
        """
        self._was_over |= self._finished is not None and bool(_read(self._finished))
        send = os.kill if self._is_python and number != signal.SIGKILL else os.killpg
        if self._process.returncode is None:
            with contextlib.suppress(ProcessLookupError):
                send(self._process.pid, number)

    async def wait(self) -> Exit:
        """Pass its lines on until it ends, end what it left behind, and say how it ended."""
        assert self._process.stdout is not None
        assert self._process.stderr is not None
        pumping = asyncio.gather(self._pump("stdout", self._process.stdout), self._pump("stderr", self._process.stderr))
        try:
            code = await wait_for_end(self._process)
            if code == 0 and self._life is not None and _read(self._life) == STOPPED:
                code = PREEMPTED  # the script has caught Stopped
            with contextlib.suppress(ProcessLookupError):
                os.killpg(self._process.pid, signal.SIGKILL)
            await asyncio.wait([pumping], timeout=DRAIN_S)
        finally:
            pumping.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await pumping
            self.ended.set()
        return Exit(
            worker_id=self.worker_id,
            rank=self.rank,
            code=code,
            lived_s=time.monotonic() - self._begun_s,
            last_lines=tuple(self._last_lines)[-SHOWN_LINES:],
            crash=find_crash(list(self._last_lines)),
            did_step=self._life is not None and self._life.exists(),
            is_over=self.is_over,
        )

    async def _pump(self, stream: str, pipe: IO[bytes]) -> None:
        reader = asyncio.StreamReader()
        transport, _ = await asyncio.get_running_loop().connect_read_pipe(
            lambda: asyncio.StreamReaderProtocol(reader), pipe
        )
        rest = b""
        try:
            while data := await reader.read(MAX_LINE_BYTES):
                *lines, rest = (rest + data).split(b"\n")
                if len(rest) > MAX_LINE_BYTES:
                    lines, rest = [*lines, rest], b""
                for line in lines:
                    self._take(stream, line)
        finally:
            transport.close()
            if rest:
                self._take(stream, rest)

    def _take(self, stream: str, line: bytes) -> None:
        if stream == "stderr":
            self._last_lines.append(line.decode(errors="replace"))
        self._print_line(stream, line)


async def wait_for_end(process: subprocess.Popen[bytes]) -> int:
    """Return the code of a process when it ends, also while a child of it holds its pipes open.

    asyncio's own processes wait for the pipes as well, so this takes a thread.
    """
    loop = asyncio.get_running_loop()
    ended = asyncio.Event()

    def watch() -> None:
        process.wait()
        with contextlib.suppress(RuntimeError):  # nobody waits any more
            loop.call_soon_threadsafe(ended.set)

    threading.Thread(target=watch, name=f"wait for {process.pid}", daemon=True).start()
    await ended.wait()
    assert process.returncode is not None
    return process.returncode


def die_with_parent(command: Sequence[str]) -> list[str]:
    """Return the command that runs a program which the kernel kills when this process dies, however it dies."""
    if not sys.platform.startswith("linux"):
        return list(command)
    return [sys.executable, "-S", "-E", "-c", DIE_WITH_PARENT, str(os.getpid()), *command]


def with_its_group(command: Sequence[str]) -> list[str]:
    """Return the same for a program that leads a process group, whose other processes are killed too."""
    if not sys.platform.startswith("linux"):
        return list(command)
    return [sys.executable, "-I", "-S", group_keeper.__file__, str(os.getpid()), *command]


def _read(note: Path) -> str:
    try:
        return note.read_text()
    except FileNotFoundError:
        return ""
