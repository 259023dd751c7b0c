"""The local cache: blocks of remote files and of decompressed ones, up to a limit of bytes, oldest use out first.

Layout: ``blocks/ab/<key>-<number>`` is one block and its digest; ``tmp`` holds blocks in the making, each locked
by its writer while that lives; ``usage`` is the number of bytes that are taken, never less than the truth. A process
may be killed at any moment: what it leaves is a temporary file without a lock, which the next count removes, or a
usage that is too high, which the next count corrects. No memory is shared, and a block's key holds the version of
its file, so nothing stale is ever found.
"""

from __future__ import annotations

import fcntl
import logging
import os
import threading
import uuid
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING

import xxhash

if TYPE_CHECKING:
    from collections.abc import Iterator

    from typing_extensions import Buffer

log = logging.getLogger(__name__)

BLOCK_BYTES = 1 << 20
DIGEST_BYTES = 16
DEFAULT_LIMIT_BYTES = 16 << 30
# Making room goes further than needed, so that the next blocks need no count of everything.
_ROOM = 10


class Cache:
    """Blocks in a directory that any number of threads and processes may share; it never holds more than its limit.

    Losing the cache loses time and nothing else: a block that is missing, damaged or cannot be written is read from
    where it came.
    """

    def __init__(self, directory: str | os.PathLike[str], *, limit_bytes: int = DEFAULT_LIMIT_BYTES) -> None:
        if limit_bytes < 1:
            raise ValueError(f"limit_bytes={limit_bytes} must be 1 or more")
        self.directory = Path(directory).expanduser().absolute()
        self.limit_bytes = limit_bytes
        self._blocks = self.directory / "blocks"
        self._temporary = self.directory / "tmp"
        self._lock = threading.Lock()
        self._warned = False

    def __reduce__(self) -> tuple[object, ...]:
        return _open_cache, (str(self.directory), self.limit_bytes)

    def __repr__(self) -> str:
        return f"Cache({str(self.directory)!r}, limit_bytes={self.limit_bytes})"

    def get(self, key: str, number: int) -> bytes | None:
        """Return the block, which counts as used now; None if it is not here, or not whole."""
        path = self._path(key, number)
        try:
            with path.open("rb", buffering=0) as file:
                data = file.read()
                os.utime(file.fileno())
        except OSError:
            return None
        content = data[:-DIGEST_BYTES]
        if len(data) < DIGEST_BYTES or xxhash.xxh3_128_digest(content) != data[-DIGEST_BYTES:]:
            log.warning("%s is damaged, as after a power cut; it is fetched again", path)
            with suppress(OSError):
                path.unlink()
            return None
        return content

    def put(self, key: str, number: int, data: Buffer) -> None:
        """Keep the block, and make room for it first; what cannot be written is left out with one warning."""
        view = memoryview(data)
        size = view.nbytes + DIGEST_BYTES
        if size > self.limit_bytes:
            return
        try:
            self._write(self._path(key, number), view, size)
        except OSError as error:
            if not self._warned:
                self._warned = True
                log.warning("the cache %s cannot be written, so data is read without it: %s", self.directory, error)

    def read_index(self, name: str) -> bytes | None:
        """Return an index that could not be written beside its data."""
        try:
            return (self.directory / "index" / name).read_bytes()
        except OSError:
            return None

    def write_index(self, name: str, data: bytes) -> Path:
        """Keep an index, atomically. It does not count towards the limit."""
        path = self.directory / "index" / name
        write_atomically(path, data)
        return path

    def count_bytes(self) -> int:
        """Return how many bytes blocks take up, those in the making included; no block counts twice."""
        total = 0
        with self._locked():
            # Nothing is made or evicted meanwhile, but blocks may still move from the one folder to the other.
            for folder in (self._blocks, self._temporary):
                for each in folder.rglob("*"):
                    with suppress(FileNotFoundError):
                        total += each.stat().st_size if each.is_file() else 0
        return total

    def _path(self, key: str, number: int) -> Path:
        return self._blocks / key[:2] / f"{key}-{number}"

    def _write(self, path: Path, view: memoryview, size: int) -> None:
        temporary, fd = self._reserve(size)
        try:
            _write_all(fd, view, 0)
            _write_all(fd, memoryview(xxhash.xxh3_128_digest(view)), view.nbytes)
            path.parent.mkdir(parents=True, exist_ok=True)
            temporary.rename(path)
        except OSError:
            temporary.unlink(missing_ok=True)
            raise
        finally:
            os.close(fd)

    def _reserve(self, size: int) -> tuple[Path, int]:
        """Make a temporary file of this size, for which there is room."""
        with self._locked() as usage_fd:
            text = os.pread(usage_fd, 32, 0)
            usage = int(text) if text.isdigit() else self._count_and_evict(self.limit_bytes)
            if usage + size > self.limit_bytes:
                usage = self._count_and_evict(self.limit_bytes - max(size, self.limit_bytes // _ROOM))
            path = self._temporary / uuid.uuid4().hex
            fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o666)
            # Its full size stands from the start, so that whoever counts meanwhile counts all of it.
            os.ftruncate(fd, size)
            fcntl.flock(fd, fcntl.LOCK_EX)
            os.pwrite(usage_fd, b"%032d" % (usage + size), 0)
        return path, fd

    @contextmanager
    def _locked(self) -> Iterator[int]:
        with self._lock:
            self._blocks.mkdir(parents=True, exist_ok=True)
            self._temporary.mkdir(exist_ok=True)
            fd = os.open(self.directory / "usage", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o666)
            try:
                fcntl.flock(fd, fcntl.LOCK_EX)
                yield fd
            finally:
                os.close(fd)

    def _count_and_evict(self, target_bytes: int) -> int:
        """Count everything, remove what the dead left, then the blocks used longest ago until the target is met."""
        total = self._count_temporary()
        blocks = []
        for folder in self._blocks.iterdir():
            with os.scandir(folder) as entries:
                for entry in entries:
                    with suppress(FileNotFoundError):  # removed as damaged meanwhile
                        found = entry.stat()
                        blocks.append((found.st_mtime_ns, found.st_size, entry.path))
        total += sum(size for _, size, _ in blocks)
        blocks.sort(reverse=True)
        while total > target_bytes and blocks:
            _, size, path = blocks.pop()
            Path(path).unlink(missing_ok=True)
            total -= size
        return total

    def _count_temporary(self) -> int:
        total = 0
        for path in self._temporary.iterdir():
            with suppress(FileNotFoundError), path.open("rb") as file:
                try:
                    fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
                except BlockingIOError:
                    total += os.fstat(file.fileno()).st_size
                else:
                    path.unlink(missing_ok=True)
        return total


def _open_cache(directory: str, limit_bytes: int) -> Cache:
    return Cache(directory, limit_bytes=limit_bytes)


def open_cache(cache: Cache | str | os.PathLike[str] | None) -> Cache:
    """Return the cache that is meant: one that is given, one in a directory, or the one of the settings."""
    if isinstance(cache, Cache):
        return cache
    from strata.config import load_settings

    settings = load_settings()
    return Cache(cache or settings.data_cache_path, limit_bytes=settings.data_cache_bytes)


def write_atomically(path: Path, data: bytes) -> None:
    """Put the file in place, over any older one, so that a reader sees all of it or none."""
    path.parent.mkdir(parents=True, exist_ok=True)
    temporary = path.with_name(f".{path.name}.{uuid.uuid4().hex}")
    try:
        with temporary.open("xb") as file:
            file.write(data)
            file.flush()
            os.fsync(file.fileno())
        temporary.rename(path)
    except BaseException:
        temporary.unlink(missing_ok=True)
        raise


def _write_all(fd: int, view: memoryview, offset: int) -> None:
    view = view.cast("B") if view.nbytes else view
    while view:
        written = os.pwrite(fd, view, offset)
        view, offset = view[written:], offset + written
