"""Temporary files: invisible until they are published, and gone when their writer is.

Each is locked by its writer while that lives, so a sweep can tell the files of the dead from those of the
living without asking for process ids, which mean nothing in another container.
"""

from __future__ import annotations

import errno
import fcntl
import os
import uuid
from contextlib import suppress
from typing import TYPE_CHECKING

from strata.errors import ObjectExistsError, StorageError
from strata.storage.local.directory import BACKEND, open_directory, open_parent, sync_directory
from strata.storage.object_keys import RESERVED

if TYPE_CHECKING:
    from strata.storage.local.root import Root

DIRECTORY = f"{RESERVED}tmp"
# How often a delete may take the parent away between making it and publishing into it.
PUBLISH_ATTEMPTS = 32


class TemporaryFile:
    """One file in the making. :meth:`close` is due however it ends, and removes what was not published."""

    def __init__(self, root: Root) -> None:
        self._root = root
        self._name = uuid.uuid4().hex
        self._fd: int | None = None

    def open(self, *, direct: bool) -> int:
        """Create the file under its writer's lock and return its descriptor."""
        with open_directory(self._root, [DIRECTORY], create=True) as directory:
            while self._fd is None:
                self._fd = _create_locked(self._name, directory)
        if direct:
            flags = fcntl.fcntl(self._fd, fcntl.F_GETFL)
            fcntl.fcntl(self._fd, fcntl.F_SETFL, flags | os.O_DIRECT)
        return self._fd

    def publish(self, path: str, *, replace: bool) -> None:
        """Give the finished file its name, atomically and durably; without ``replace``, only a free one."""
        for attempt in range(1, PUBLISH_ATTEMPTS + 1):
            try:
                self._publish_once(path, replace=replace)
            except FileNotFoundError:
                # A delete pruned the parent that we had just opened; it is made again.
                if attempt == PUBLISH_ATTEMPTS:
                    raise
            else:
                return

    def close(self) -> None:
        """Remove the temporary name, if it is still there, and let go of the lock."""
        if self._fd is None:
            return
        try:
            # Where the root is gone, the name is gone with it.
            with suppress(FileNotFoundError, StorageError), open_directory(self._root, [DIRECTORY]) as directory:
                os.unlink(self._name, dir_fd=directory)
        finally:
            # Last, so that no sweep can see the name without its lock.
            os.close(self._fd)
            self._fd = None

    def _publish_once(self, path: str, *, replace: bool) -> None:
        with (
            open_directory(self._root, [DIRECTORY]) as source,
            open_parent(self._root, path, create=True) as (target, name),
        ):
            if replace:
                os.rename(self._name, name, src_dir_fd=source, dst_dir_fd=target)
            else:
                try:
                    # link() refuses an existing target; rename() would overwrite it.
                    os.link(self._name, name, src_dir_fd=source, dst_dir_fd=target, follow_symlinks=False)
                except FileExistsError as error:
                    raise ObjectExistsError(path, backend=BACKEND) from error
            sync_directory(target)


def sweep(root: Root) -> int:
    """Remove the temporary files that no living process holds; return how many."""
    removed = 0
    with open_directory(root, [DIRECTORY], create=True) as directory:
        for name in os.listdir(directory):  # noqa: PTH208 - pathlib cannot list a descriptor
            # Gone already, another user's, or a directory, which no writer makes: none of them is ours to remove.
            with suppress(FileNotFoundError, PermissionError, IsADirectoryError):
                removed += _remove_if_dead(name, directory)
    return removed


def _create_locked(name: str, directory: int) -> int | None:
    """Create and lock a file; None if a sweep took it in the moment between the two."""
    fd = os.open(name, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o666, dir_fd=directory)
    fcntl.flock(fd, fcntl.LOCK_EX)
    if os.fstat(fd).st_nlink:
        return fd
    os.close(fd)
    return None


def _remove_if_dead(name: str, directory: int) -> int:
    try:
        fd = os.open(name, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC, dir_fd=directory)
    except OSError as error:
        if error.errno == errno.ELOOP:
            return 0
        raise
    try:
        fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        os.unlink(name, dir_fd=directory)
    except BlockingIOError:
        return 0
    finally:
        os.close(fd)
    return 1
