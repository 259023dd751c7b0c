"""Open files: blocking reads of many pieces of few objects, without opening a file for each."""

from __future__ import annotations

import os
import threading
from contextlib import suppress
from typing import TYPE_CHECKING

from strata.storage.blocking import translating
from strata.storage.local.direct import BouncePool, read_file
from strata.storage.local.directory import BACKEND, open_object
from strata.storage.object_keys import check_key
from strata.storage.protocol import check_end
from strata.storage.waits import Request

if TYPE_CHECKING:
    from strata.storage.local.root import Root


class OpenFiles:
    """Reads objects of a local storage from any thread; an object that is deleted meanwhile can still be read."""

    def __init__(self, root: Root, pool: BouncePool) -> None:
        self._root = root
        self._pool = pool
        self._lock = threading.Lock()
        self._opened: dict[str, tuple[int, int | None, int]] = {}

    def read_into(self, path: str, view: memoryview, start: int, stop: threading.Event) -> None:
        """Fill the view from ``start``, or raise."""
        with Request(str(self._root), "read", path), translating(path):
            fd, direct_fd, size_bytes = self._open(path)
            check_end(path, start + len(view), size_bytes, backend=BACKEND)
            count = read_file(fd, direct_fd, view, start, self._pool, stop)
        check_end(path, start + len(view), start + count, backend=BACKEND)

    def close(self) -> None:
        """Close all files."""
        for fd, direct_fd, _ in self._opened.values():
            os.close(fd)
            if direct_fd is not None:
                os.close(direct_fd)
        self._opened.clear()

    def _open(self, path: str) -> tuple[int, int | None, int]:
        with self._lock:
            if path not in self._opened:
                fd = open_object(self._root, check_key(path))
                self._opened[path] = fd, open_direct(fd), os.fstat(fd).st_size
            return self._opened[path]


def open_direct(fd: int) -> int | None:
    """Open the same file once more, past the page cache; None where the file system has no O_DIRECT."""
    with suppress(OSError):
        return os.open(f"/proc/self/fd/{fd}", os.O_RDONLY | os.O_DIRECT | os.O_CLOEXEC)
    return None
