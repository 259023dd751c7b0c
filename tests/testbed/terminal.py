"""A terminal that a program writes to. It is read meanwhile: a program waits for ever at a terminal that is full."""

from __future__ import annotations

import os
import pty
import threading
from typing import Self

from tests.testbed.pace import stretch

END_TIMEOUT_S = 20.0


class Terminal:
    """Give ``fd`` to a program as one of its outputs; after the block, ``shown`` is what it wrote there.

    What the program can do with a terminal depends on TERM, which tests set to that of a common one.
    """

    def __enter__(self) -> Self:
        self._ours, self.fd = pty.openpty()
        self._chunks: list[bytes] = []
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()
        return self

    def __exit__(self, *_: object) -> None:
        os.close(self.fd)
        self._reader.join(stretch(END_TIMEOUT_S))
        assert not self._reader.is_alive(), "something has the terminal open still"
        os.close(self._ours)

    @property
    def shown(self) -> str:
        """What was written, with all that moves the cursor and colours the text."""
        return b"".join(self._chunks).decode()

    def _read(self) -> None:
        try:
            while chunk := os.read(self._ours, 4096):
                self._chunks.append(chunk)
        except OSError:  # EIO: nobody has the other side open any more
            pass
