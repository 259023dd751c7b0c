"""Where a dataset's files lie: listing them, opening one, and keeping an index beside them."""

from __future__ import annotations

import os
import stat
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

import xxhash

from strata.data.files.cache import Cache, write_atomically
from strata.data.files.patterns import has_wildcard, is_selected
from strata.data.files.random_access import ByteFile, LocalFile, version_of
from strata.data.files.remote import Fetches, RemoteFile
from strata.data.files.storage_loop import wait_for
from strata.errors import DatasetNotFoundError, ObjectNotFoundError, StaleIndexError, StoragePermissionError
from strata.storage.blocking import translate_os_error

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from strata.storage import Storage

# Lies beside files that are being written, where they cannot be put in place all at once.
UNFINISHED = "_strata_unfinished"
_ETAG = "etag:"


@dataclass(frozen=True, slots=True)
class FileInfo:
    """One file of a dataset; ``version`` differs whenever its content may: etag, or times and inode."""

    path: str
    size_bytes: int
    version: str


class Source(Protocol):
    """A place with files. ``selection`` is empty for all of them, else a pattern or one name."""

    url: str
    selection: str

    def list(self) -> Sequence[FileInfo]:
        """Return the files, ordered by path; hidden ones, and those that begin with an underscore, are none."""
        ...

    def name_of(self, path: str) -> str:
        """Return the path or URL of a file, for people."""
        ...

    def open(self, info: FileInfo, cache: Cache | None) -> ByteFile:
        """Open a file of that very version; one that is seen to have changed is a StaleIndexError."""
        ...

    def needs_cache(self, info: FileInfo) -> bool:
        """Whether the file can only be streamed from its start, so that ranges of it must come from the cache."""
        ...

    def read_beside(self, name: str) -> bytes | None:
        """Return a small file that lies beside the data, if it is there."""
        ...

    def write_beside(self, name: str, data: bytes) -> bool:
        """Put a small file beside the data, atomically; False where nothing may be written."""
        ...


class LocalSource:
    """A directory, with everything below it; symbolic links are followed."""

    def __init__(self, root: Path, selection: str) -> None:
        self.url = str(root)
        self.selection = selection
        self._root = root

    def list(self) -> Sequence[FileInfo]:
        """Return the files below the directory."""
        try:
            if not self._is_directory():
                raise DatasetNotFoundError(self.url, "there is no such file or directory", hint="check the path")
            alone = self._root / self.selection
            if self.selection and not has_wildcard(self.selection) and alone.is_file():
                status = alone.stat()  # of one file in a directory of thousands
                return [FileInfo(self.selection, status.st_size, version_of(status))]
            return sorted(self._walk(), key=lambda info: info.path)
        except OSError as error:
            raise translate_os_error(error, error.filename or self.url, 0.0) from error

    def _is_directory(self) -> bool:
        # Not with Path.is_dir(): since Python 3.14 a directory that may not be looked at is none for it.
        try:
            return stat.S_ISDIR(self._root.stat().st_mode)
        except (FileNotFoundError, NotADirectoryError, ValueError):  # the last for a null character
            return False

    def _walk(self) -> Iterator[FileInfo]:
        pending, seen = [(self.url, "")], {self._identity(self.url)}
        while pending:
            folder, prefix = pending.pop()
            with os.scandir(folder) as entries:
                for entry in entries:
                    _check_finished(self.url, entry.name)
                    if is_hidden(entry.name):
                        continue
                    path = f"{prefix}{entry.name}"
                    if entry.is_dir():
                        # A link may lead to a directory that leads here again.
                        if (identity := self._identity(entry.path)) not in seen:
                            seen.add(identity)
                            pending.append((entry.path, f"{path}/"))
                    elif not is_selected(path, self.selection):
                        continue
                    elif entry.is_file():
                        status = entry.stat()
                        yield FileInfo(path, status.st_size, version_of(status))
                    elif entry.is_symlink() and not Path(entry.path).exists():
                        # A file that is missing is never a smaller dataset.
                        hint = "mend the link, or remove it"
                        raise DatasetNotFoundError(entry.path, "this link leads to nothing", hint=hint)

    def name_of(self, path: str) -> str:
        """Return the path of a file."""
        return f"{self.url}/{path}"

    def open(self, info: FileInfo, cache: Cache | None) -> LocalFile:
        """Map the file, and see whether it is the one that was listed."""
        name = self.name_of(info.path)
        try:
            file = LocalFile(name)
        except FileNotFoundError:
            raise StaleIndexError(self.url, name, "is gone") from None
        except OSError as error:
            raise translate_os_error(error, name, 0.0) from error
        if file.size_bytes != info.size_bytes:
            raise StaleIndexError(self.url, name, f"went from {info.size_bytes} to {file.size_bytes} bytes")
        if file.version != info.version:
            raise StaleIndexError(self.url, name, "was written again")
        return file

    def needs_cache(self, info: FileInfo) -> bool:
        """Never: any range can be read."""
        return False

    def read_beside(self, name: str) -> bytes | None:
        """Return a small file of this directory."""
        try:
            return (self._root / name).read_bytes()
        except OSError:
            return None

    def write_beside(self, name: str, data: bytes) -> bool:
        """Put a small file into this directory; False if it is read-only."""
        try:
            write_atomically(self._root / name, data)
        except OSError:
            return False
        return True

    @staticmethod
    def _identity(path: str) -> tuple[int, int]:
        status = Path(path).stat()
        return status.st_dev, status.st_ino


