"""The root: the directory that a local storage is in, which may be missing, made meanwhile, or gone."""

from __future__ import annotations

import os
from pathlib import Path

from strata.errors import ConfigError, ConfigProblem, StorageError
from strata.storage.blocking import translate_os_error
from strata.storage.local.directory import BACKEND, sync_directory

# The root itself may be a link: whoever configured it chose it.
_ROOT = os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC


class Root:
    """A directory that is opened anew for each operation, by one system call that also tells whether it is there.

    Whoever looks first and opens then can take a root that went away in between for an empty one, or one that another
    process made in between for a file.
    """

    def __init__(self, path: str | os.PathLike[str]) -> None:
        self.path = find_root(path)
        self._was_there = False

    def __str__(self) -> str:
        return str(self.path)

    def open(self) -> int:
        """Return a descriptor of it; FileNotFoundError says that it was never there, and so is empty.

        Raise StorageError where a file is in its place, or where it was and is no more. It may be a disk that is not
        mounted any more: to say that it is empty would let a run begin anew, and to make it again would write to
        another disk.
        """
        # Asked for before the root is opened: meanwhile another thread may make it.
        was_there = self._was_there
        try:
            descriptor = os.open(self.path, _ROOT)
        except FileNotFoundError:
            if was_there:
                hint = "mount it or make it again; what is saved after that works without a restart"
                raise self._error("this directory was there and is gone", hint) from None
            raise
        except NotADirectoryError as error:
            raise self._file_error() from error
        except OSError as error:
            # Named here: of an object, the same error says nothing about all others.
            raise translate_os_error(error, str(self), 0.0) from error
        self._was_there = True
        return descriptor

    def identify(self) -> tuple[int, int]:
        """Return which directory of which file system it is now; raise as :meth:`open` does."""
        descriptor = self.open()
        try:
            status = os.fstat(descriptor)
        finally:
            os.close(descriptor)
        return status.st_dev, status.st_ino

    def make(self) -> tuple[int, int]:
        """Create it with what is missing above it, durably, and return which directory it is; what is there stays."""
        try:
            _make_directory(self.path)
            return self.identify()
        except FileNotFoundError as error:
            hint = "look for a link that leads nowhere, in it or above it"
            raise self._error("it cannot be made", hint) from error
        except NotADirectoryError as error:
            raise self._file_error() from error

    def _file_error(self) -> StorageError:
        return self._error("it is a file, or below one, and a storage needs a directory", "choose another path")

    def _error(self, problem: str, hint: str) -> StorageError:
        return StorageError(problem, path=str(self), backend=BACKEND, hint=hint)


def find_root(root: str | os.PathLike[str]) -> Path:
    """Return where a root is meant to be: absolute, and with ``~`` for the home of the user."""
    try:
        return Path(root).expanduser().absolute()
    except RuntimeError:
        raise ConfigError([ConfigProblem("path", "argument", os.fspath(root), "a home that exists after ~")]) from None


def _make_directory(path: Path) -> None:
    try:
        _make_one(path)
    except FileNotFoundError:
        # This ends at / at the latest, which always exists.
        _make_directory(path.parent)
        _make_one(path)


def _make_one(path: Path) -> None:
    try:
        path.mkdir()
    except FileExistsError:
        return  # a directory, or a file: whoever opens it sees which
    parent = os.open(path.parent, _ROOT)
    try:
        sync_directory(parent)
    finally:
        os.close(parent)
