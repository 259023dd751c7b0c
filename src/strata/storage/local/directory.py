"""Directories below a root, reached so that no symbolic link can lead out of it.

Every step opens the next name relative to the directory before it and refuses a link, so a link that is put
in place at any moment is met, not followed. Synchronous code: callers run it in a thread.
"""

from __future__ import annotations

import errno
import os
import stat
from contextlib import contextmanager, suppress
from typing import TYPE_CHECKING

from strata.errors import InvalidKeyError, StorageError, StoragePermissionError
from strata.storage.object_keys import check_key
from strata.storage.protocol import ObjectInfo

if TYPE_CHECKING:
    import threading
    from collections.abc import Iterator

    from strata.storage.local.root import Root

BACKEND = "local"

_DIRECTORY = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
# Without O_NONBLOCK, opening a named pipe would wait for its other end.
_OBJECT = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
# What rmdir says of a directory that is in use, already gone, or not ours to remove.
_STAYS = (
    errno.ENOTEMPTY,
    errno.EEXIST,
    errno.ENOENT,
    errno.ENOTDIR,
    errno.EBUSY,
    errno.EACCES,
    errno.EPERM,
    errno.EROFS,
)


@contextmanager
def open_directory(root: Root, segments: list[str], *, create: bool = False) -> Iterator[int]:
    """Open a directory below the root; with ``create``, make what is missing, durably."""
    current = root.open()
    try:
        for depth, segment in enumerate(segments):
            following = _open_next(current, segment, "/".join(segments[: depth + 1]), create=create)
            os.close(current)
            current = following
        yield current
    finally:
        os.close(current)


@contextmanager
def open_parent(root: Root, path: str, *, create: bool = False) -> Iterator[tuple[int, str]]:
    """Open the directory that an object is in; yield it with the object's name there."""
    *segments, name = path.split("/")
    with open_directory(root, segments, create=create) as directory:
        yield directory, name


def open_object(root: Root, path: str) -> int:
    """Open an object for reading, or raise FileNotFoundError; a directory is no object."""
    try:
        with open_parent(root, path) as (directory, name):
            fd = os.open(name, _OBJECT, dir_fd=directory)
    except NotADirectoryError:
        raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT)) from None
    except OSError as error:
        if error.errno == errno.ELOOP:
            raise _link_refused(path) from error
        raise
    if not stat.S_ISREG(os.fstat(fd).st_mode):
        os.close(fd)
        raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT))
    return fd


def object_exists(root: Root, path: str) -> bool:
    """Whether there is an object; one that may not be read is there all the same."""
    try:
        with open_parent(root, path) as (directory, name):
            mode = os.stat(name, dir_fd=directory, follow_symlinks=False).st_mode
    except (FileNotFoundError, NotADirectoryError):
        return False
    if stat.S_ISLNK(mode):
        raise _link_refused(path) from OSError(errno.ELOOP, os.strerror(errno.ELOOP))
    return stat.S_ISREG(mode)


def remove_object(root: Root, path: str) -> None:
    """Remove an object, if there is one, and the directories that are empty without it."""
    try:
        with open_parent(root, path) as (directory, name):
            os.unlink(name, dir_fd=directory)
    except (FileNotFoundError, NotADirectoryError, IsADirectoryError):
        return
    _prune_parents(root, path)


def scan_directory(root: Root, segments: list[str], _: threading.Event) -> tuple[list[ObjectInfo], list[list[str]]]:
    """List the objects of one directory, and the directories in it; what is not there is empty."""
    objects: list[ObjectInfo] = []
    directories: list[list[str]] = []
    with (
        suppress(FileNotFoundError, NotADirectoryError),
        open_directory(root, segments) as directory,
        os.scandir(directory) as entries,
    ):
        for entry in entries:
            path = "/".join([*segments, entry.name])
            # A name that is no key is not ours; one that is gone was deleted a moment ago.
            with suppress(InvalidKeyError, FileNotFoundError):
                check_key(path)
                status = entry.stat(follow_symlinks=False)
                if stat.S_ISDIR(status.st_mode):
                    directories.append([*segments, entry.name])
                elif stat.S_ISREG(status.st_mode):
                    objects.append(ObjectInfo(path, status.st_size, status.st_mtime, etag_of(status)))
    return objects, directories


def find_links(root: Root, segments: list[str], _: threading.Event) -> list[str]:
    """Every symbolic link below a directory, by its key; no listing has them, and nothing reads through them."""
    links: list[str] = []
    pending = [segments]
    while pending:
        above = pending.pop()
        with (
            suppress(FileNotFoundError, NotADirectoryError),
            open_directory(root, above) as directory,
            os.scandir(directory) as entries,
        ):
            for entry in entries:
                if entry.is_symlink():
                    links.append("/".join([*above, entry.name]))
                elif entry.is_dir(follow_symlinks=False):
                    pending.append([*above, entry.name])
    return links


def etag_of(status: os.stat_result) -> str:
    """Return what names the version of a file; other programs may write over it and set its time back."""
    return f"{status.st_ino:x}-{status.st_mtime_ns:x}-{status.st_ctime_ns:x}-{status.st_size:x}"


def sync_directory(fd: int) -> None:
    """Make the names in a directory durable, on file systems that can."""
    try:
        os.fsync(fd)
    except OSError as error:
        # This is how file systems without the notion (CIFS, vfat) answer; they have nothing more to offer.
        if error.errno != errno.EINVAL:
            raise


def _prune_parents(root: Root, path: str) -> None:
    """Remove the directories above ``path`` that are empty now, as far as they let themselves be removed."""
    segments = path.split("/")[:-1]
    try:
        while segments:
            with open_directory(root, segments[:-1]) as directory:
                os.rmdir(segments.pop(), dir_fd=directory)
    except OSError as error:
        if error.errno not in _STAYS:
            raise


def _open_next(directory: int, segment: str, path: str, *, create: bool) -> int:
    try:
        return _open_segment(directory, segment, path, create=create)
    except FileNotFoundError:
        if not create:
            raise
    try:
        os.mkdir(segment, dir_fd=directory)
    except FileExistsError:
        pass  # another writer was faster, and makes it durable before its own object
    else:
        sync_directory(directory)
    # The other writer may have put an object there, or a link: it is refused as one that was there before.
    return _open_segment(directory, segment, path, create=create)


def _open_segment(directory: int, segment: str, path: str, *, create: bool) -> int:
    try:
        return os.open(segment, _DIRECTORY, dir_fd=directory)
    except NotADirectoryError as error:
        if stat.S_ISLNK(os.stat(segment, dir_fd=directory, follow_symlinks=False).st_mode):
            raise _link_refused(path) from error
        if create:
            raise StorageError(
                "it is an object, so nothing can be below it",
                path=path,
                backend=BACKEND,
                hint="on a file system a key cannot be an object and a directory; choose another key",
            ) from error
        raise


def _link_refused(path: str) -> StoragePermissionError:
    return StoragePermissionError(
        path,
        backend=BACKEND,
        problem="it is a symbolic link, which could lead out of the storage's root",
        hint="put the files themselves there, or choose the link's target as the root",
    )
