"""Lines of workers and the progress of the job on one terminal: a live line at its foot, or plain lines in a log."""

from __future__ import annotations

import shutil
import sys
import time
from collections.abc import Callable

from strata.run.launch.job_progress import Progress

LIVE_S = 1.0
PLAIN_S = 30.0
_ERASE = b"\r\x1b[K"


class Display:
    """Writes whole lines; at a terminal the last line shows the progress, elsewhere it is printed every 30 s."""

    def __init__(self, *, is_live: bool | None = None, clock: Callable[[], float] = time.monotonic) -> None:
        self.is_live = sys.stderr.isatty() if is_live is None else is_live
        self._clock = clock
        self._progress = b""
        self._printed_s = clock()

    def print_line(self, stream: str, line: bytes) -> None:
        """Write a line to stdout or stderr, in one piece, above the progress."""
        self._erase()
        # One write for a line and its end, so that lines of several workers never mix.
        output = sys.stdout.buffer if stream == "stdout" else sys.stderr.buffer
        output.write(line + b"\n")
        output.flush()
        self._draw()

    def show(self, progress: Progress) -> None:
        """Show the progress; on a narrow terminal, the most urgent of it."""
        if self.is_live:
            self._erase()
            self._progress = progress.fit(shutil.get_terminal_size().columns - 1).encode()
            self._draw()
        elif self._clock() - self._printed_s >= PLAIN_S:
            self._printed_s = self._clock()
            self.print_line("stderr", f"strata run: {progress}".encode())

    def close(self) -> None:
        """Take the progress off the terminal."""
        self._erase()
        self._progress = b""

    def _erase(self) -> None:
        if self._progress:
            sys.stderr.buffer.write(_ERASE)
            sys.stderr.buffer.flush()

    def _draw(self) -> None:
        if self._progress:
            sys.stderr.buffer.write(self._progress)
            sys.stderr.buffer.flush()
