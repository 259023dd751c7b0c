"""Processes that remember the last lines of their output, for the end of the log of a failed test."""

from __future__ import annotations

import io
import os
import subprocess
from collections import deque
from contextlib import suppress
from pathlib import Path
from typing import Any

MOST_LINES = 15
TAIL_BYTES = 4_000
# A test may start thousands of processes; only the last ones are remembered.
MOST_KNOWN = 200

_known: deque[RecordedProcess] = deque(maxlen=MOST_KNOWN)


def known_processes() -> list[RecordedProcess]:
    """Return the processes that were started since the last ``forget_ended``, and those that ran then."""
    return list(_known)


def forget_ended() -> None:
    """Keep only the processes that may still run, such as the servers of all tests."""
    alive = [process for process in _known if process.returncode is None]
    _known.clear()
    _known.extend(alive)


class RecordingPipe(io.FileIO):
    """The end of a pipe that a test reads, which remembers the last bytes that were read."""

    def __init__(self, fd: int) -> None:
        super().__init__(fd, "rb", closefd=True)
        self.tail = bytearray()

    def readinto(self, buffer: Any, /) -> int | None:
        count = super().readinto(buffer)
        self._keep(memoryview(buffer)[: count or 0])
        return count

    def readall(self) -> bytes | None:
        data = super().readall()
        self._keep(data or b"")
        return data

    def drain(self) -> None:
        """Read what nobody has read so far, without waiting."""
        if self.closed:
            return
        # Opened once more: a thread that reads the pipe now must not find it non-blocking.
        rest = os.open(f"/proc/self/fd/{self.fileno()}", os.O_RDONLY | os.O_NONBLOCK)
        with suppress(BlockingIOError):
            self._keep(os.read(rest, TAIL_BYTES))
        os.close(rest)

    def _keep(self, data: bytes | memoryview) -> None:
        self.tail += data
        del self.tail[:-TAIL_BYTES]


class RecordedProcess(subprocess.Popen[Any]):
    """A process whose last lines can be shown, wherever it writes them: a pipe, or a file."""

    def __init__(self, *arguments: Any, **options: Any) -> None:
        self._pipes: list[RecordingPipe] = []
        self._read: list[bytes | str] = []
        self._files = sorted({file for name in ("stdout", "stderr") if (file := _path_of(options.get(name)))})
        super().__init__(*arguments, **options)
        self.stdout = self._record(self.stdout)
        self.stderr = self._record(self.stderr)
        _known.append(self)

    def communicate(self, *arguments: Any, **options: Any) -> tuple[Any, Any]:
        # It reads the descriptors, not the pipes.
        both = super().communicate(*arguments, **options)
        self._read += [output[-TAIL_BYTES:] for output in both if output]
        return both

    def describe(self) -> str:
        """Return the command, the exit code and the last lines."""
        words = [self.args] if isinstance(self.args, str | Path) else self.args
        command = " ".join("…" if "\n" in str(word) or len(str(word)) > 100 else str(word) for word in words)
        state = "still runs" if self.poll() is None else f"ended with {self.returncode}"
        lines = [line for text in self._outputs() for line in text.splitlines()][-MOST_LINES:]
        head = f"  process {self.pid}, which {state}: {command[:300]}"
        return "\n".join([head, *(f"    | {line[:300]}" for line in lines)])

    def _record(self, pipe: Any) -> Any:
        if pipe is None:
            return None
        raw = RecordingPipe(os.dup(pipe.fileno()))
        self._pipes.append(raw)
        pipe.close()
        if isinstance(pipe, io.FileIO):
            return raw
        buffered = io.BufferedReader(raw)
        if isinstance(pipe, io.TextIOWrapper):
            return io.TextIOWrapper(buffered, encoding=pipe.encoding, errors=pipe.errors)
        return buffered

    def _outputs(self) -> list[str]:
        outputs: list[bytes | str] = list(self._read)
        for pipe in self._pipes:
            pipe.drain()
            outputs.append(bytes(pipe.tail))
        for file in self._files:
            if file.is_file():
                with file.open("rb") as log:
                    log.seek(max(0, file.stat().st_size - TAIL_BYTES))
                    outputs.append(log.read())
        return [each if isinstance(each, str) else each.decode(errors="replace") for each in outputs]


def _path_of(target: object) -> Path | None:
    """Return the file that a process is made to write to, if it is one."""
    fd = target if isinstance(target, int) else getattr(target, "fileno", lambda: -1)()
    if fd < 0:
        return None
    path = Path(f"/proc/self/fd/{fd}")
    return path.resolve() if path.is_file() else None