class StorageSource:
    """A prefix of a storage, with everything below it."""

    def __init__(
        self,
        storage: Storage,
        prefix: str,
        selection: str,
        *,
        url: str,
        opened: str | None = None,
        finished: bool = True,
    ) -> None:
        """``opened`` is the URL that the storage was opened by, so that another process can do the same.

        Whoever writes a dataset sees its files before it is ``finished``; no one else does.
        """
        self.url = url
        self.selection = selection
        self.prefix = prefix
        self._storage = storage
        self._opened = opened
        self._finished = finished
        self._fetches = Fetches()

    def __reduce__(self) -> tuple[Any, ...]:
        storage = self._storage if self._opened is None else None
        return reopen, (storage, self.prefix, self.selection, self.url, self._opened)

    def list(self) -> Sequence[FileInfo]:
        """Return the objects below the prefix."""
        return wait_for(self._list())

    def parent(self) -> StorageSource:
        """Return the place above, narrowed to what has this one's name."""
        above, _, name = self.prefix.rpartition("/")
        return reopen(self._storage, above, name, self.url.rpartition("/")[0], self._opened)

    def name_of(self, path: str) -> str:
        """Return the URL of an object."""
        return f"{self.url}/{path}"

    def open(self, info: FileInfo, cache: Cache | None) -> RemoteFile:
        """Return the object; nothing is asked of the storage yet."""
        return RemoteFile(
            self._storage,
            self._key(info.path),
            name=self.name_of(info.path),
            size_bytes=info.size_bytes,
            etag=info.version.removeprefix(_ETAG) if info.version.startswith(_ETAG) else None,
            key=key_of(self, info),
            cache=cache,
            fetches=self._fetches,
        )

    def needs_cache(self, info: FileInfo) -> bool:
        """Never: any range can be read."""
        return False

    def read_beside(self, name: str) -> bytes | None:
        """Return a small object below the prefix."""
        try:
            return wait_for(self._storage.read(self._key(name)))
        except ObjectNotFoundError:
            return None

    def write_beside(self, name: str, data: bytes) -> bool:
        """Put a small object below the prefix; False if that is refused."""
        try:
            wait_for(self._storage.write(self._key(name), data))
        except StoragePermissionError:
            return False
        return True

    def _key(self, path: str) -> str:
        return f"{self.prefix}/{path}" if self.prefix else path

    async def _list(self) -> Sequence[FileInfo]:
        found = []
        async for info in self._storage.list(self.prefix):
            path = info.path.removeprefix(f"{self.prefix}/") if self.prefix else info.path
            if self._finished:
                _check_finished(self.url, path)
            if not any(map(is_hidden, path.split("/"))) and is_selected(path, self.selection):
                version = f"{_ETAG}{info.etag}" if info.etag is not None else f"time:{info.modified_s:.6f}"
                found.append(FileInfo(path, info.size_bytes, version))
        return sorted(found, key=lambda info: info.path)


def key_of(source: Source, info: FileInfo) -> str:
    """Return what the cache knows the file by: it is another for every version."""
    text = "\0".join((source.name_of(info.path), str(info.size_bytes), info.version))
    return xxhash.xxh3_128_hexdigest(text.encode())


def reopen(storage: Storage | None, prefix: str, selection: str, url: str, opened: str | None) -> StorageSource:
    """Return a place in a storage, which is opened by its URL where it is not given."""
    if storage is None:
        from strata.storage import open_storage

        assert opened is not None
        storage = open_storage(opened)
    return StorageSource(storage, prefix, selection, url=url, opened=opened)


def _check_finished(url: str, path: str) -> None:
    if path.rpartition("/")[2] == UNFINISHED:
        hint = "wait for it, or if it was stopped run it again"
        raise DatasetNotFoundError(url, "'strata data prepare' has not finished here", hint=hint)


def is_hidden(name: str) -> bool:
    """Whether a file or directory does not count: its name begins with a dot or an underscore."""
    return name.startswith((".", "_"))
