"""One file a rank with all that it wrote, rotated, in the folder of the job."""

from __future__ import annotations

import logging
from logging.handlers import RotatingFileHandler
from pathlib import Path

MAX_BYTES = 16 << 20
KEPT_FILES = 3


class LogFile:
    """The output of one rank over all its lives. A disk that is full loses lines, and stops no worker."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._handler = RotatingFileHandler(path, maxBytes=MAX_BYTES, backupCount=KEPT_FILES, delay=True)
        # What goes wrong with a log file must not fill the terminal: the line itself was shown there.
        self._handler.handleError = lambda record: None  # type: ignore[method-assign]  # silences this handler alone
        self._handler.setFormatter(logging.Formatter("%(asctime)s %(message)s"))

    def write(self, stream: str, line: bytes) -> None:
        """Add a line of stdout or stderr, with the time."""
        text = line.decode(errors="replace")
        mark = "" if stream == "stdout" else "! "
        self._handler.handle(logging.LogRecord("worker", logging.INFO, "", 0, f"{mark}{text}", None, None))

    def close(self) -> None:
        """Close the file."""
        self._handler.close()
