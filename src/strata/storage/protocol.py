"""What every store promises. One test class holds each backend to it.

Keys are checked by :mod:`strata.storage.object_keys`. Errors are those of :mod:`strata.errors` under StorageError;
each names the object and what to do. A key that is both an object and the directory of others is not
portable: object stores have it, file systems cannot.
"""

from __future__ import annotations

from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol, runtime_checkable

from strata.errors import CorruptObjectError, ObjectChangedError, StorageError

if TYPE_CHECKING:
    import threading
    from collections.abc import AsyncIterator, Callable, Iterator, Sequence
    from contextlib import AbstractAsyncContextManager, AbstractContextManager

    from typing_extensions import Buffer


@dataclass(frozen=True, slots=True)
class ObjectInfo:
    """One object in a listing. ``modified_s`` is the store's wall clock: for people, never for decisions."""

    path: str
    size_bytes: int
    modified_s: float
    etag: str | None


class ObjectWriter(Protocol):
    """Receives one object piece by piece, one after the other; see :meth:`Storage.writer`."""

    async def write(self, data: Buffer) -> None:
        """Append ``data``; when this returns, the caller may use the buffer for something else.

        A piece that failed ends the object: even if its error is caught, nothing will be published.
        """
        ...


class PieceGuard:
    """Remembers that a piece of an object is missing, so that the object is not published without it."""

    def __init__(self, path: str, *, backend: str) -> None:
        self._path = path
        self._backend = backend
        self._has_failed = False

    @contextmanager
    def piece(self) -> Iterator[None]:
        """Wrap the writing of one piece."""
        self.check()
        try:
            yield
        except BaseException:
            self._has_failed = True
            raise

    def check(self) -> None:
        """Refuse to go on with an object that lacks a piece."""
        if self._has_failed:
            raise StorageError(
                "an earlier piece of it was not written",
                path=self._path,
                backend=self._backend,
                hint="nothing was published; let that piece's error leave the writer's block",
            )


class BlockingReader(Protocol):
    """Reads many pieces of few objects from any thread; see :meth:`LocalFiles.open_files`."""

    def read_into(self, path: str, view: memoryview, start: int, stop: threading.Event) -> None:
        """Fill the view from ``start``, or raise."""
        ...


class LocalFiles(Protocol):
    """What a store can do whose objects are files of this machine, for callers with threads of their own."""

    async def write_behind(self, path: str, data: Buffer, wait_ready: Callable[[int], None]) -> None:
        """As :meth:`Storage.write_new`; ``data`` may still be filled, front to back, while its beginning is written.

        ``wait_ready(end)`` is called in other threads; it returns when the first ``end`` bytes are final.
        """
        ...

    def open_files(self) -> AbstractContextManager[BlockingReader]:
        """Lend blocking reads, for callers that use what they read on the spot."""
        ...

    async def find_links(self, prefix: str) -> Sequence[str]:
        """Return the symbolic links below ``prefix``: no listing has them, and to read them is refused."""
        ...


@runtime_checkable
class Storage(Protocol):
    """A place for objects. Whatever dies, a reader sees a whole object or none, and never a mix of two.

    A write that returned is durable: it survives the loss of this process, and of the machine as far as the
    store itself does. A write that raised or was cancelled left the old object, or none, or the whole new
    one. When a call ends, however it ends, the buffer that it was given is no longer in use.
    """

    @property
    def local_files(self) -> LocalFiles | None:
        """The faster ways of a store on this machine; None for any other. A wrapper passes on what it wraps."""
        ...

    async def write(self, path: str, data: Buffer) -> None:
        """Put the object in place, over any older one: atomic and durable."""
        ...

    async def write_new(self, path: str, data: Buffer) -> None:
        """Put the object in place only if there is none: of any number of writers, exactly one succeeds.

        The others get ObjectExistsError.
        """
        ...

    async def read(self, path: str, *, start: int = 0, length: int | None = None, etag: str | None = None) -> bytes:
        """Return exactly ``length`` bytes from ``start``, or all from there; fewer is CorruptObjectError.

        With the ``etag`` of a listing, the bytes are of that version, or it is an ObjectChangedError.
        For large objects use :meth:`read_into`, which needs no second copy in memory.
        """
        ...

    async def read_into(self, path: str, buffer: Buffer, *, start: int = 0) -> None:
        """Fill the writable ``buffer`` with the bytes from ``start``.

        An object that is too short is a CorruptObjectError. After an error, the buffer is undefined.
        """
        ...

    async def exists(self, path: str) -> bool:
        """Whether there is an object at ``path``."""
        ...

    async def delete(self, path: str) -> None:
        """Remove the object; one that is not there is fine."""
        ...

    def list(self, prefix: str = "") -> AsyncIterator[ObjectInfo]:
        """Yield every object below ``prefix``, whole segments only, in no promised order.

        Objects that appear or go meanwhile may or may not be seen; parts of objects never are.
        """
        ...

    def writer(self, path: str, *, size_bytes: int | None = None) -> AbstractAsyncContextManager[ObjectWriter]:
        """Write one object piece by piece, in bounded memory; ``size_bytes`` says how much will come, if that is known.

        Leaving the block normally publishes the object like :meth:`write`; leaving it by an exception or by
        cancellation leaves nothing behind.
        """
        ...


def view_bytes(data: Buffer) -> memoryview:
    """Look at any contiguous buffer as plain bytes, without copying it."""
    view = memoryview(data)
    if not view.c_contiguous:
        raise ValueError("the buffer is not contiguous; make it so, e.g. with numpy.ascontiguousarray")
    # A view with a zero in its shape cannot be cast, and has no bytes to look at.
    return view.cast("B") if view.nbytes else memoryview(bytearray())


def view_writable(data: Buffer) -> memoryview:
    """Look at a contiguous buffer as plain bytes that may be written."""
    view = view_bytes(data)
    if view.readonly:
        raise ValueError("the buffer is read-only; read_into needs one that can be written")
    return view


def check_end(path: str, end: int, size: int, *, backend: str) -> None:
    """Refuse to read up to ``end`` of an object that ends before."""
    if end > size:
        raise CorruptObjectError(path, backend=backend, problem=f"it has {size} bytes, but {end} were asked for")


def check_etag(path: str, etag: str | None, found: str, *, backend: str) -> None:
    """Refuse to read another version than the one that is asked for."""
    if etag is not None and etag != found:
        raise ObjectChangedError(path, backend=backend)


def check_range(start: int, length: int | None) -> None:
    """Refuse a range that cannot be meant."""
    if start < 0 or (length is not None and length < 0):
        raise ValueError(f"start={start} and length={length} cannot be negative")
