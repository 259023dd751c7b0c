"""A new directory in the making: locked by its writer, safe from tasks of earlier runs, visible when it is complete."""

from __future__ import annotations

import fcntl
import os
import shutil
import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from strata.errors import DatasetExistsError


@contextmanager
def write_directory(target: str, *, command: str) -> Iterator[Path]:
    """Yield a hidden directory beside the target, and rename it to the target when the block ends without an error.

    It is locked until this process ends, so what is in it at the beginning was left by a run that is over. After an
    error it stays where it is.
    """
    final = Path(target.removeprefix("file://")).expanduser().absolute()
    if final.exists() and (not final.is_dir() or any(final.iterdir())):
        raise DatasetExistsError(target, "there is something already")
    folder = final.with_name(f".{final.name}.unfinished")
    folder.mkdir(parents=True, exist_ok=True)
    lock = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise DatasetExistsError(target, f"another 'strata data {command}' is writing it") from None
        if not folder.exists() or os.fstat(lock).st_ino != folder.stat().st_ino:
            raise DatasetExistsError(target, f"another 'strata data {command}' has just written it")
        yield folder
        os.fsync(lock)
        folder.rename(final)
        sync(final.parent)
    finally:
        os.close(lock)


@contextmanager
def working_folder(folder: Path) -> Iterator[Path]:
    """Yield a new folder in this one for what the tasks of a run write; it is deleted at the end.

    A task may outlive its run: its machine was cut off, or it was frozen when its parent was killed. As the name is
    never used again, it cannot write to the files of another run.
    """
    working = folder / f"_run-{uuid.uuid4().hex}"
    working.mkdir()
    try:
        yield working
    finally:
        remove(working)


def new_folder(working: Path) -> Path:
    """Return a new folder for one attempt at a task; a cluster may try a task again while the first attempt runs."""
    attempt = working / uuid.uuid4().hex
    attempt.mkdir()
    return attempt


def remove(path: Path) -> None:
    """Delete a file or folder that a task of an earlier run may still be writing to."""
    if not path.is_dir():
        path.unlink()
        return
    # Under a new name, which that task does not know: it can create nothing there while the folder is emptied.
    hidden = path.with_name(f"_removed-{uuid.uuid4().hex}")
    path.rename(hidden)
    shutil.rmtree(hidden)


def sync(path: Path) -> None:
    """Write a file or directory through to the disk."""
    descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
