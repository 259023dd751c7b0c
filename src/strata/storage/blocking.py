"""Blocking work in a thread, for an event loop that may lose interest; the system's errors are translated."""

from __future__ import annotations

import asyncio
import errno
import os
import threading
import time
from contextlib import contextmanager, suppress
from functools import partial
from typing import TYPE_CHECKING, TypeVar

from strata.errors import (
    CorruptObjectError,
    InvalidKeyError,
    ObjectNotFoundError,
    StorageError,
    StorageFullError,
    StoragePermissionError,
    StorageUnavailableError,
)
from strata.storage.local.directory import BACKEND

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

T = TypeVar("T")


async def run_blocking(path: str, work: Callable[[threading.Event], T], stop: threading.Event | None = None) -> T:
    """Run work on ``path`` as :func:`finish_in_thread` does; on cancellation it is told to stop."""
    stop = stop or threading.Event()
    with translating(path):
        return await finish_in_thread(partial(work, stop), on_cancel=stop.set)


async def finish_in_thread(work: Callable[[], T], *, on_cancel: Callable[[], None] = lambda: None) -> T:
    """Run blocking work in a thread; on cancellation, raise only when it has ended.

    A thread that went on alone would still use the caller's memory, or publish what nobody wants any more.
    """
    thread = asyncio.ensure_future(asyncio.to_thread(work))
    try:
        return await asyncio.shield(thread)
    except asyncio.CancelledError:
        on_cancel()
        while not thread.done():
            with suppress(asyncio.CancelledError):
                await asyncio.wait([thread])
        thread.exception()
        raise


@contextmanager
def translating(path: str) -> Iterator[None]:
    """Raise what the operating system says about ``path`` in Strata's words."""
    started_s = time.monotonic()
    try:
        yield
    except OSError as error:
        raise translate_os_error(error, path, time.monotonic() - started_s) from error


def is_of_one_object(error: StorageError) -> bool:
    """Whether a read failed because of this object alone, so that others in the same store may be fine.

    An object that is gone, short, a link, behind a bad block or not ours to read is such a failure. A store that is
    away or does not know us is not, and neither is a machine without memory or file descriptors.
    """
    if error.path.startswith("/"):
        return False  # no key is absolute: this is about the root of a local storage, and so about all objects
    if isinstance(error, ObjectNotFoundError | CorruptObjectError | InvalidKeyError):
        return True
    cause = error.__cause__
    if error.backend != BACKEND or not isinstance(cause, OSError):
        return False
    return cause.errno not in (errno.EMFILE, errno.ENFILE, errno.ENOMEM, errno.EAGAIN, errno.ENOTCONN, errno.ESTALE)


def translate_os_error(error: OSError, path: str, elapsed_s: float) -> StorageError:
    """Say in Strata's words what the operating system said."""
    said = os.strerror(error.errno) if error.errno else str(error)
    match error.errno:
        case errno.ENOENT:
            return ObjectNotFoundError(path, backend=BACKEND)
        case errno.ENOSPC | errno.EDQUOT | errno.EFBIG:
            return StorageFullError(path, backend=BACKEND, problem=said)
        case errno.EROFS:
            return StoragePermissionError(
                path, backend=BACKEND, problem=said, hint="remount it writable or choose another root"
            )
        case errno.EACCES | errno.EPERM:
            return StoragePermissionError(
                path,
                backend=BACKEND,
                problem=said,
                hint="give this user rights to the root and what is in it",
            )
        case errno.ENAMETOOLONG:
            return InvalidKeyError(path, said, backend=BACKEND)
        case errno.EISDIR | errno.ENOTEMPTY:
            hint = "on a file system a key cannot be an object and a directory; choose another key"
            return StorageError("it is a directory of other objects", path=path, backend=BACKEND, hint=hint)
        case errno.EXDEV:
            hint = "mount it elsewhere and use that as a root of its own"
            return StorageError("another file system is mounted below the root", path=path, backend=BACKEND, hint=hint)
        case errno.EIO | errno.ENXIO | errno.ENODEV | errno.ESTALE | errno.ETIMEDOUT | errno.ENOTCONN:
            hint = "the device or its server failed; look at the kernel's log (dmesg)"
        case errno.EMFILE | errno.ENFILE | errno.ENOMEM | errno.EAGAIN:
            hint = "this machine is out of file descriptors or memory; raise the limit (ulimit -n)"
        case _:
            return StorageError(said, path=path, backend=BACKEND, hint="this is unexpected; please report it")
    return StorageUnavailableError(path, backend=BACKEND, problem=said, attempts=1, elapsed_s=elapsed_s, hint=hint)
